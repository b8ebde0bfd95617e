"""How one plan's fields are written in a cell of the table, fields that are absent included."""

from __future__ import annotations

from typing import Any

import pytest

from app.plan_cells import (
    TIERS,
    degree,
    degrees_above_one,
    memory_of_capacity,
    recomputed,
    seconds,
    share_of_step,
    tensor_parallel,
    throughput,
    worst_tier,
    zero_stage,
)
from planner.answer.step_cost import total_gpus

GIB = 2**30


def plan(**strategy: Any) -> dict[str, Any]:
    return {"strategy": strategy}


@pytest.mark.parametrize(("strategy", "text"), [({}, "1"), ({"pp": None}, "1"), ({"pp": 1}, "1"), ({"pp": 6}, "6")])
def test_a_degree_that_is_not_stated_is_one(strategy: dict[str, Any], text: str) -> None:
    assert degree("pp")(plan(**strategy)) == text


@pytest.mark.parametrize(
    ("strategy", "text"),
    [({}, "1"), ({"tp": 4}, "4"), ({"tp": 4, "sequence_parallel": True}, "4sp"), ({"sequence_parallel": False}, "1")],
)
def test_sequence_parallelism_is_marked_beside_tp(strategy: dict[str, Any], text: str) -> None:
    assert tensor_parallel(plan(**strategy)) == text


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        ({}, "0"),
        ({"zero": 0, "zero_shard_size": 2, "dp": 8}, "0"),
        ({"zero": 2}, "2"),
        ({"zero": 1, "zero_shard_size": 8, "dp": 4, "cp": 3}, "1/8"),  # of 12 replicas
        ({"zero": 1, "zero_shard_size": 12, "dp": 4, "cp": 3}, "1"),
        ({"zero": 1, "zero_shard_size": 6, "dp": 8}, "1/6"),
        ({"zero": 1, "zero_shard_size": 8, "dp": 8}, "1"),
        ({"zero": 3, "zero_shard_size": 2, "cp": 4}, "3/2"),
        ({"zero": 3, "zero_shard_size": 4, "cp": 4}, "3"),
        ({"zero": 3, "zero_shard_size": 1}, "3"),
    ],
)
def test_groups_smaller_than_all_replicas_are_told(strategy: dict[str, Any], text: str) -> None:
    assert zero_stage(plan(**strategy)) == text


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        ({}, "z0"),
        ({"pp": None, "dp": 1, "zero": 1}, "z1"),
        ({"pp": 2, "dp": 3, "cp": 4, "ep": 5, "vpp": 6, "tp": 7, "zero": 1}, "tp7 pp2 dp3 cp4 ep5 vpp6 z1"),
        ({"tp": 1, "sequence_parallel": True}, "tp1sp z0"),
    ],
)
def test_only_degrees_above_one_are_listed(strategy: dict[str, Any], text: str) -> None:
    assert degrees_above_one(plan(**strategy)) == text


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        ({}, "none"),
        ({"recompute": None, "recompute_num_layers": 4}, "none"),
        ({"recompute": "selective", "recompute_num_layers": 4}, "selective"),
        ({"recompute": "full"}, "full"),
        ({"recompute": "full", "recompute_num_layers": 4}, "full 4"),
    ],
)
def test_full_recomputation_of_some_layers_counts_them(strategy: dict[str, Any], text: str) -> None:
    assert recomputed(plan(**strategy)) == text


def evaluated(**evaluation: Any) -> dict[str, Any]:
    return {"evaluation": evaluation}


def test_memory_that_does_not_surely_fit_is_marked() -> None:
    memory = {"peak_device_bytes": 72.3 * GIB, "capacity_bytes": 79.6 * GIB}
    assert memory_of_capacity(evaluated(memory=memory, verdict="fits")) == "72.3/79.6"
    assert memory_of_capacity(evaluated(memory=memory, verdict="at-risk")) == "72.3/79.6!"


def test_throughput_is_that_of_all_gpus_in_use() -> None:
    assert throughput(evaluated(tokens_per_s_per_gpu=250.0, num_gpus_used=96)) == 24_000.0


@pytest.mark.parametrize(
    ("cluster", "count"),
    [
        ({"num_nodes": 3, "gpus_per_node": 4}, 12),
        ({"pools": [{"num_nodes": 3, "gpus_per_node": 4}, {"num_nodes": 2, "gpus_per_node": 8}]}, 28),
    ],
)
def test_the_gpus_of_all_pools_count(cluster: dict[str, Any], count: int) -> None:
    assert total_gpus(cluster) == count


def test_shares_are_of_the_step_and_terms_that_a_plan_lacks_are_nothing() -> None:
    took = evaluated(time_breakdown_s={"tp_comm": 0.5, "dp_comm": 1.5, "gemm": 6.0}, step_time_s=8.0)
    assert share_of_step("tp_comm", "dp_comm", "cp_comm")(took) == "25.0%"
    assert share_of_step("cp_comm")(took) == "0.0%"


@pytest.mark.parametrize(
    ("times", "tier"),
    [
        ({"a": 1.0, "b": 1.0, "c": 1.0}, TIERS[-1]),
        ({"a": 1.0, "b": 1.0, "c": 0.0}, TIERS[1]),
        ({"a": 1.0}, TIERS[0]),
        ({}, TIERS[0]),  # nothing takes time, so nothing is uncertain
    ],
)
def test_the_least_known_term_that_takes_time_gives_the_tier(times: dict[str, float], tier: str) -> None:
    terms = {"a": TIERS[0], "b": TIERS[1], "c": TIERS[-1]}
    assert worst_tier(evaluated(provenance={"terms": terms}, time_breakdown_s=times)) == tier


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.6, "1235"), (99.95, "100"), (99.94, "99.9"), (10.0, "10.0"), (9.995, "10.0"), (9.994, "9.99"),
        (1.0, "1.00"), (0.5, "0.500"), (140.0, "140"), (14.0, "14.0"),
    ],
)  # fmt: skip
def test_seconds_never_get_a_fourth_digit_by_rounding(value: float, text: str) -> None:
    assert seconds(value) == text
