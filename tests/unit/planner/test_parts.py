"""Parts of the search that can be left out: a bound changes no plan, and an axis is worth having."""

from __future__ import annotations

import pytest

from builders import Document, dense_model, request_of, with_experts
from planner.plan import plan_checked
from planner.request.checked_request import check_request
from planner.strategies.parts import BOUNDS, Part

SMALL: Document = {
    "name": "small", "memory_gib": 24, "peak_tflops": {"bf16": 200}, "memory_bandwidth_gb_per_s": 2000, "nvlink_gb_per_s": 200,
}  # fmt: skip
DENSE = request_of(dense_model(10), num_nodes=2, gpu=SMALL)
SHARDED = request_of(dense_model(8), "fsdp", num_nodes=2, gpu=SMALL)
MIXTURE = request_of(with_experts(dense_model(6)), num_nodes=2, gpu=SMALL)


def answer(request: Document, *without: Part) -> Document:
    return plan_checked(check_request(request), without=frozenset(without))


@pytest.mark.parametrize("part", sorted(BOUNDS))
@pytest.mark.parametrize("request_", [DENSE, SHARDED, MIXTURE], ids=["dense", "sharded", "mixture"])
def test_without_a_bound_the_plans_are_the_same(request_: Document, part: Part) -> None:
    with_it, without = answer(request_), answer(request_, part)
    assert without["plans"] == with_it["plans"]
    assert without["search"]["total"] == with_it["search"]["total"]
    assert without["search"]["proof"] == with_it["search"]["proof"]


def test_all_bounds_together_save_most_of_the_work() -> None:
    assert answer(DENSE, *BOUNDS)["search"]["evaluated"] > 4 * answer(DENSE)["search"]["evaluated"]
    assert answer(DENSE, *BOUNDS)["plans"] == answer(DENSE)["plans"]


def job(model: str, cluster: str, nodes: int, seq_length: int, batch: int, **training: object) -> Document:
    given = {
        "framework": "megatron",
        "precision": "bf16",
        "seq_length": seq_length,
        "global_batch_size": batch,
        **training,
    }
    return {
        "model": {"preset": model},
        "cluster": {"preset": cluster, "num_nodes": nodes},
        "training": given,
        "top_k": 1,
    }


EXPERTS = job("gpt-oss-120b", "dgx-h100", 8, 8192, 512)
GAINS = [
    # 126 layers on 8 or 32 stages, with virtual stages that hold one layer more or less than others.
    (Part.UNEVEN_VPP, job("llama-3.1-405b", "dgx-h100", 128, 8192, 256)),
    (Part.TP_OVERLAP, job("llama-3.1-70b", "dgx-h100", 8, 8192, 256)),
    (Part.DISPATCHERS, EXPERTS),
    (Part.EXPERT_OVERLAP, EXPERTS),
    (Part.MODULE_SETS, job("llama-2-13b", "l40s-pcie-8", 4, 4096, 64)),
    (Part.SHARD_SIZES, job("llama-3.2-3b", "l40s-pcie-8", 8, 4096, 512, framework="fsdp")),
    (Part.SECOND_COPIES, job("llama-2-13b", "dgx-a100-80gb", 8, 4096, 1024, framework="deepspeed")),
    # Zero-bubble schedules run neither compiled nor with FlexAttention, which is the default from 0.3 on.
    (Part.SCHEDULES, job("llama-3.1-70b", "a100-pcie-pairs-8", 16, 4096, 128, framework="torchtitan", framework_version="0.2", compile=False)),
]  # fmt: skip


@pytest.mark.parametrize(("axis", "request_"), GAINS, ids=[part.name for part, _ in GAINS])
def test_an_axis_is_worth_having(axis: Part, request_: Document) -> None:
    """By half a percent of the best plan's step at least."""
    whole, without = answer(request_), answer(request_, axis)
    best, other = (each["plans"][0]["evaluation"]["step_time_s"] for each in (whole, without))
    assert other > 1.005 * best
    assert without["search"]["total"] < whole["search"]["total"] or axis == Part.TP_OVERLAP


def test_without_the_fallback_nothing_fits() -> None:
    request_ = job("llama-3.1-70b", "dgx-h100", 2, 4096, 64)
    assert answer(request_)["plans"]
    assert answer(request_, Part.OFFLOAD)["plans"] == []
