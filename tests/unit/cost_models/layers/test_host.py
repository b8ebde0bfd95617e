"""What a layer costs its host: launches of experts and of tensor parallelism, and waits where the host reads the routing."""

from __future__ import annotations

import numpy as np
import pytest

from builders import dense_model, job_of, row_of, rows_of, with_experts
from cost_models.layers.host import host_waits_s, launch_s, reads_routing

OP_S = 1.4 * 26e-6  # nominal host time of one operator of a step (EQUATIONS.md, F-4)


def mixture(framework="megatron", *, num_shared_experts=0, **training):
    model = with_experts(dense_model(2, num_key_value_heads=2), num_experts=8, num_shared_experts=num_shared_experts)
    return job_of(model, framework, seq_length=1024, global_batch_size=8, **training)


def launches(job, **strategy):
    """Operators of one layer's forward and backward."""
    forward, backward = launch_s(job, job.model.layer_kinds[0], row_of(job, **strategy))
    return float(forward[0]) / OP_S, float(backward[0]) / OP_S


def test_megatrons_experts_cost_their_host_what_was_measured() -> None:
    """Two H200, loop of layers: a mixture layer 4.72 + 2.97 ms and with two ranks 6.19 + 3.45, a dense one 1.58 + 1.55 (means of two), where
    the agent's operator takes 30.9 us. 34 + 45 operators are a dense layer's.
    """
    alone, shared = launches(mixture(), ep=1), launches(mixture(), ep=2)
    assert alone[0] - 34 == pytest.approx((4.72 - 1.58) / 0.0309, rel=0.05)
    assert alone[1] - 45 == pytest.approx((2.97 - 1.55) / 0.0309, rel=0.05)
    assert shared[0] - 34 == pytest.approx((6.19 - 1.58) / 0.0309, rel=0.05)
    assert shared[1] - 45 == pytest.approx((3.45 - 1.55) / 0.0309, rel=0.05)


def test_flex_needs_no_splits_of_an_exchange() -> None:
    """DeepEP's and HybridEP's kernels find them on the device: a layer costs its host what it does on one rank."""
    assert launches(mixture(), ep=2, moe_dispatcher="flex") == pytest.approx(launches(mixture(), ep=1))


def test_a_recipe_that_fuses_routing_issues_fewer_operators() -> None:
    """0.46 of the 100 + 46 operators of experts beside the dense layer's 34 + 45, from 2025-11 on; the exchange's 50 + 15 stay."""
    after, before = (mixture(recipe="nvidia-perf", software_date=month) for month in ("2025-11", "2025-10"))
    assert launches(after, ep=2) == pytest.approx((34 + 0.46 * 100 + 50, 45 + 0.46 * 46 + 15))
    assert launches(before, ep=2) == pytest.approx((34 + 100 + 50, 45 + 46 + 15))


def test_routed_experts_need_no_tensor_parallel_calls() -> None:
    """Of 4 calls forward and 6 backward, 7 operators each, half are the MLP's, which shared experts have and routed ones have not."""
    split = {"tp": 2, "ep": 2, "etp": 1, "sequence_parallel": True}
    routed, shared = (launches(mixture(num_shared_experts=n), **split) for n in (0, 1))
    assert shared[0] - routed[0] == pytest.approx(2 * 7)
    assert shared[1] - routed[1] == pytest.approx(3 * 7)


@pytest.mark.parametrize(
    ("framework", "training", "reads"),
    [("megatron", {}, True), ("megatron", {"cuda_graphs": True}, False), ("torchtitan", {}, False)],
)
def test_megatrons_host_reads_the_routing_unless_it_is_captured(framework, training, reads) -> None:
    job = mixture(framework, **training)
    assert reads_routing(job, job.model.layer_kinds[0], row_of(job)) is reads
    dense = job_of(dense_model(2), framework, **training)
    assert not reads_routing(dense, dense.model.layer_kinds[0], row_of(dense))


def test_the_host_of_transformers_reads_what_an_exchange_carries() -> None:
    """Grouped products of experts that a rank has alone find their offsets on the device; 34 + 20 operators more with an exchange."""
    job = mixture("fsdp", software_date="2026-11")
    rows = rows_of(job, {"ep": 1}, {"ep": 4})
    reads = reads_routing(job, job.model.layer_kinds[0], rows)
    assert np.asarray(reads).tolist() == [False, True]
    alone, shared = launches(job, ep=1), launches(job, ep=4)
    # An operator in fsdp's plain loops takes 1.05 of the loop's 26 us, and OP_S counts 1.4 of it.
    assert [after - before for before, after in zip(alone, shared, strict=True)] == pytest.approx(
        [34 * 0.75, 20 * 0.75]
    )
    host, device = (np.full(2, 7.0e-3), np.full(2, 2.5e-3)), (np.full(2, 5.2e-3), np.full(2, 10.2e-3))
    assert host_waits_s(host, device, reads=reads)[0] == pytest.approx([0.0, 1.8e-3])


def test_a_host_that_reads_cannot_run_ahead() -> None:
    """Host 7.0 + 2.5 ms, device 5.2 + 10.2 (H200, 4,096 tokens of width 4,096, two ranks): 17.2 ms, 17.0 measured; with a lead only the
    device's 15.4 would count. Again a forward: 7.0 and 0.3 for the random states.
    """
    host, device = (np.array([7.0e-3]), np.array([2.5e-3])), (np.array([5.2e-3]), np.array([10.2e-3]))
    ahead, _ = host_waits_s(host, device)
    waits, again = host_waits_s(host, device, reads=True)
    assert ahead[0] == 0
    assert waits[0] + 15.4e-3 == pytest.approx(17.0e-3, rel=0.02)
    assert again[0] == pytest.approx(7.3e-3)
    slow = np.array([9.0e-3]), np.array([10.2e-3])
    assert host_waits_s(host, slow, reads=True)[0][0] == pytest.approx(0)
    assert host_waits_s(host, slow, reads=True)[1][0] == pytest.approx(9.0e-3)
