"""Drawn plans, written by every target and judged: the diff leads to the best plan, and the best plan is a tie without changes."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import pytest

from cost_models.errors import InvalidInputError, NotExpressibleError
from planner.export.export import export_row
from planner.export.imported_row import Overrides
from planner.export.judge.changes import changed_fields
from planner.export.judge.judge import judge
from planner.export.launch_plan import launch_plan
from planner.export.settings import InputFile
from tests.launch_imports import CONFIGURATIONS, PLANS, row_of, target_of

CLUSTER = {"preset": "dgx-h100"}
STAGES = {"nanotron": [0, 1], "torchtitan": [0, 2, 3], "fsdp": [0, 2, 3]}


def drawn(case: str, draw: random.Random) -> dict[str, Any]:
    pick, framework = draw.choice, PLANS[case][0]
    strategy: dict[str, Any] = {
        "zero": pick(STAGES.get(framework, [0, 1, 2, 3])), "micro_batch_size": pick([1, 2, 4]),
        "recompute": pick(["none", "selective", "full"] if framework in ("megatron", "torchtitan") else ["none", "full"]),
    }  # fmt: skip
    if target_of(case) not in ("accelerate", "transformers"):
        strategy |= {
            "tp": pick([1, 2, 4, 8]),
            "cp": pick([1, 1, 2]),
            "pp": 1 if framework == "fsdp" else pick([1, 1, 2, 4]),
        }
        if strategy["tp"] > 1:
            strategy["sequence_parallel"] = pick([True, False])
        if framework == "megatron" and strategy["pp"] > 1:
            strategy["vpp"] = pick([1, 2, 4])
    if framework != "torchtitan" and draw.random() < 0.3:
        strategy["overlap"] = pick([{"grad_reduce": False}, {"param_gather": False}, {"tp_comm": True}])
    if framework in ("fsdp", "megatron", "torchtitan") and strategy["zero"] and draw.random() < 0.3:
        strategy["zero_shard_size"] = pick([2, 4, 8])
    return strategy


def patched(files: list[InputFile], diff: str) -> list[InputFile]:
    """The files after a unified diff, whose context has to be theirs."""
    parts = re.split(r"^--- (.*)\n\+\+\+ .*\n", diff, flags=re.MULTILINE)
    texts = {file.path: file.content for file in files}
    for path, body in zip(parts[1::2], parts[2::2], strict=True):
        old, new, at = texts[path].splitlines(), [], 0
        for hunk in re.split(r"^(?=@@ )", body, flags=re.MULTILINE)[1:]:
            head, *lines = hunk.splitlines()
            match = re.match(r"@@ -(\d+)(,0)?", head)
            assert match is not None
            start = int(match.group(1)) - (0 if match.group(2) else 1)
            new += old[at:start]
            at = start
            for line in lines:
                if line[:1] in (" ", "-"):
                    assert old[at] == line[1:]
                    at += 1
                if line[:1] in (" ", "+"):
                    new.append(line[1:])
        texts[path] = "\n".join([*new, *old[at:]]) + "\n"
    return [InputFile(path, content) for path, content in texts.items()]


def check(case: str, row: dict[str, Any]) -> str:
    try:
        written = {file.path: file.content for file in export_row(row, target_of(case))}
    except (InvalidInputError, NotExpressibleError):
        return "refused"
    files = [InputFile(path, written[path]) for path in CONFIGURATIONS[case]]
    answer = judge(files, given=Overrides(cluster=CLUSTER))
    # export -> import gives the plan back, and nothing in our own files is unknown.
    assert (answer["import"]["unknown"], answer["import"]["missing"]) == ([], [])
    assert changed_fields(launch_plan(row), launch_plan(answer["import"]["row"])) == {}
    if not answer["changes"]:
        assert answer["diff"] == ""
        return "the best"
    total = answer["current"]["step_time_s"] - answer["best"]["evaluation"]["step_time_s"]
    gains = [each["time_gain_s"] for each in answer["changes"] if each["time_gain_s"] is not None]
    assert sum(gains) + answer["interaction_s"] == pytest.approx(total)
    assert all(each["time_gain_s"] is not None or each["together_with"] or each["reason"] for each in answer["changes"])
    # Variables are no part of a plan; whatever else differs has a place in our own files.
    assert all(each["file"] or each["field"].startswith("$") for each in answer["changes"])
    again = judge(patched(files, answer["diff"]), given=Overrides(cluster=CLUSTER))
    best = launch_plan({**row, "strategy": answer["best"]["strategy"]})
    assert changed_fields(launch_plan(again["import"]["row"]), best) == {}
    assert (again["changes"], again["diff"], again["tie"], again["gain_fraction"]) == (
        [],
        "",
        True,
        pytest.approx(0.0, abs=1e-9),
    )
    return "improved"


def outcomes(seed: int, count: int) -> Counter[str]:
    draw = random.Random(seed)
    cases = [draw.choice(list(CONFIGURATIONS)) for _ in range(count)]
    return Counter(check(case, row_of(case, **drawn(case, draw))) for case in cases)


def test_the_diff_of_a_drawn_plan_leads_to_the_best_one() -> None:
    found = outcomes(5, 25)
    assert found["improved"] > 8


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_the_diffs_of_many_drawn_plans_lead_to_the_best_ones() -> None:
    found = outcomes(6, 600)
    assert found["improved"] > 250
