"""Launch files of twelve plans for every target that can say them, and the refusals of those that cannot, reviewed as a diff.

    python tests/golden/test_launch_files.py      regenerates them

`launch/plans.json` holds the plans: a job, a strategy, and what is different where the plan is for another framework. Under
`launch/PLAN/` lie the files around a launch, which are the same for every target, and under `launch/PLAN/TARGET@VERSION/` what
the target adds. What only repeats another file is left out and checked here instead: programs that are the same for every plan,
the ConfigMaps of Kubernetes, which hold the launch's files, and `plan.json`.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from cost_models.errors import InvalidInputError, NotExpressibleError
from planner.export.export import export_row
from planner.export.import_config import import_config
from planner.export.imported_row import Overrides
from planner.export.settings import InputFile
from planner.export.target import Target
from planner.export.targets import TARGETS
from planner.rows import evaluate_rows

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).with_name("launch")
PLANS: list[dict[str, Any]] = json.loads((FOLDER / "plans.json").read_text())
VERSIONS = {"megatron": ("0.14", "0.19"), "torchtitan": ("0.2", "0.3")}
"""The releases of targets whose files changed most; of the others the newest."""
AROUND = ("job.sbatch", "pytorchjob.yaml", "jobset.yaml")
"""Files that follow from the plan alone."""
REFUSED = "refused.txt"
PRICE = re.compile(r": [\d.e+]+ s a step, [\w-]+(?=\.$)")
"""The price of the nearest plan. Like the prediction in a script's head, which is left out, it moves with the cost models."""
CHECKOUT = re.compile(r"^ *env:\n *- name: \w+\n *value: REPLACE-WITH-ITS-FOLDER-OF-[\w-]+\n", re.MULTILINE)
"""What Kubernetes' objects of targets with a source tree have beside."""
PROGRAMS = {path.read_text() for path in (ROOT / "planner" / "export").rglob("*.py.txt")}
"""Scripts that are the same for every plan."""


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of both, those of `over` in front; null takes a field out."""
    return {name: value for name, value in {**base, **over}.items() if value is not None}


def row_of(plan: Mapping[str, Any], target: Target, version: str) -> dict[str, Any]:
    """The plan as an evaluate row for a target's framework and release."""
    front = plan.get("front", "fsdp")
    # A front end that runs on one release of its framework says that framework's plans.
    release = version if target.own_version else target.built_on.get(version)
    framework = target.frameworks[0] if release else front
    over = plan["by_framework"].get(framework, {})
    named = {"framework": framework, **({"framework_version": release} if release else {})}
    parts = {part: merged(plan[part], over.get(part, {})) for part in ("model", "cluster", "training", "strategy")}
    return {**parts, "training": {**parts["training"], **named}}


def refusal(error: InvalidInputError | NotExpressibleError) -> str:
    if isinstance(error, InvalidInputError):
        return "".join(f"{problem.code}: {problem.message}\n  {problem.hint}\n" for problem in error.problems)
    nearest = json.dumps(error.context.get("nearest") or {}, sort_keys=True)
    return f"{error.code}: {error.message}\n  {PRICE.sub('', error.hint)}\nnearest {nearest}\n"


@cache
def launch(name: str, target: str, version: str) -> Mapping[str, str]:
    """The launch files of a plan, or the refusal as the only one."""
    (plan,) = [each for each in PLANS if each["name"] == name]
    row = row_of(plan, TARGETS[target], version)
    try:
        files = export_row(row, target, framework_version=version)
    except (InvalidInputError, NotExpressibleError) as error:
        return {REFUSED: refusal(error)}
    return {file.path: file.content for file in files}


def without_config_map(content: str) -> str:
    """The second of two YAML documents, as it was written."""
    return content.partition("\n---\n")[2]


def kept(files: Mapping[str, str]) -> dict[str, str]:
    """What is kept of a target's files."""
    return {
        path: content
        for path, content in files.items()
        if path not in (*AROUND, "plan.json") and content not in PROGRAMS
    }


