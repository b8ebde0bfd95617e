"""What each measured group of a profile changes, in numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cost_models.calibration import CalibrationDocument
from cost_models.evaluate import evaluate
from cost_models.hardware import Calibration, document_of, load_calibration
from cost_models.hardware.attention import math_attention_s
from cost_models.hardware.beside import NOMINAL_BESIDE, Beside
from cost_models.hardware.beside import beside_s as beside_rows
from cost_models.hardware.placement import place
from cost_models.inputs.model import resolve_model
from cost_models.inputs.training import resolve_training
from cost_models.job import Job
from cost_models.specs.cluster import Cluster, Gpu, Network
from cost_models.step.optimizer import accumulation_s, optimizer_s
from cost_models.strategies.strategy import Strategies
from cost_models.terms import Tier
from planner.schemas.strategy import StrategyInput
from planner.strategies.parse import resolve_strategies

H100 = Gpu("H100-SXM-80GB", "hopper", 85e9, {"bf16": 989.4e12, "fp16": 989.4e12, "fp32": 66.9e12}, 3.352e12, 450e9, 63e9,
           132, 700.0, reference="H100-SXM-80GB")  # fmt: skip
CLUSTER = Cluster("unit", H100, 1, 8, 8, "nvswitch", 450e9, 2e-6, 2, 4, Network("infiniband", 50e9, 8, 4e-6))
DENSE = {
    "num_layers": 4, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 32000,
}  # fmt: skip
MOE = {**DENSE, "moe": {"num_experts": 8, "top_k": 2, "expert_intermediate_size": 4096}}
MINIMAL: dict[str, Any] = {
    "schema_version": 1, "name": "mine", "kind": "measured", "created_at": "2026-11-28",
    "fingerprint": {"gpu": "H100-SXM-80GB", "gpus_per_node": 8},
    "device": {
        "generation": "hopper", "peak_flops_per_s": {"bf16": 989.4e12}, "memory_bytes_per_s": 3.352e12,
        "link_bytes_per_s": 450e9, "num_sms": 132,
    },
}  # fmt: skip


def document(**groups: Any) -> CalibrationDocument:
    return document_of({**MINIMAL, **groups})


def calibration(**groups: Any) -> Calibration:
    return load_calibration(replace(CLUSTER, calibration=("mine",)), extra={"mine": document(**groups)})


def job(model: dict[str, Any] = DENSE, *, framework: str = "megatron", own: Calibration | None = None, **given) -> Job:
    given = {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": framework, **given}
    resolved = resolve_model(model)
    prices = own or load_calibration(CLUSTER)
    trained = resolve_training(given, model=resolved, cluster=CLUSTER)
    return Job(model=resolved, cluster=prices.cluster, training=trained, calibration=prices)


def rows(asked: Job, **strategy: Any) -> Strategies:
    found = resolve_strategies(asked, [StrategyInput(micro_batch_size=1, **strategy)], all_stages=True)
    assert found.strategies is not None
    return found.strategies


def size(value: float):
    return np.array([value])


def beside_s(*given, **named):
    """What collectives add in all, lost and sticking out."""
    return beside_rows(*given, **named).sum(axis=0)


# --- beside one another -----------------------------------------------------------------------------------------------

SLOWED = {
    "ranks": 8, "size_bytes": 6.7e7, "m": 8192, "n": 8192, "k": 8192, "compute_slowdown_fraction": 0.25,
    "communication_slowdown_fraction": 1.0,
}  # fmt: skip


def test_interference_is_what_side_by_side_costs() -> None:
    """Products 1.25 and a gather 2 times as long beside each other. A gather of 1 s ends after 2 s, in which 2 / 1.25 = 1.6 s
    of products are done: of 10 s of products 8.4 are left, 10.4 s in all. Of a gather of 8 s beside 4 s of products, these
    end after 5 s, in which 2.5 s of it are done: 5.5 s are left, 10.5 s in all.
    """
    each = calibration(overlap=[{"op": "all_gather", **SLOWED}]).beside
    assert each["all_gather"].tier == Tier.MEASURED
    assert beside_s(size(10.0), {"all_gather": size(1.0)}, each=each) == pytest.approx([0.4])
    assert beside_s(size(4.0), {"all_gather": size(8.0)}, each=each) == pytest.approx([6.5])
    # Both formulas meet where the two end together: 2 L = 1.25 C.
    assert beside_s(size(8.0), {"all_gather": size(5.0)}, each=each) == pytest.approx([2.0])


def test_what_was_not_measured_keeps_the_nominal_interference() -> None:
    each = calibration(overlap=[{"op": "all_gather", **SLOWED}]).beside
    assert each["all_reduce"] == NOMINAL_BESIDE
    assert beside_s(size(10.0), {"all_reduce": size(1.0)}, each=each) == pytest.approx([0.15])
    assert beside_s(size(2.0), {"all_reduce": size(5.0)}, each=each) == pytest.approx([3.0])


def test_collectives_in_a_row_lose_each_its_own() -> None:
    """A gather of 1 s at 0.4 and a scatter of 2 s at 0.15 beside 100 s: 0.7 s; hidden shares 0.375 and 1 weighed by length."""
    each = calibration(overlap=[{"op": "all_gather", **SLOWED}]).beside
    parts = {"all_gather": size(1.0), "reduce_scatter": size(2.0)}
    assert beside_s(size(100.0), parts, each=each) == pytest.approx([0.4 + 0.3])
    assert beside_s(size(1.0), parts, each=each) == pytest.approx([3.0 - (0.375 * 1 + 1.0 * 2) / 3])


def test_never_worse_than_one_after_the_other() -> None:
    worst = calibration(overlap=[{"op": "all_gather", **SLOWED, "compute_slowdown_fraction": 5.0}]).beside
    assert worst["all_gather"] == Beside(1.0, 0.0, Tier.MEASURED)
    assert beside_s(size(3.0), {"all_gather": size(2.0)}, each=worst) == pytest.approx([2.0])


def test_layers_that_are_gathered_take_the_measured_interference() -> None:
    """A profile that slows products by 25 % beside a gather exposes more of FSDP's than one that slows them by nothing."""
    free = {**SLOWED, "compute_slowdown_fraction": 0.0, "communication_slowdown_fraction": 0.0}
    found = []
    for sample in (free, SLOWED):
        own = calibration(overlap=[{"op": op, **sample} for op in ("all_gather", "reduce_scatter")])
        asked = job(framework="torchtitan", own=own)
        found.append(float(evaluate(asked, rows(asked, zero=3)).terms_s["dp_comm"][0]))
    assert found[1] > found[0] > 0


