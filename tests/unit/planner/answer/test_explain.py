"""What just fails, why, and the smallest change that makes it fit: applied, it really does."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cost_models.job import Job, PooledJob
from planner.answer.changes import ADAPTER, EIGHT_BIT, QUANTIZED, Change, changes, single_changes
from planner.answer.explain import SHOWN, fitting_changes, nearest_infeasible
from planner.plan import plan
from planner.request.job import resolve_job
from planner.rows import evaluate_rows
from planner.schemas import StrategyInput
from planner.strategies.parse import resolve_strategies
from planner.strategies.told import strategy_dict


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


TRAINING_EDITS: dict[str, Any] = {
    "": {},
    EIGHT_BIT: {"optimizer": "adam-8bit"},
    ADAPTER: {"adapter": {"rank": 16}},
    QUANTIZED: {"adapter": {"rank": 16, "quantized_base": "nf4"}},
}


def applied(document: dict[str, Any], strategy: dict[str, Any], told: str) -> str:
    """The verdict of the strategy that this change makes, what it says of the host left out."""
    name = told.split(" (which ", maxsplit=1)[0]
    (change,) = [each for each in changes(resolve_job(document), strategy) if each.name == name]
    return changed_verdict(document, change)


def changed_verdict(document: dict[str, Any], change: Change) -> str:
    edit = TRAINING_EDITS[change.edit]
    return verdict({**document, "training": {**document["training"], **edit}}, change.strategy)


def smallest_change(job: Job, strategy: dict[str, Any], *, headroom_fraction: float) -> str:
    return fitting_changes(job, [strategy], headroom_fraction=headroom_fraction).told(0)


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
    change = smallest_change(resolve_job(document), given, headroom_fraction=0.03)
    assert applied(document, given, change) == "fits", change


@pytest.mark.parametrize(("memory_gib", "strategy"), CASES)
def test_no_milder_change_works(memory_gib, strategy) -> None:
    document = parts(memory_gib)
    given = full(document, **strategy)
    change = smallest_change(resolve_job(document), given, headroom_fraction=0.03)
    for tried in changes(resolve_job(document), given):
        if tried.name == change.split(" (which needs ", maxsplit=1)[0]:
            break
        assert changed_verdict(document, tried) != "fits", tried.name


def test_a_smaller_micro_batch_is_the_mildest_change() -> None:
    document = parts(30)
    given = full(document, micro_batch_size=4, zero=1)
    change = smallest_change(resolve_job(document), given, headroom_fraction=0.03)
    assert change in {"micro_batch_size 2", "micro_batch_size 1"}


def test_where_no_change_is_enough_it_says_by_how_much() -> None:
    document = parts(4)
    change = smallest_change(resolve_job(document), full(document, zero=0), headroom_fraction=0.03)
    assert change.startswith("no change is enough, alone or with others: ")
    assert "comes closest and is still " in change
    assert "GiB per GPU too large" in change


def test_a_model_whose_states_alone_exceed_the_cluster_is_told_how_many_gpus_they_need() -> None:
    """405.9e9 parameters x 16 bytes (bf16, fp32 gradients, main copy, two moments) of 8 x 79.2 GiB with 3 % free."""
    document = {
        "model": {"preset": "llama-3.1-405b"},
        "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
        "training": {"seq_length": 8192, "global_batch_size": 16, "precision": "bf16", "framework": "megatron"},
    }
    change = smallest_change(resolve_job(document), full(document, tp=8, zero=0), headroom_fraction=0.03)
    job = resolve_job(document)
    needed = math.ceil(405_853_388_800 * 18 / (0.97 * job.cluster.capacity_bytes))
    assert change.endswith(f"alone need {needed} of this kind")


def test_the_headroom_of_the_request_counts() -> None:
    """What fits with 3 % free does not with 75 %: the change then leaves as much."""
    document = parts(60)
    given = full(document, micro_batch_size=2, zero=1)
    assert verdict(document, given) == "fits"
    change = smallest_change(resolve_job(document), given, headroom_fraction=0.75)
    (changed,) = [each.strategy for each in changes(resolve_job(document), given) if each.name == change]
    (answer,) = evaluate_rows([{**document, "strategy": changed}])
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
    found = nearest_infeasible(PooledJob.of_one_kind(job), resolved, headroom_fraction=0.03)
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
        if not each["smallest_change"].startswith(("no change", "use more")):
            assert applied(document, each["strategy"], each["smallest_change"]) == "fits"


CARDS = {
    "model": {"preset": "llama-3.1-8b"},
    "cluster": {"gpu": "RTX4090-24GB", "num_nodes": 1, "gpus_per_node": 2},
    "training": {"seq_length": 2048, "global_batch_size": 8, "precision": "bf16", "framework": "fsdp"},
}


def test_two_cards_are_told_to_offload() -> None:
    """8.03e9 parameters: 24 bytes each on the host (16 and half as much again) and 3 GB a process, 185 GiB."""
    answer = plan({**CARDS, "constraints": {"fixed": {"offload": {"optimizer_fraction": 0.0}}}})
    assert answer["plans"] == []
    change = answer["nearest_infeasible"][0]["smallest_change"]
    assert change.startswith("offload {optimizer_fraction: 1, parameters: true} (which needs ")
    gib = (8.03e9 * 24 + 2 * 3e9) / 2**30
    assert f"needs {gib:.0f} GiB of host memory a node; host_memory_gib is not given" in change
    assert applied(CARDS, answer["nearest_infeasible"][0]["strategy"], change) == "fits"


def test_a_host_that_is_known_to_be_too_small_takes_no_offload() -> None:
    small = {**CARDS, "cluster": {**CARDS["cluster"], "host_memory_gib": 128}}
    for each in plan(small)["nearest_infeasible"]:
        assert each["smallest_change"].startswith(("no change is enough", "use more", "training.adapter"))


def test_cards_that_cannot_train_a_whole_model_are_told_to_train_an_adapter() -> None:
    """16 bytes a parameter do not fit two cards, 2 do: 41,943,040 of 8,072,204,288 are 0.52 %."""
    small = {**CARDS, "cluster": {**CARDS["cluster"], "host_memory_gib": 128}}
    nearest = plan(small)["nearest_infeasible"][0]
    assert nearest["smallest_change"] == "training.adapter {rank: 16} (which trains 0.52 % of the parameters)"
    assert applied(small, nearest["strategy"], nearest["smallest_change"]) == "fits"


def test_changes_are_tried_together() -> None:
    """Without recomputation the activations of 4k tokens fill a card; with it the states alone do."""
    long = {**CARDS, "training": {**CARDS["training"], "seq_length": 4096}}
    given = full(long, zero=3, recompute="none", grad_sync="each")
    change = smallest_change(resolve_job(long), given, headroom_fraction=0.03)
    assert change.startswith("recompute full and offload {optimizer_fraction: 1, parameters: true} (")
    assert applied(long, given, change) == "fits"


def test_gradients_that_wait_unsharded_are_told_not_to() -> None:
    """Llama-3.1-8B on eight A100 of 40 GiB: its bf16 gradients, 15 GiB, wait for the last micro-batch unless reduced in each,
    as 3.7 GiB of fp32 shards.
    """
    document = {
        "model": {"preset": "llama-3.1-8b"},
        "cluster": {"gpu": "A100-SXM-40GB", "num_nodes": 1, "gpus_per_node": 8},
        "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "fsdp"},
    }
    given = full(document, zero=3, recompute="full")
    assert given["grad_sync"] == "last"
    change = smallest_change(resolve_job(document), given, headroom_fraction=0.03)
    assert change == "grad_sync each"
    assert verdict(document, {**given, "grad_sync": "each"}) == "fits"


def test_an_eight_bit_adam_is_tried() -> None:
    """llama-3.2-1b, 1.24e9 parameters in fp32 over 4 tensor-parallel GPUs, so that no degree is left: 16 bytes a parameter
    are 5.0 GB a GPU, with 8-bit moments 3.1. The last size that is too small for the first is enough for the second.
    """
    for memory_gib in range(30, 60):
        document = parts(memory_gib / 5, framework="fsdp")
        given = full(document, tp=4, zero=3, recompute="full", grad_sync="each")
        if verdict(document, given) == "fits":
            break
        change = smallest_change(resolve_job(document), given, headroom_fraction=0.03)
        last = change
    assert last == "training.optimizer adam-8bit"
    assert memory_gib > 30


def test_a_plan_that_a_change_makes_fit_comes_first() -> None:
    """DeepSpeed offloads nothing of bf16 pipelines, so two stages stay too full whatever is changed beside their degree."""
    document = {**CARDS, "training": {**CARDS["training"], "framework": "deepspeed"}}
    job = resolve_job(document)
    inputs = [
        {"pp": 2, "dp": 1, "zero": 1, "micro_batch_size": 1, "recompute": "full"},
        {"pp": 1, "dp": 2, "zero": 3, "micro_batch_size": 1, "recompute": "full"},
    ]
    resolved = resolve_strategies(job, [StrategyInput.model_validate(given) for given in inputs]).strategies
    found = nearest_infeasible(PooledJob.of_one_kind(job), resolved, headroom_fraction=0.03)
    assert [each["strategy"]["pp"] for each in found] == [1, 2]
    assert "offload {" in found[0]["smallest_change"]
    assert found[1]["smallest_change"].startswith("no change is enough")


def test_an_offload_that_a_framework_cannot_do_is_said() -> None:
    answer = plan({**CARDS, "constraints": {"fixed": {"offload": {"optimizer_fraction": 1.0}}}})
    assert answer["plans"] == []
    assert answer["rejected"]["offload-unsupported"] > 0
    assert "out-of-memory" not in answer["rejected"]
    messages = [reason["message"] for each in answer["nearest_infeasible"] for reason in each["reasons"]]
    assert "fsdp can offload parameters and the whole optimizer only together" in messages


@pytest.mark.parametrize(("zero", "sync", "tried"), [(2, "last", True), (3, "last", True), (2, "each", False)])
def test_gradients_that_shards_could_hold_are_reduced_at_once(zero: int, sync: str, tried: bool) -> None:
    document = parts(20, framework="fsdp")
    given = full(document, zero=zero, grad_sync=sync)
    assert ("grad_sync each" in [change.name for change in single_changes(resolve_job(document), given)]) is tried


@pytest.mark.parametrize(("now", "tried"), [("none", ["selective", "full"]), ("selective", ["full"]), ("full", [])])
def test_only_more_recomputation_is_tried(now: str, tried: list[str]) -> None:
    document = parts(20)
    names = [change.name for change in single_changes(resolve_job(document), full(document, recompute=now))]
    assert [name for name in names if name.startswith("recompute ")] == [f"recompute {mode}" for mode in tried]