def kept_around(files: Mapping[str, str]) -> dict[str, str]:
    """What is kept of the files around a launch."""
    return {
        path: files[path] if path.endswith(".sbatch") else CHECKOUT.sub("", without_config_map(files[path]))
        for path in AROUND
        if path in files
    }


def cases() -> Iterator[tuple[str, str, str]]:
    for plan in PLANS:
        for target in TARGETS.values():
            for version in VERSIONS.get(target.name, target.versions[-1:]):
                yield plan["name"], target.name, version


CASES = list(cases())
SAID = [case for case in CASES if not (FOLDER / case[0] / f"{case[1]}@{case[2]}" / REFUSED).exists()]


def on_disk(folder: Path) -> dict[str, str]:
    return (
        {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.is_file()} if folder.is_dir() else {}
    )


@pytest.mark.parametrize(("name", "target", "version"), CASES)
def test_launch_files_are_those_that_were_reviewed(name: str, target: str, version: str) -> None:
    """Where the change is meant: python tests/golden/test_launch_files.py, and read the diff."""
    assert kept(launch(name, target, version)) == on_disk(FOLDER / name / f"{target}@{version}")


@pytest.mark.parametrize(("name", "target", "version"), SAID)
def test_what_is_around_a_launch_follows_from_the_plan(name: str, target: str, version: str) -> None:
    """The same batch script and Kubernetes objects for every target whose plan lies on the same nodes."""
    files = launch(name, target, version)
    around = kept_around(files)
    assert around == {path: content for path, content in on_disk(FOLDER / name).items() if path in around}
    assert set(around) == (set(AROUND) if name != "two-pools" else {"job.sbatch"})


@pytest.mark.parametrize(("name", "target", "version"), SAID)
def test_what_is_not_kept_repeats_what_is(name: str, target: str, version: str) -> None:
    """ConfigMaps hold every file that the pods read; the row prices as the plan does."""
    files = launch(name, target, version)
    inside = {path: content for path, content in files.items() if path not in (*AROUND, "plan.json")}
    for path in AROUND[1:]:
        if path in files:
            assert next(yaml.safe_load_all(files[path]))["data"] == inside
    (plan,) = [each for each in PLANS if each["name"] == name]
    row = json.loads(files["plan.json"])
    own, again = evaluate_rows([row_of(plan, TARGETS[target], version), row])
    assert own["step_time_s"] == again["step_time_s"] is not None


@pytest.mark.parametrize(("name", "target", "version"), SAID)
def test_the_files_are_read_back_as_the_plan(name: str, target: str, version: str) -> None:
    """Without plan.json: nothing is missing, nothing is unknown, and the row costs what the plan costs to the last stage."""
    (plan,) = [each for each in PLANS if each["name"] == name]
    row = row_of(plan, TARGETS[target], version)
    files = launch(name, target, version)
    read = [InputFile(path, files[path]) for path in kept(files) if "mock" not in path]
    imported = import_config(read, given=Overrides(cluster=row["cluster"]), framework=target)
    assert not imported.missing
    assert not imported.unknown
    own, again = evaluate_rows([row, imported.row])
    assert again["step_time_s"] == pytest.approx(own["step_time_s"], rel=1e-9)
    # The range is wider where a row leaves facts open, which files state.
    assert {**again["memory"], "peak_device_range_bytes": None} == {**own["memory"], "peak_device_range_bytes": None}


def test_every_plan_is_said_by_a_target_and_no_folder_is_left_over() -> None:
    assert {case[0] for case in SAID} == {plan["name"] for plan in PLANS}
    folders = {path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/*") if path.is_dir()}
    assert folders == {f"{name}/{target}@{version}" for name, target, version in CASES}


def write() -> None:
    for folder in FOLDER.iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    for name, target, version in CASES:
        files = launch(name, target, version)
        for folder, contents in (
            (FOLDER / name, kept_around(files)),
            (FOLDER / name / f"{target}@{version}", kept(files)),
        ):
            folder.mkdir(parents=True, exist_ok=True)
            for path, content in contents.items():
                (folder / path).write_text(content)


if __name__ == "__main__":
    write()
