"""Trials that run what `meshwright export` writes, on made-up tokens: what is measured is what will run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.tuning.backends import STEPS, WARM_UP, BackendName, Hopeless, Json, one_line, until_hopeless, world_of
from cost_models.errors import InvalidInputError, MeshwrightError, Problem
from planner.export.target import LaunchFile

_SCRIPT = "mock.sh"


@dataclass(frozen=True, slots=True)
class ExportBackend:
    """The launch files that `meshwright export` writes, on made-up tokens."""

    target: str
    warm_up: int = WARM_UP
    steps: int = STEPS

    @property
    def name(self) -> BackendName:
        return "export"

    def refusal(self, row: Mapping[str, Any]) -> str | None:
        try:
            self._files(row)
        except MeshwrightError as error:
            return one_line(error)
        return None

    def run(
        self,
        row: Mapping[str, Any],
        *,
        deadline_s: float,
        hopeless: Hopeless | None = None,
        knobs: Mapping[str, Any] | None = None,
    ) -> Json:
        # Loaded by whoever measures; choosing launch files needs none of it.
        from profiler.trial.exported import run_export

        # A folder of its own for each trial: frameworks leave caches and logs beside their files.
        with tempfile.TemporaryDirectory(prefix="meshwright-trial-") as folder:
            for file in with_knobs(self._files(row), knobs or {}):
                path = Path(folder) / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(file.content, encoding="utf-8", newline="\n")
                if file.executable:
                    path.chmod(0o755)
            record = run_export(
                Path(folder),
                row,
                world=world_of(row),
                deadline_s=deadline_s,
                warm_up=self.warm_up,
                steps=self.steps,
                goes_on=until_hopeless(hopeless, warm_up=self.warm_up),
            )
        return record.to_json()

    def _files(self, row: Mapping[str, Any]) -> tuple[LaunchFile, ...]:
        from planner.export.export import export_row

        return export_row(row, self.target, allow_files=True)


def target_of(framework: str, row: Mapping[str, Any]) -> str:
    """The target whose launch files are run where none is named: the first that can say the row, the framework's own before others."""
    from planner.export.targets import TARGETS

    able = [target.name for target in TARGETS.values() if framework in target.frameworks]
    ordered = sorted(able, key=lambda name: name != framework)
    # Where none can, the first says why.
    return next((name for name in ordered if ExportBackend(name).refusal(row) is None), ordered[0])


def with_knobs(files: tuple[LaunchFile, ...], knobs: Mapping[str, Any]) -> tuple[LaunchFile, ...]:
    """Launch files with values of run-time knobs: arguments behind the others, or keys of the framework's own JSON.

    Args:
        files: what `export` wrote.
        knobs: `{"arguments": [...]}` or `{"config": {...}}`, as `planner.knobs.spelled` says them.

    Raises:
        InvalidInputError: no file takes them.
    """
    if not knobs:
        return files
    # The files hand on what they are given behind their own arguments, so that of two values for one flag the last counts.
    found, has_place = [], False
    for file in files:
        content = file.content
        if file.path == _SCRIPT and (arguments := knobs.get("arguments")):
            has_place |= '"$@"' in content
            content = content.replace('"$@"', " ".join([*arguments, '"$@"']))
        elif file.path == "ds_config.json" and (config := knobs.get("config")):
            has_place = True
            content = json.dumps(_merged(json.loads(content), config), indent=2) + "\n"
        found.append(LaunchFile(file.path, content, file.executable))
    # Not by what has changed: the values may be those that the files hold already.
    if not has_place:
        names = ", ".join(map(str, knobs.get("arguments") or knobs.get("config") or ()))
        message = f"the launch files have no place for the knobs {names}"
        raise InvalidInputError([Problem("/knobs", message, "Tune this framework's knobs with `meshwright knobs`.")])
    return tuple(found)


def _merged(document: Json, changes: Mapping[str, Any]) -> Json:
    result = dict(document)
    for name, value in changes.items():
        old = result.get(name)
        result[name] = _merged(old, value) if isinstance(value, dict) and isinstance(old, dict) else value
    return result
