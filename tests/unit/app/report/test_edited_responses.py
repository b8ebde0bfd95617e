"""Responses that were changed by hand after they were written: what no page could be drawn from is refused with its place."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import meshwright
from app.report.build import build_report
from app.report.one_evaluation import evaluation_file
from app.report.sections.what_if import what_if
from cost_models.errors import InvalidInputError

GONE = object()


@pytest.fixture(scope="module")
def response() -> dict[str, Any]:
    return meshwright.plan(
        {
            "model": {"preset": "gpt3-1.3b"},
            "cluster": {"preset": "dgx-h100", "num_nodes": 1},
            "training": {"seq_length": 2048, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
            "include": ["pareto", "what_if"],
            "top_k": 3,
        }
    )


def _edited(response: dict[str, Any], pointer: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(response)
    *parents, last = [int(step) if step.isdigit() else step for step in pointer.strip("/").split("/")]
    target: Any = document
    for step in parents:
        target = target[step]
    if value is GONE:
        del target[last]
    else:
        target[last] = value
    return document


@pytest.mark.parametrize(
    ("pointer", "value", "told"),
    [
        ("/plans/0/evaluation/mfu", GONE, "mfu is null; it must be there"),
        ("/plans/0/evaluation/mfu", -0.5, "mfu is -0.5"),
        ("/what_if/0/mfu", GONE, "mfu is null; it must be there"),
        ("/plans/1/evaluation/step_time_s", -1.0, "-1.0; it must be a number above 0"),
        ("/plans/0/evaluation/step_time_range_s", [2.0, 1.0], "goes from 2.0 to 1.0"),
        ("/plans/0/evaluation/step_time_range_s", [-2.0, 1.0], "goes from -2.0 to 1.0"),
        ("/plans/0/evaluation/memory/peak_device_range_bytes", [2.0, 1.0], "goes from 2.0 to 1.0"),
        ("/plans/0/evaluation/memory/capacity_bytes", 0.0, "above 0"),
        ("/plans/0/evaluation/memory/stages", [], "stages holds 0 stages"),
        ("/plans/0/evaluation/memory/stages/0/stage", 7, "stage is 7; it must be 0"),
        ("/plans/0/evaluation/memory/stages/0/breakdown_bytes/parameters", GONE, "has no parameters"),
        ("/plans/0/evaluation/time_breakdown_s/gemm", GONE, "has no gemm"),
        ("/plans/0/evaluation/time_breakdown_s/gemm", -1.0, "must not be below 0"),
        ("/plans/0/evaluation/time_breakdown_s/gemm", 10**30, "above 1e+18"),
        ("/plans/0/evaluation/provenance/terms/optimizer", GONE, "has no optimizer"),
        ("/plans/0/evaluation/verdict", "oom", "fits or is at risk"),
        ("/plans/1/rank", 1, "rank is 1; it must be 2"),
        ("/plans/1/folded_under", 10**17, "rank of a better plan"),
        ("/plans/1/variant_of", 2, "rank of a better plan"),
        ("/ties", [{"tie_group": 1, "ranks": [1, 9], "measure": [1, 2]}], "holds 9"),
        ("/pareto/0/step_time_s", 1e308, "above 1e+18"),
        ("/pareto/0/cost_per_token", -1.0, "above 0"),
        ("/what_if/0/tokens_per_s_per_gpu", None, "tokens_per_s_per_gpu is null"),
        ("/what_if/1/speedup", None, "speedup is null"),
        ("/what_if/0/plan", GONE, "neither a plan nor a reason"),
        ("/what_if/0/value", 4, "once"),
        ("/request/constraints/memory_headroom_fraction", {}, "memory_headroom_fraction"),
        ("/request/constraints/memory_headroom_fraction", GONE, "has no memory_headroom_fraction"),
        ("/request/constraints/fixed", "x", "fixed"),
        ("/request/constraints/allowed/ep", 0, "ep"),
        ("/plans/0/evaluation/time_breakdown_s", GONE, "no time_breakdown_s"),
        ("/plans/0/evaluation/step_time_range_s", [0.0, 1.0], "must rise from above 0"),
        ("/plans/0/evaluation/provenance", None, "no provenance"),
        ("/plans/0/strategy", {}, "has no tp"),
        ("/search/not_searched", GONE, "left out"),
        ("/request/targets", GONE, "targets"),
    ],
)  # fmt: skip
def test_an_edited_response_is_refused_with_the_place_and_the_rule(response, pointer, value, told) -> None:
    with pytest.raises(InvalidInputError) as refused:
        build_report(_edited(response, pointer, value))
    problem = refused.value.problems[0]
    assert told in problem.message
    assert problem.hint


def test_a_response_as_it_was_written_passes(response) -> None:
    assert len(build_report(response).plans) == 3


@pytest.mark.parametrize(
    ("pointer", "value", "told"),
    [
        ("/rank", "x", "rank"),
        ("/evaluation/time_breakdown_s/gemm", GONE, "has no gemm"),
        ("/evaluation/memory/stages", [], "stages holds 0 stages"),
        ("/evaluation/step_time_range_s", [2.0, 1.0], "goes from 2.0 to 1.0"),
    ],
)
def test_an_edited_plan_alone_is_refused(response, pointer, value, told) -> None:
    with pytest.raises(InvalidInputError, match=told):
        evaluation_file(_edited(response["plans"][0], pointer, value))


def test_shares_of_an_unknown_peak_are_called_unknown(response) -> None:
    """No peak of a precision, and so no share of it, is known of every GPU."""
    unknown = copy.deepcopy(response)
    for entry in (*(plan["evaluation"] for plan in unknown["plans"]), *unknown["what_if"]):
        entry["mfu"] = None
    section = what_if(build_report(unknown))
    assert section is not None
    assert "unknown" in section.body


def test_an_answer_that_is_awaited_tells_its_state(response) -> None:
    awaited = response | {"status": "running", "plans": [], "model_revision": None, "search": None}
    with pytest.raises(InvalidInputError, match="its status is 'running'"):
        build_report(awaited)
