"""Host and device seconds that adapters add to a Llama layer, with the operators and bytes written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders import job_of, llama_model, row_of
from cost_models.constants import ELEMENTWISE_KERNEL_S, HOST_STEP_RATIO, SHARDED_HOST_RATIO
from cost_models.hardware.host_constants import HOST_LOOP_OP_S
from cost_models.layers.adapter_costs import adapted_s, adapter_tensors
from cost_models.layers.hf_modules import CHAIN_SHARE
from cost_models.layers.host import FSDP1_UNIT, Around, launch_cost, launch_s
from cost_models.step.stage_costs import stage_costs
from cost_models.terms import Tier

LAYER, BACKWARD = 45.0, 67.5
"""Operators of one PyTorch layer, forward and backward."""
LOOP = HOST_LOOP_OP_S["hopper"].value
STEP = 1.05 * LOOP
"""An operator in fsdp's plain loops."""
ALL: dict[str, Any] = {"rank": 16}
ATTENTION: dict[str, Any] = {"rank": 16, "target_modules": "attention"}


def host(framework: str, around: Around, adapter: dict[str, Any] | None) -> tuple[float, float]:
    job = job_of(llama_model(), framework, adapter=adapter)
    forward, backward = launch_s(job, job.model.layer_kinds[0], row_of(job), around=around)
    return float(forward[0]), float(backward[0])


def test_the_host_issues_the_operators_of_every_adapter() -> None:
    """Seven adapters with 7 and 11 operators each, and 3 fewer for each of seven frozen weights."""
    forward, backward = host("fsdp", "nothing", ALL)
    assert forward == pytest.approx(LAYER * STEP + 7 * 7 * LOOP)
    assert backward == pytest.approx(BACKWARD * STEP + 7 * 11 * LOOP - 7 * 3 * STEP)
    fewer = host("fsdp", "nothing", ATTENTION)
    assert (forward - fewer[0], backward - fewer[1]) == pytest.approx((3 * 7 * LOOP, 3 * 11 * LOOP))


def test_a_quantised_base_takes_the_host_longer_at_all_of_its_weights() -> None:
    wide, narrow = (host("fsdp", "nothing", {**ATTENTION, "quantized_base": base}) for base in ("none", "nf4"))
    assert narrow[0] - wide[0] == pytest.approx(7 * 6 * LOOP)
    assert narrow[1] - wide[1] == pytest.approx(7 * 2 * LOOP)


def test_hooks_of_stage_3_stand_around_adapters_too() -> None:
    """Nine tensors of the base, and A and B of seven adapters."""
    added = host("deepspeed", "sharded", ALL)[0] - host("deepspeed", "nothing", ALL)[0]
    assert added == pytest.approx(LAYER * 4.5 * (9 + 14) / 9 * LOOP)


def test_a_sharded_quantised_base_has_a_unit_for_every_tensor_of_an_adapter() -> None:
    one, many = (
        host("fsdp", "sharded", adapter)[0] - host("fsdp", "nothing", adapter)[0]
        for adapter in (ATTENTION, {**ATTENTION, "quantized_base": "nf4"})
    )
    assert one == pytest.approx(LAYER * (SHARDED_HOST_RATIO.value - 1) * LOOP)
    assert many == pytest.approx(one * (1 + FSDP1_UNIT.value * 8))


def test_tensors_of_adapters() -> None:
    kind = job_of(llama_model(), "fsdp").model.layer_kinds[0]
    counts = [
        adapter_tensors(job_of(llama_model(), "fsdp", adapter=each), kind)
        for each in (None, ALL, {**ALL, "dora": True})
    ]
    assert counts == [0, 14, 21]


def test_bytes_of_adapters_and_of_their_magnitudes() -> None:
    """On v_proj, 4096 to 1024, in bf16: 2 * 4096 + 12 * 1024 bytes a token forward, 10 * 4096 + 8 * 1024 backward, four and seven kernels.

    DoRA: 36 and 72 bytes more an output, 30 a weight and 12 an element of the identity of 4096, at the rate of chains.
    """
    plain, dora = {"rank": 16, "target_modules": ["v_proj"]}, {"rank": 16, "target_modules": ["v_proj"], "dora": True}
    found = []
    for adapter in (plain, dora):
        job = job_of(llama_model(), "fsdp", adapter=adapter, param_dtype="bf16")
        seconds = adapted_s(job, job.model.layer_kinds[0], row_of(job), tokens=np.array([1000.0]))
        assert seconds is not None
        found.append((float(seconds.forward_s[0]), float(seconds.backward_s[0])))
    rate = job.calibration.memory_bytes_per_s_effective.value
    kernel = ELEMENTWISE_KERNEL_S.value
    assert found[0][0] == pytest.approx(1000 * (2 * 4096 + 12 * 1024) / rate + 4 * kernel)
    assert found[0][1] == pytest.approx(1000 * (10 * 4096 + 8 * 1024) / rate + 7 * kernel)
    chains = rate * CHAIN_SHARE.value
    assert found[1][0] - found[0][0] == pytest.approx((1000 * 36 * 1024 + 30 * 4096 * 1024 + 12 * 4096**2) / chains)
    assert found[1][1] - found[0][1] == pytest.approx(1000 * 72 * 1024 / chains)


@pytest.mark.parametrize(("framework", "ratio"), [("fsdp", 1.05), ("torchtitan", HOST_STEP_RATIO.value)])
def test_an_operator_of_a_loop_takes_longer_in_steps_of_some_frameworks(framework: str, ratio: float) -> None:
    cluster = {"gpu": "H200-SXM-141GB", "num_nodes": 1, "gpus_per_node": 2, "calibration": "h200x2-nvls-off-2026-11-28"}
    measured = job_of(llama_model(), framework, cluster=cluster, compile=False)
    assert measured.calibration.looped_op_s.tier == Tier.MEASURED
    assert launch_cost(measured).value == pytest.approx(ratio * measured.calibration.looped_op_s.value)
    assert launch_cost(job_of(llama_model(), framework, compile=False)).value == pytest.approx(ratio * LOOP)


def test_hooks_of_replicas_cost_nothing_where_nothing_is_reduced() -> None:
    """Of four micro-batches one reduces: a quarter of 0.3 of 112.5 operators of the loop, in each of 32 layers."""
    waits = []
    for sync in ("each", "last"):
        job = job_of(llama_model(), "fsdp", seq_length=64, global_batch_size=32, param_dtype="bf16")
        row = row_of(job, zero=0, grad_sync=sync)
        assert (row.num_micro_batches[0], row.dp[0]) == (4, 8)
        waits.append(float(stage_costs(job, row).per.waits_JN[0, 0]))
    assert waits[0] - waits[1] == pytest.approx(0.75 * 0.3 * (LAYER + BACKWARD) * LOOP)