# --- products ---------------------------------------------------------------------------------------------------------


def test_experts_in_one_kernel_take_the_measured_share() -> None:
    """A kernel of 8 products timed at half of the bf16 peak: the price of that kernel is its time again."""
    grouped = {"m": 2048, "n": 4096, "k": 4096, "batch": 8}
    flops = 8 * 2 * 2048 * 4096 * 4096
    time_s = flops / (0.5 * 989.4e12) + 2e-6
    plain = {"m": 2048, "n": 4096, "k": 4096, "time_s": 2 * 2048 * 4096 * 4096 / (0.7 * 989.4e12) + 2e-6}
    own = calibration(gemm=[plain, {**grouped, "time_s": time_s}])
    price = own.gemm_s(2048, 4096, 4096, precision="bf16", batch=8.0).seconds
    assert float(price) == pytest.approx(time_s, rel=1e-6)


def test_products_of_attention_take_the_measured_ratio() -> None:
    """32 heads x 4 sequences of 2048, width 128, timed at 300 TFLOP/s, both the score and the value product: unfused attention
    of Megatron pays 2 products of 4.581e-4 s forward and streams 4 bytes a score.
    """
    flops = 2 * 128 * 2048 * 2048 * 128
    time_s = flops / 300e12 + 2e-6
    shapes = [{"m": 2048, "n": 2048, "k": 128, "batch": 128}, {"m": 2048, "n": 128, "k": 2048, "batch": 128}]
    rates = [{"kind": "elementwise", "size_bytes": 1e9, "bytes_per_s": 3e12}]
    own = calibration(gemm=[{**shape, "time_s": time_s} for shape in shapes], memory_bandwidth=rates)
    priced = math_attention_s(
        sequences=4, heads=32, q_length=2048, kv_length=2048, d=128, dropout=0.0, calibration=own, precision="bf16"
    )
    scores = 128 * 2048 * 2048
    expected = 2 * (flops / 300e12 + 2e-6) + 4 * scores / 3e12 + 1.5e-6
    assert float(priced.forward.seconds) == pytest.approx(expected)


