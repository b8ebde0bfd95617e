"""What just fails, why, and the smallest change that makes it fit: applied, it really does."""

from __future__ import annotations

import math
from typing import Any

import pytest

from planner.explain import SHOWN, _changes, nearest_infeasible, smallest_changes
from planner.job_of import resolve_job
from planner.plan import plan
from planner.rows import evaluate_rows
from planner.schemas import StrategyInput
from planner.strategy_input import resolve_strategies, strategy_dict


def parts(memory_gib: float, *, framework: str = "megatron", nodes: int = 1, **model: Any) -> dict[str, Any]:
    gpu = {
        "name": "small", "memory_gib": memory_gib, "peak_tflops": {"bf16": 300}, "memory_bandwidth_gb_per_s": 2000,
        "nvlink_gb_per_s": 300,
    }  # fmt: skip
    return {
        "model": {"preset": "llama-3.2-1b", **model},
        "cluster": {"gpu": gpu, "num_nodes": nodes, "gpus_per_node": 4},
        "training": {"seq_length": 4096, "global_batch_size": 32, "precision": "bf16", "framework": framework},
    }


def full(document: dict[str, Any], **strategy: Any) -> dict[str, Any]:
    job = resolve_job(document)
    resolved = resolve_strategies(job, [StrategyInput.model_validate({"micro_batch_size": 1, "zero": 0, **strategy})])
    assert resolved.strategies is not None, resolved.problems
    return strategy_dict(resolved.strategies, 0)


def verdict(document: dict[str, Any], strategy: dict[str, Any]) -> str:
    (answer,) = evaluate_rows([{**document, "strategy": strategy}])
    return str(answer["verdict"])


def applied(document: dict[str, Any], strategy: dict[str, Any], name: str) -> dict[str, Any]:
    """The changed strategy that a change of this name stands for."""
    (changed,) = [changed for found, changed in _changes(resolve_job(document), strategy) if found == name]
    return changed


CASES = [
    (30, {"micro_batch_size": 4, "zero": 1}),
    (20, {"zero": 0}),
    (18, {"zero": 1, "recompute": "none"}),
    (14, {"zero": 1, "tp": 2, "sequence_parallel": False}),
    (14, {"zero": 1, "recompute": "full", "recompute_num_layers": 1}),
]


@pytest.mark.parametrize(("memory_gib", "strategy"), CASES)
def test_the_change_works(memory_gib, strategy) -> None:
    document = parts(memory_gib)
    given = full(document, **strategy)
    assert verdict(document, given) != "fits"
    (change,) = smallest_changes(resolve_job(document), [given], headroom_fraction=0.03)
    assert verdict(document, applied(document, given, change)) == "fits", change


@pytest.mark.parametrize(("memory_gib", "strategy"), CASES)
def test_no_milder_change_works(memory_gib, strategy) -> None:
    document = parts(memory_gib)
    given = full(document, **strategy)
    (change,) = smallest_changes(resolve_job(document), [given], headroom_fraction=0.03)
    for name, changed in _changes(resolve_job(document), given):
        if name == change:
            break
        assert verdict(document, changed) != "fits", name


def test_a_smaller_micro_batch_is_the_mildest_change() -> None:
    document = parts(30)
    given = full(document, micro_batch_size=4, zero=1)
    (change,) = smallest_changes(resolve_job(document), [given], headroom_fraction=0.03)
    assert change in {"micro_batch_size 2", "micro_batch_size 1"}


def test_where_no_single_change_is_enough_it_says_by_how_much() -> None:
    document = parts(4)
    (change,) = smallest_changes(resolve_job(document), [full(document, zero=0)], headroom_fraction=0.03)
    assert change.startswith("no single change is enough: ")
    assert "comes closest, still over by " in change
    assert "GiB a GPU" in change


def test_a_model_whose_states_alone_exceed_the_cluster_is_told_how_many_gpus_they_need() -> None:
    """405.9e9 parameters x 16 bytes (bf16, fp32 gradients, main copy, two moments) of 8 x 79.2 GiB with 3 % free."""
    document = {
        "model": {"preset": "llama-3.1-405b"},
        "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
        "training": {"seq_length": 8192, "global_batch_size": 16, "precision": "bf16", "framework": "megatron"},
    }
    (change,) = smallest_changes(resolve_job(document), [full(document, tp=8, zero=0)], headroom_fraction=0.03)
    job = resolve_job(document)
    needed = math.ceil(405_853_388_800 * 18 / (0.97 * job.cluster.capacity_bytes))
    assert change.endswith(f"alone need {needed} of these")


def test_the_headroom_of_the_request_counts() -> None:
    """What fits with 3 % free does not with 75 %: the change then leaves as much."""
    document = parts(60)
    given = full(document, micro_batch_size=2, zero=1)
    assert verdict(document, given) == "fits"
    (change,) = smallest_changes(resolve_job(document), [given], headroom_fraction=0.75)
    (answer,) = evaluate_rows([{**document, "strategy": applied(document, given, change)}])
    assert answer["memory"]["peak_device_range_bytes"][1] <= 0.25 * answer["memory"]["capacity_bytes"]


def test_nearest_plans_differ_in_a_degree() -> None:
    document = parts(6)
    job = resolve_job(document)
    inputs = [
        {"tp": tp, "dp": dp, "micro_batch_size": micro, "zero": 1}
        for tp, dp in ((1, 4), (2, 2), (4, 1))
        for micro in (1, 2)
    ]
    resolved = resolve_strategies(job, [StrategyInput.model_validate(given) for given in inputs]).strategies
    found = nearest_infeasible(job, resolved, headroom_fraction=0.03)
    assert [(each["strategy"]["tp"], each["strategy"]["micro_batch_size"]) for each in found] == [
        (1, 1),
        (2, 1),
        (4, 1),
    ]
    assert len(found) == SHOWN
    for each in found:
        assert {reason["code"] for reason in each["reasons"]} <= {"out-of-memory", "at-risk-of-memory"}
        assert each["reasons"]


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "deepspeed", "nanotron"])
def test_a_request_that_nothing_satisfies_says_what_to_change(framework) -> None:
    """Fixed to no recomputation and no sharding; each nearest plan's change really makes it fit, or says that none does."""
    document = parts(16, framework=framework)
    fixed = {"recompute": "none", "zero": 0, "micro_batch_size": 4, "tp": 1, "pp": 1, "cp": 1}
    answer = plan({**document, "constraints": {"fixed": fixed}})
    assert answer["plans"] == []
    assert answer["rejected"]["out-of-memory"] > 0
    assert answer["nearest_infeasible"]
    for each in answer["nearest_infeasible"]:
        assert verdict(document, each["strategy"]) in {"oom", "at-risk"}
        if not each["smallest_change"].startswith(("no single change", "use more")):
            assert verdict(document, applied(document, each["strategy"], each["smallest_change"])) == "fits"
