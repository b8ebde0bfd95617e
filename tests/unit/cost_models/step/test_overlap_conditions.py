"""Whether computation could hide communication, against worked figures for an H100 (989e12 bf16 operations per second)."""

from __future__ import annotations

import pytest

from cost_models.step.overlap_conditions import Condition, dp_ratio, overlap_conditions, pp_ratio, tp_ratio, zero3_ratio
from tests.builders import UNIT_GPU, job_of, llama_model, row_of, with_experts

H100_FLOPS = 989e12


def hiding_field(condition: Condition) -> str:
    """The field which, raised, hides the communication of the first strategy."""
    return condition.fields[int(condition.second[0])]


def test_gather_of_zero3_on_an_h100() -> None:
    """8,192 tokens of a micro-batch, 64 ranks at 50 GB/s: 2 · 63/64 · 989e12 / (2 · 8,192 · 50e9)."""
    found = zero3_ratio(8192, ranks=64, element_bytes=2.0, flops_per_s=H100_FLOPS, bytes_per_s=50e9)
    assert float(found) == pytest.approx(2.3768, abs=5e-5)


def test_reduction_of_dp_on_an_h100() -> None:
    """131,072 tokens of a step: 2 · 63/64 · 989e12 / (2 · 131,072 · 50e9)."""
    found = dp_ratio(131_072, ranks=64, element_bytes=2.0, flops_per_s=H100_FLOPS, bytes_per_s=50e9)
    assert float(found) == pytest.approx(0.1486, abs=5e-5)


def test_gather_of_tp_on_an_h100() -> None:
    """Eight ranks of a model that is 8,192 wide, at 450 GB/s: 2 · 7 · 989e12 / (2 · 8,192 · 450e9)."""
    found = tp_ratio(8192, ranks=8, element_bytes=2.0, flops_per_s=H100_FLOPS, bytes_per_s=450e9)
    assert float(found) == pytest.approx(1.878, abs=5e-4)


def test_send_of_pp_on_an_h100() -> None:
    """Ten layers to the next send, at 50 GB/s: 2 · 989e12 / (32 · 8,192 · 10 · 50e9)."""
    found = pp_ratio(8192, layers=10, element_bytes=2.0, flops_per_s=H100_FLOPS, bytes_per_s=50e9)
    assert float(found) == pytest.approx(0.0151, abs=5e-5)


def test_conditions_of_a_plan_name_what_hides_them() -> None:
    """At the field's value that is named, rounded up, the ratio is 1 or just below."""
    job = job_of(llama_model(), "torchtitan", num_nodes=2, seq_length=1024, global_batch_size=32)
    row = row_of(job, tp=2, zero=3, dp=8, micro_batch_size=1)
    found = overlap_conditions(job, row)
    assert found.keys() == {"dp", "zero3", "tp"}
    gather = found["zero3"]
    assert gather.ratio[0] > 1
    assert hiding_field(gather) == "micro_batch_size"
    # The ratio falls as the micro-batch rises, and the bandwidth stays, so twice the tokens halve it.
    twice = overlap_conditions(job, row_of(job, tp=2, zero=3, dp=8, micro_batch_size=2))["zero3"]
    assert twice.ratio[0] == pytest.approx(gather.ratio[0] / 2.0)
    assert twice.raised[0] == pytest.approx(gather.raised[0])


def test_bandwidth_of_a_group_inside_a_node_is_its_link() -> None:
    """Half a gigabyte over a link of 100 GB/s reaches most of it; over the network of 25 GB/s and more nodes, most of that."""
    nodes = {"nics_per_node": 8, "nic_gbit_per_s": 200, "network": {"fabric": "infiniband"}}
    job = job_of(llama_model(), gpu=UNIT_GPU, num_nodes=4, cluster=nodes, seq_length=65_536)
    found = overlap_conditions(job, row_of(job, tp=8, dp=4, micro_batch_size=1, sequence_parallel=True))
    assert 70e9 <= found["tp"].bytes_per_s[0] <= 100e9
    assert 18e9 <= found["dp"].bytes_per_s[0] <= 25e9
    assert found["tp"].ratio[0] == pytest.approx(2.0 * 7 * 100e12 / (2 * 4096 * found["tp"].bytes_per_s[0]))


def test_every_stage_sends_its_layers_once() -> None:
    """32 layers over pp 4 and vpp 2 make virtual stages of 4; whole messages count for both ranks of a tensor-parallel pair."""
    job = job_of(llama_model(), gpu=UNIT_GPU, global_batch_size=64)
    sliced = overlap_conditions(job, row_of(job, tp=2, pp=4, vpp=2, dp=1, micro_batch_size=1, sequence_parallel=True))[
        "pp"
    ]
    assert sliced.raised[0] == pytest.approx(sliced.ratio[0] * 4)
    assert sliced.ratio[0] == pytest.approx(2.0 * 100e12 / (32 * 4096 * 4 * sliced.bytes_per_s[0]))


def test_experts_reduce_more_weights_than_a_token_meets() -> None:
    """Eight experts of which each token takes two have gradients of all eight, and the backward of two."""
    dense, mixed = llama_model(num_layers=4), with_experts(llama_model(num_layers=4), expert_intermediate_size=14336)
    ratios = {}
    for name, model in (("dense", dense), ("mixed", mixed)):
        job = job_of(model, gpu=UNIT_GPU, global_batch_size=64)
        ratios[name] = overlap_conditions(job, row_of(job, dp=8, micro_batch_size=1, zero=1))["dp"].ratio[0]
    # Per layer 41.9e6 weights of attention and 176.2e6 of an MLP; embedding and head have 525.3e6 each.
    attention, mlp, ends = 41_943_040, 3 * 4096 * 14336, 2 * 128256 * 4096
    everything, active = (4 * (attention + experts * mlp) + ends for experts in (8, 2))
    assert ratios["mixed"] / ratios["dense"] == pytest.approx(everything / active, rel=0.02)


def test_frozen_weights_are_not_reduced() -> None:
    model = llama_model(num_layers=4)
    each = []
    for frozen in (None, ["mlp"]):
        job = job_of(model, gpu=UNIT_GPU, global_batch_size=64, **({} if frozen is None else {"frozen": frozen}))
        each.append(overlap_conditions(job, row_of(job, dp=8, micro_batch_size=1, zero=1))["dp"].ratio[0])
    total = 4 * (41_943_040 + 3 * 4096 * 14336) + 2 * 128256 * 4096
    assert each[1] / each[0] == pytest.approx(1.0 - 4 * 3 * 4096 * 14336 / total, rel=0.02)


def test_layerwise_gradients_are_only_scattered() -> None:
    """FSDP reduces each micro-batch by reduce-scatter: half of the bytes of an all-reduce, beside a micro-batch's backward."""
    job = job_of(llama_model(num_layers=4), "torchtitan", gpu=UNIT_GPU, global_batch_size=64)
    its = overlap_conditions(job, row_of(job, dp=8, zero=3, micro_batch_size=2))["dp"]
    assert hiding_field(its) == "micro_batch_size"
    expected = its.element_bytes * (7 / 8) * 100e12 / (2 * 2 * 2048 * its.bytes_per_s[0]) / 2
    assert its.ratio[0] == pytest.approx(expected)