def test_pytorchs_chain_takes_its_own_measured_time_and_megatrons_does_not() -> None:
    """PyTorch's chain was timed at 7.2 and 8.1 ms: the same call is priced so where PyTorch composes it."""
    call = {"sequences": 4, "heads": 16, "kv_heads": 16, "q_length": 2048, "kv_length": 2048, "d": 128}
    samples = [{**call, "direction": "forward", "time_s": 7.2e-3}, {**call, "direction": "backward", "time_s": 8.1e-3}]
    rates = [{"kind": "elementwise", "size_bytes": 1e9, "bytes_per_s": 3e12}]
    own = calibration(math_attention=samples, memory_bandwidth=rates)
    asked = {"sequences": 4, "heads": 16, "q_length": 2048, "kv_length": 2048, "d": 128, "dropout": 0.0}
    chain = math_attention_s(**asked, calibration=own, composed=True)
    assert (float(chain.forward.seconds), float(chain.backward.seconds)) == pytest.approx((7.2e-3, 8.1e-3))
    fused = math_attention_s(**asked, calibration=own)
    assert float(fused.forward.seconds) < 1e-3


def test_an_accumulating_product_less_the_copy_is_what_fused_accumulation_costs() -> None:
    """16.8e6 parameters: 476 against 400 us, of which the out-of-place copy is 8 bytes at 3e12 B/s, 44.7 us. What is left,
    31.3 us, is 1.863e-12 s a parameter.
    """
    shape = {"m": 4096, "n": 4096, "k": 8192, "layout": "wgrad"}
    gemm = [{**shape, "time_s": 400e-6}, {**shape, "output_dtype": "fp32", "time_s": 476e-6}]
    rates = [{"kind": kind, "size_bytes": 1e9, "bytes_per_s": 3e12} for kind in ("copy", "elementwise")]
    own = calibration(gemm=gemm, memory_bandwidth=rates)
    each_s = 76e-6 / 4096**2 - 8 / 3e12
    fused, eager = job(own=own), job(own=own, framework="torchtitan")
    held = {"dense": size(1e9), "expert": size(0.0), "sharded": np.array([False])}
    assert accumulation_s(fused, rows(fused), **held) == pytest.approx([1e9 * each_s])
    assert accumulation_s(eager, rows(eager), **held) == pytest.approx([10 * 1e9 / 3e12])  # an operator of its own


# --- memory bandwidth and the host ------------------------------------------------------------------------------------


def test_sizes_count_by_the_time_they_take() -> None:
    """1 GB at 1e12 and 3 GB at 3e12 B/s are 4 GB in 2 ms: 2e12 B/s."""
    samples = [
        {"kind": "elementwise", "size_bytes": 1e9, "bytes_per_s": 1e12},
        {"kind": "elementwise", "size_bytes": 3e9, "bytes_per_s": 3e12},
    ]
    assert calibration(memory_bandwidth=samples).memory_bytes_per_s_effective.value == pytest.approx(2e12)


def test_a_layer_streams_as_kernels_of_its_size_do() -> None:
    """0.1 and 0.2 GB in 0.2 ms at 1.5e12 B/s; what moves 3 GB streams faster, and no kernel of a layer moves as much."""
    samples = [
        {"kind": "elementwise", "size_bytes": 1e8, "bytes_per_s": 1e12},
        {"kind": "elementwise", "size_bytes": 2e8, "bytes_per_s": 2e12},
        {"kind": "elementwise", "size_bytes": 3e9, "bytes_per_s": 3e12},
    ]
    assert calibration(memory_bandwidth=samples).memory_bytes_per_s_effective.value == pytest.approx(1.5e12)


def test_another_parts_bandwidth_scales_by_the_data_sheets() -> None:
    slow = replace(H100, name="H100-2.4TB", memory_bytes_per_s=2.4e12)
    samples = [{"kind": "elementwise", "size_bytes": 1e9, "bytes_per_s": 3e12}]
    own = load_calibration(
        replace(CLUSTER, gpu=slow, calibration=("mine",)), extra={"mine": document(memory_bandwidth=samples)}
    )
    found = own.memory_bytes_per_s_effective
    assert (found.value, found.tier) == (pytest.approx(3e12 * 2.4 / 3.352), Tier.EXTRAPOLATED)


def test_the_update_runs_at_the_optimizers_rate_and_the_norm_at_the_stream() -> None:
    """1e9 parameters: 12 bytes of norm and clip at 3e12, 30 bytes of update at 2.5e12 B/s: 4 + 12 ms."""
    samples = [
        {"kind": "elementwise", "size_bytes": 1e9, "bytes_per_s": 3e12},
        {"kind": "optimizer", "size_bytes": 1e9, "bytes_per_s": 2.5e12},
    ]
    asked = job(own=calibration(memory_bandwidth=samples))
    found = optimizer_s(asked, rows(asked, zero=0), dense=size(1e9), expert=size(0.0))
    assert found == pytest.approx([12e9 / 3e12 + 30e9 / 2.5e12])


