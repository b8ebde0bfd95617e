"""One plan in full: which layers a stage holds, idle GPUs, what is priced again, and which plans it is compared with."""

from __future__ import annotations

from typing import Any

import pytest

import meshwright
from cost_models.errors import InvalidInputError
from planner.one_plan.detail import plan_detail, ranking

REQUEST = {
    "model": {"preset": "gpt3-1.3b"},
    "cluster": {"preset": "dgx-h100", "num_nodes": 1},
    "training": {"seq_length": 2048, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
}


@pytest.fixture(scope="module")
def response() -> dict[str, Any]:
    return meshwright.plan({**REQUEST, "top_k": 3})


def entry_of(**strategy: Any) -> dict[str, Any]:
    """A ranked plan of that strategy, priced as a row."""
    row = {**REQUEST, "strategy": {"micro_batch_size": 1, "zero": 1, **strategy}}
    (evaluation,) = meshwright.evaluate([row])
    return {"rank": 1, "tie_group": 1, "strategy": row["strategy"], "evaluation": evaluation}


@pytest.mark.parametrize(
    ("strategy", "layers"),
    [
        ({"pp": 2, "dp": 4, "layers_per_stage": [11, 13]}, [[[1, 11]], [[12, 24]]]),
        # Interleaved: stage 0 holds the first and the third chunk.
        ({"pp": 2, "dp": 4, "vpp": 2, "layers_per_stage": [5, 6, 7, 6]}, [[[1, 5], [12, 18]], [[6, 11], [19, 24]]]),
        # A V turns back on the last stage: stage 0 holds the first and the last chunk.
        ({"pp": 2, "dp": 4, "vpp": 2, "schedule": "zb-v", "layers_per_stage": [5, 6, 7, 6]},
         [[[1, 5], [19, 24]], [[6, 11], [12, 18]]]),
        ({"pp": 4, "dp": 2, "layers_per_stage": [8, 8, 8, 0]}, [[[1, 8]], [[9, 16]], [[17, 24]], []]),
    ],
)  # fmt: skip
def test_layers_of_each_stage_are_counted_from_one_in_model_order(strategy, layers) -> None:
    entry = entry_of(pp=2, dp=4)
    assert plan_detail({**entry, "strategy": {**entry["strategy"], **strategy}})["layers"] == layers


def test_idle_gpus_are_those_of_the_cluster_that_the_plan_leaves() -> None:
    """tp 2 x pp 1 x dp 4 are 8 of the 24 GPUs on three nodes."""
    request = {**REQUEST, "cluster": {"preset": "dgx-h100", "num_nodes": 3}, "top_k": 1}
    request["constraints"] = {"fixed": {"tp": 2, "pp": 1, "cp": 1, "dp": 4}}
    assert plan_detail(meshwright.plan(request))["gpus"] == {"total": 24, "used": 8, "idle": 16}


def test_stages_that_a_summary_leaves_out_are_priced_again(response) -> None:
    plan = response["plans"][1]
    memory = {**plan["evaluation"]["memory"], "stages": None}
    summary = {**plan, "evaluation": {**plan["evaluation"], "memory": memory}}
    detail = plan_detail({**response, "plans": [response["plans"][0], summary]}, 2)
    assert detail["evaluation"]["memory"] == plan["evaluation"]["memory"]


@pytest.mark.parametrize("field", ["product_version", "model_revision"])
def test_a_summary_of_another_revision_is_refused_with_a_hint(response, field) -> None:
    plan = response["plans"][0]
    memory = {**plan["evaluation"]["memory"], "stages": None}
    summary = {**plan, "evaluation": {**plan["evaluation"], "memory": memory}}
    with pytest.raises(InvalidInputError, match="written by meshwright") as refused:
        plan_detail({**response, field: "0.0.9", "plans": [summary]})
    assert "plan again" in refused.value.problems[0].hint
    assert refused.value.problems[0].code == "other-revision"


def test_a_whole_response_of_another_revision_is_shown_without_neighbours(response) -> None:
    detail = plan_detail({**response, "model_revision": "0123456789ab"})
    assert detail["neighbours"] is None
    assert "0123456789ab" in detail["not_shown"][0]
    assert response["plans"][0]["evaluation"].items() <= detail["evaluation"].items()


def test_a_summary_that_is_priced_differently_now_is_refused(response) -> None:
    """The time was edited, as another calibration under the same name would have changed it."""
    plan = response["plans"][0]
    evaluation = {**plan["evaluation"], "step_time_s": plan["evaluation"]["step_time_s"] * 1.001}
    summary = {**plan, "evaluation": {**evaluation, "memory": {**evaluation["memory"], "stages": None}}}
    with pytest.raises(InvalidInputError, match="cannot be priced as it was"):
        plan_detail({**response, "plans": [summary]})
    detail = plan_detail({**response, "plans": [{**plan, "evaluation": evaluation}]})
    assert detail["neighbours"] is None
    assert "when it was planned" in detail["not_shown"][0]


def test_a_summary_without_its_request_cannot_be_completed() -> None:
    entry = entry_of(tp=2)
    entry["evaluation"]["memory"]["stages"] = None
    with pytest.raises(InvalidInputError, match="without the stages"):
        plan_detail(entry)


def test_an_evaluation_says_what_it_does_not_hold() -> None:
    detail = plan_detail(entry_of(tp=2)["evaluation"])
    assert detail["strategy"] is detail["layers"] is detail["neighbours"] is None
    assert detail["gpus"] == {"total": None, "used": 8, "idle": None}
    assert "does not hold its row" in detail["not_shown"][0]


def test_an_invalid_evaluation_is_shown_with_its_reasons_alone() -> None:
    detail = plan_detail(entry_of(tp=3)["evaluation"])
    assert detail["evaluation"]["verdict"] == "invalid"
    assert detail["evaluation"]["reasons"]
    assert detail["gpus"]["used"] is None


def ranked(rank: int, step_s: float, *, group: int = 1, told: str | None = None, folded: int | None = None, **strategy):
    return {
        "rank": rank, "tie_group": group, "strategy": {"tp": 2, **strategy}, "folded_under": folded, "against_next": told,
        "evaluation": {"verdict": "fits", "step_time_s": step_s, "time_breakdown_s": {"gemm": step_s}, "num_gpus_used": 8},
    }  # fmt: skip


def test_a_plan_is_compared_with_the_plans_before_and_after_it() -> None:
    """2.0 s are 20 % less than 2.5 s, all of it in matrix products; plan 1's own sentence is about plan 3."""
    plans = [
        ranked(1, 2.0, told="33.3% faster than plan 3"),
        ranked(2, 2.5, told="16.7% faster than plan 3", folded=1, zero=1),
        ranked(3, 3.0, group=2),
    ]
    response = {"request": {"cluster": {"num_nodes": 1, "gpus_per_node": 8}}, "plans": plans}
    assert ranking(response, 2) == [
        "Plan 2 is a near-copy of plan 1, as fast to within 1 %; it differs in zero.",
        "Plan 1 is 20.0% faster than plan 2: relative to that plan's step, it spends 20.0% less on matrix products.",
        "Plan 2 is 16.7% faster than plan 3.",
        "Too close to call: plans 1 and 2.",
    ]
    assert ranking(response, 3) == ["Plan 2 is 16.7% faster than plan 3."]
    assert ranking(response, 1)[0] == "Plan 1 is 33.3% faster than plan 3."


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"plans": 7}, "plans"),
        ({"plans": [{}]}, "rank"),
        ({"request": {}}, "no model"),
        ({"request": {**REQUEST, "cluster": {"num_nodes": 1}}}, "gpus_per_node"),
        ({"request": {**REQUEST, "cluster": {"num_nodes": True, "gpus_per_node": 8}}}, "num_nodes"),
        ({"request": {**REQUEST, "cluster": {"num_nodes": 1, "gpus_per_node": 8}, "training": {}}}, "seq_length"),
        ({"status": "running", "plans": []}, "running"),
        ({"plans": []}, "no plan 1"),
    ],
)
def test_broken_responses_are_refused_with_the_field(response, change, words) -> None:
    with pytest.raises(InvalidInputError) as refused:
        plan_detail({**response, **change})
    assert words in " ".join(f"{problem.pointer} {problem.message}" for problem in refused.value.problems)


