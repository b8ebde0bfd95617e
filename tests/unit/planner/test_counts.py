"""The counts of a search add up: every strategy of its space is bounded, rejected, feasible or left out by a stop."""

from __future__ import annotations

from typing import Any

import pytest

from builders import Document, dense_model, request_of, tiny_model, with_experts
from planner.plan import plan

TWO_POOLS = {
    "pools": [
        {"name": "old", "gpu": "A100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
        {"name": "new", "gpu": "H100-SXM-80GB", "num_nodes": 2, "gpus_per_node": 8},
    ]
}
SMALL: Document = {
    "name": "small", "memory_gib": 6, "peak_tflops": {"bf16": 200}, "memory_bandwidth_gb_per_s": 2000, "nvlink_gb_per_s": 200,
}  # fmt: skip
NARROW: Document = {"cp": 1, "micro_batch_size": 1}


def on_pools(framework: str = "megatron", **model: Any) -> Document:
    return {**request_of(dense_model(6, **model), framework), "cluster": TWO_POOLS, "constraints": {"fixed": NARROW}}


REQUESTS: dict[str, Document] = {
    "dense": request_of(dense_model(8)),
    "knobs that matter in some strategies only": {
        **request_of(with_experts(dense_model(4)), num_nodes=2),
        "constraints": {"allowed": {"moe_dispatcher": ["alltoall", "allgather"], "cp_comm": ["p2p", "a2a"]}},
    },
    "targets": {**request_of(dense_model(8)), "targets": {"min_tokens_per_s": 1_300_000}, "objective": "fewest_gpus"},
    "nothing fits": request_of(dense_model(8, hidden_size=32768, num_attention_heads=8, intermediate_size=131072)),
    "little fits, and what does not has smaller groups": request_of(dense_model(8), "deepspeed", gpu=SMALL),
    "nothing fits without offload": request_of(
        dense_model(10, hidden_size=16384, num_attention_heads=128, intermediate_size=53248)
    ),
    "schedules that nobody asked for": request_of(dense_model(8), "torchtitan", global_batch_size=4),
    "dispatchers that nobody asked for": request_of(with_experts(dense_model(4)), num_nodes=2),
    "open splits": {**request_of(dense_model(7, vocab_size=250_000)), "include": ["open_splits"]},
    "no degrees suit": {**request_of(tiny_model(4)), "constraints": {"fixed": {"tp": 3}}},
    "pools": on_pools(),
    "pools whose splits cannot be told": on_pools("deepspeed"),
    "pools and a listed split": {
        **on_pools(),
        "constraints": {"fixed": {**NARROW, "pp": 2}, "allowed": {"layers_per_stage": [[2, 4], [3, 3]]}},
    },
    "pools that are too small": on_pools(hidden_size=32768, intermediate_size=131072),
    "pools and targets": {**on_pools(), "targets": {"min_tokens_per_s": 1_500_000}},
}


def sum_of(response: Document) -> int:
    search = response["search"]
    return int(search["bounded"] + sum(response["rejected"].values()) + search["feasible"] + search["unsearched"])


@pytest.mark.parametrize("name", REQUESTS)
def test_every_strategy_is_counted_once(name: str) -> None:
    response = plan(REQUESTS[name])
    search = response["search"]
    assert search["total"] == sum_of(response) > 0
    assert search["unsearched"] == 0
    assert len(response["plans"]) <= search["feasible"] <= search["evaluated"] <= search["total"]
    missed = search["evaluated"] - search["feasible"]
    assert missed <= response["rejected"].get("misses-target", 0)
    for each in ("bounded", *response["rejected"]):
        assert search.get(each, response["rejected"].get(each)) >= 0


@pytest.mark.parametrize("name", ["dense", "open splits", "pools", "pools whose splits cannot be told"])
@pytest.mark.parametrize("answers", [0, 1, 2])
def test_what_a_stop_leaves_out_is_counted(name: str, answers: int) -> None:
    asked = iter([False] * answers)
    response = plan(REQUESTS[name], should_stop=lambda: next(asked, True))
    search = response["search"]
    assert response["status"] == "cancelled"
    assert search["total"] == sum_of(response)
    assert 0 <= search["feasible"] <= search["evaluated"]
    if not answers:
        assert search["unsearched"] > 0
