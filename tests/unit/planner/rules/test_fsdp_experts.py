"""Experts under PyTorch's FSDP2: what transformers' DistributedConfig takes, asked of that class itself, and what it does not."""

from __future__ import annotations

import contextlib

import pytest

from builders import Document, job_of, llama_model, row_of, with_experts
from planner.rules import reasons

MOE = with_experts(llama_model(vocab_size=32000), expert_intermediate_size=14336)
NEW = {"software_date": "2026-11"}
SPLIT = {"zero": 3, "micro_batch_size": 1, "ep": 4}


def codes(strategy: Document, **training: object) -> list[str]:
    job = job_of(MOE, "fsdp", **{**NEW, **training})
    return [reason["code"] for reason in reasons(job, row_of(job, **{**SPLIT, **strategy}), 0)]


@pytest.mark.parametrize(
    ("strategy", "training", "code"),
    [
        ({}, {}, None),
        ({"zero_shard_size": 4}, {}, None),
        ({"tp": 2, "sequence_parallel": False}, {}, None),
        ({}, {"software_date": "2026-10"}, "expert-parallel-unsupported"),
        ({"zero": 2}, {}, "expert-parallel-unsupported"),
        ({"zero": 0}, {}, "expert-parallel-unsupported"),
        ({"cp": 2}, {}, "expert-parallel-unsupported"),
        ({"tp": 2, "sequence_parallel": True}, {}, "expert-parallel-unsupported"),
        ({"tp": 4, "ep": 2, "sequence_parallel": False}, {}, "expert-ranks-not-divisible"),
        ({"ep": 8, "zero_shard_size": 4}, {}, "expert-ranks-not-divisible"),
        ({"tp": 2, "etp": 2, "sequence_parallel": False}, {}, "expert-tensor-parallel-unsupported"),
        ({}, {"model_impl": "liger"}, "expert-parallel-unsupported"),
        ({}, {"model_impl": "native"}, "expert-parallel-unsupported"),
        ({}, {"adapter": {"rank": 8}}, "expert-parallel-unsupported"),
        ({"moe_dispatcher": "allgather"}, {}, "dispatcher-unsupported"),
    ],
)
def test_what_splits_experts_under_fsdp(strategy: Document, training: Document, code: str | None):
    found = codes(strategy, **training)
    assert found == [] if code is None else code in found


@pytest.mark.parametrize(
    ("tp", "ep", "shards"), [(1, 4, 8), (1, 8, 4), (2, 4, 4), (4, 2, 2), (2, 8, 2), (1, 2, 8), (2, 8, 4)]
)
def test_the_class_takes_the_same_degrees(tp: int, ep: int, shards: int):
    """`DistributedConfig` of 5.24 compares ep with tp and with the ranks of one sharded copy."""
    distributed = pytest.importorskip("transformers.distributed")
    refused = True
    with contextlib.suppress(ValueError):
        distributed.DistributedConfig(tp_size=tp, ep_size=ep, fsdp_size=shards)
        refused = False
    strategy = {"tp": tp, "ep": ep, "zero_shard_size": shards, **({"sequence_parallel": False} if tp > 1 else {})}
    assert bool(codes(strategy)) is refused