def test_a_tiny_optimizer_step_issues_bare_operations() -> None:
    """8 us in a loop, 1.4 times that in a step, 150 of them; with the layers' operations at 25 us it would be 5.25 ms."""
    asked = job(own=calibration(host={"raw_op_s": 8e-6, "eager_op_s": 25e-6}))
    found = optimizer_s(asked, rows(asked, zero=1), dense=size(1e3), expert=size(0.0))
    assert found == pytest.approx([150 * 1.4 * 8e-6])


def test_a_collectives_call_is_one_of_its_operators() -> None:
    """Megatron, tp 2: 4 all-reduces a layer are 7 operators each, one of which is the call: 28 operators of 35 us, or 24 and
    4 calls of 1.4 x 50 us, 0.14 ms more.
    """
    waits = []
    for host in ({"eager_op_s": 25e-6}, {"eager_op_s": 25e-6, "collective_call_s": 50e-6}):
        asked = job(own=calibration(host=host), seq_length=64)
        found = evaluate(asked, rows(asked, tp=2, sequence_parallel=False, zero=0, dp=1))
        waits.append(float(found.terms_s["launch"][0]) / 64 / DENSE["num_layers"])
    assert waits[1] - waits[0] == pytest.approx(4 * 1.4 * 25e-6)


# --- memory and links -------------------------------------------------------------------------------------------------


def test_capacity_is_what_the_driver_offered() -> None:
    own = calibration(memory={"capacity_bytes": 84e9})
    assert own.cluster.capacity_bytes == 84e9
    other = replace(CLUSTER, gpu=replace(H100, name="H100-94GB", memory_bytes=94e9), calibration=("mine",))
    elsewhere = load_calibration(other, extra={"mine": document(memory={"capacity_bytes": 84e9})})
    assert elsewhere.cluster.capacity_bytes == 94e9


def test_a_context_counts_without_the_other_facts() -> None:
    """One GPU measures no communicator: its context replaces 0.63 GiB."""
    before, after = (
        float(evaluate(asked, rows(asked, dp=1)).memory.device[0])
        for asked in (job(), job(own=calibration(memory={"context_bytes": 1e9})))
    )
    assert after - before == pytest.approx(1e9 - 0.63 * 2**30)


def test_changing_sizes_may_hold_more_unless_segments_expand() -> None:
    """Experts without a capacity: 20 % of a layer's backward's activations on top of the range's upper end, 10 % nominally."""
    highs = {}
    for name, slack, given in (
        ("off", None, {}), ("measured", 0.2, {}), ("on", 0.2, {"expandable_segments": True}),
    ):  # fmt: skip
        own = calibration(**({"memory": {"allocator_slack_fraction": slack}} if slack else {}))
        asked = job(MOE, own=own, **given)
        highs[name] = float(evaluate(asked, rows(asked)).memory.device_high[0])
    nominal, measured = highs["off"] - highs["on"], highs["measured"] - highs["on"]
    assert nominal > 0
    assert measured == pytest.approx(2 * nominal)
    capped = {**MOE, "moe": {**MOE["moe"], "capacity_factor": 1.25}}
    for model in (DENSE, capped):
        fixed = [job(model, expandable_segments=each) for each in (False, True)]
        same = [float(evaluate(asked, rows(asked)).memory.device_high[0]) for asked in fixed]
        assert same[0] == same[1]


def curve(time_s: float, **group: Any) -> dict[str, Any]:
    return {"op": "all_reduce", "size_bytes": 2.0**24, "ranks": 2, "ranks_per_node": 2, "time_s": time_s, **group}


def test_sibling_groups_communicate_at_once_and_far_ranks_by_their_own_curve() -> None:
    """Two ranks of 2^24 bytes: 1 ms alone, 2 ms with a sibling; 5 ms where they are four ranks apart."""
    samples = [curve(1e-3), curve(2e-3, concurrent_groups=2), curve(5e-3, stride=4)]
    own = calibration(collectives=samples)
    for stride, expected in ((1, 2e-3), (4, 5e-3)):
        price = own.collective_s("all_reduce", 2.0**24, placement=place(2, stride=stride, cluster=CLUSTER))
        assert price.seconds == pytest.approx([expected])


def test_sends_fall_back_on_the_slowest_pair() -> None:
    """Pairs at 300 and 100 GB/s and no curve of sends: 1 GiB takes what the slower one needs, after 6 us."""
    pairs = [{"first": 0, "second": 1, "bytes_per_s": 3e11}, {"first": 1, "second": 2, "bytes_per_s": 1e11}]
    own = calibration(pairs=pairs, collectives=[curve(1e-3)])
    price = own.collective_s("send_recv", 2.0**30, placement=place(2, stride=1, cluster=CLUSTER))
    assert price.seconds == pytest.approx([2**30 / 1e11 + 6e-6])
