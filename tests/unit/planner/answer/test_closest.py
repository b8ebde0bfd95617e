"""Where no plan is left: the sentences on what ruled them out, and the nearest plan where rules or targets did."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from planner.answer.rejections import REJECTIONS, rejections
from planner.plan import plan
from planner.rows import evaluate_rows
from planner.rules import rule_codes
from planner.schemas.evaluation import ReasonCode

JOB: dict[str, Any] = {
    "model": {"preset": "llama-3.2-1b"},
    "cluster": {"preset": "dgx-h100", "num_nodes": 1},
    "training": {"seq_length": 2048, "global_batch_size": 32, "precision": "bf16", "framework": "fsdp"},
}


def answered(framework: str = "fsdp", *, pools: bool = False, **more: Any) -> dict[str, Any]:
    cluster = (
        {"pools": [{"name": name, "preset": "dgx-h100", "num_nodes": 1} for name in ("one", "two")]} if pools else {}
    )
    training = JOB["training"] | {"framework": framework}
    return plan(JOB | {"training": training} | ({"cluster": cluster} if pools else {}) | more)


def test_every_code_that_can_rule_a_strategy_out_has_words() -> None:
    searched = {*rule_codes(), "out-of-memory", "at-risk-of-memory", "misses-target", "unequal-data-parallel-shares"}
    assert searched <= set(REJECTIONS)
    assert set(REJECTIONS) <= set(get_args(ReasonCode))


def test_what_ruled_out_strategies_is_told_in_words_the_commonest_first() -> None:
    told = rejections({"heads-not-divisible": 20, "out-of-memory": 3000, "split-unsupported": 2}, most=2)
    assert told == (
        "3,000 need more memory than a GPU has (out-of-memory); 20 have a tp that does not divide the attention heads "
        "(heads-not-divisible); 2 are ruled out for 1 other reason"
    )
    assert rejections({}, most=3) == ""


def test_a_rule_that_leaves_nothing_is_told_with_the_nearest_plan() -> None:
    """FSDP has no pipeline: the nearest strategy breaks that rule alone, on all 8 GPUs, and pp 1 makes it run."""
    response = answered(constraints={"fixed": {"pp": 2}})
    assert set(response["rejected"]) == {"pipeline-unsupported"}
    nearest = response["nearest_infeasible"][0]
    assert [reason["code"] for reason in nearest["reasons"]] == ["pipeline-unsupported"]
    assert nearest["smallest_change"] == "pp 2 -> 1"
    strategy = nearest["strategy"]
    assert strategy["tp"] * strategy["pp"] * strategy["cp"] * strategy["dp"] == 8
    changed = {name: value for name, value in strategy.items() if name not in ("layers_per_stage", "zero_shard_size")}
    changed |= {"pp": 1, "dp": 2 * strategy["dp"]}
    assert next(iter(evaluate_rows([{**JOB, "strategy": changed}])))["verdict"] == "fits"


def test_every_rule_that_the_nearest_plan_breaks_asks_for_its_change_in_their_order() -> None:
    """FSDP has no pipeline, and a dense model no experts to spread: rules on pipelines come before those on experts."""
    response = answered(constraints={"fixed": {"ep": 4, "pp": 2}})
    nearest = response["nearest_infeasible"][0]
    assert [reason["code"] for reason in nearest["reasons"]] == ["pipeline-unsupported", "experts-missing"]
    assert nearest["smallest_change"] == "pp 2 -> 1; ep 4 -> 1"


def test_a_search_that_was_stopped_at_once_blames_no_rule() -> None:
    assert answered(time_limit_s=1e-6)["nearest_infeasible"] == []


def test_a_rule_on_what_the_degrees_leave_open_is_told_too() -> None:
    response = answered("deepspeed", constraints={"fixed": {"pp": 2, "zero": 3}})
    codes = [reason["code"] for reason in response["nearest_infeasible"][0]["reasons"]]
    assert codes == ["zero-with-pipeline"]


def test_every_rule_that_the_nearest_plan_breaks_has_its_change() -> None:
    """The model has no experts to spread, and virtual stages need a pipeline."""
    response = answered("megatron", constraints={"fixed": {"tp": 4, "ep": 2, "vpp": 2, "pp": 1}})
    change = response["nearest_infeasible"][0]["smallest_change"]
    assert "ep 2 -> 1" in change
    assert "vpp" in change


@pytest.mark.parametrize("pools", [False, True])
def test_a_target_out_of_reach_is_told_with_the_fastest_plan(pools: bool) -> None:
    """32 x 2,048 = 65,536 tokens a step; the target that the nearest plan reaches is reached when asked for."""
    given = {
        "framework": "megatron" if pools else "fsdp",
        "pools": pools,
        # Without virtual stages, which make a search on pools a hundred times as long.
        "constraints": {"fixed": {"cp": 1, "micro_batch_size": 1, "recompute": "none", "vpp": 1}},
    }
    response = answered(**given, targets={"min_tokens_per_s": 1e9})
    assert response["plans"] == []
    nearest = response["nearest_infeasible"][0]
    reason = nearest["reasons"][0]
    assert reason["code"] == "misses-target"
    assert "6.554e-05 s (1,000,000,000 tokens/s)" in reason["message"]
    fastest = answered(**given)["plans"][0]
    assert nearest["strategy"]["tp"] == fastest["strategy"]["tp"]
    reached = int(65536 / fastest["evaluation"]["step_time_s"])
    assert nearest["smallest_change"] == f"a target of at most {reached:,} tokens/s"
    assert answered(**given, targets={"min_tokens_per_s": float(reached)})["plans"]