@pytest.mark.parametrize(
    ("rank", "asked", "hint"),
    [
        (37, 1, "Ranks: 1 to 1. Plan again with --top 37 --json, or over HTTP with a top_k of 37."),
        # It was asked for more than it holds, so that another request would find no more.
        (37, 10, "Ranks: 1 to 1."),
        # No request may ask for more than a thousand.
        (1001, 1, "Ranks: 1 to 1."),
    ],
)
def test_a_rank_that_the_response_lacks_is_refused_with_how_to_get_it(response, rank, asked, hint) -> None:
    request = {**response["request"], "top_k": asked}
    with pytest.raises(InvalidInputError) as refused:
        plan_detail({**response, "request": request, "plans": response["plans"][:1]}, rank)
    (problem,) = refused.value.problems
    assert (problem.message, problem.hint) == (f"the response has no plan {rank}", hint)


def test_a_response_with_fields_of_another_version_is_refused_with_that_version(response) -> None:
    with pytest.raises(InvalidInputError, match=r"meshwright 9\.9"):
        plan_detail({**response, "product_version": "9.9", "colour": "blue"})


def test_a_ranked_plan_whose_split_does_not_match_its_degrees_is_refused() -> None:
    entry = entry_of(pp=2, dp=4)
    with pytest.raises(InvalidInputError, match="lists 3 virtual stages"):
        plan_detail({**entry, "strategy": {**entry["strategy"], "layers_per_stage": [8, 8, 8]}})


def test_an_evaluation_without_its_numbers_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="no num_gpus_used"):
        plan_detail({"verdict": "fits", "reasons": []})


def test_a_ranked_plan_is_not_another_one() -> None:
    with pytest.raises(InvalidInputError, match="holds plan 1 alone"):
        plan_detail(entry_of(tp=2), 2)
