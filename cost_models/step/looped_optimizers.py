"""Time of optimizers that take one parameter tensor after another: bitsandbytes', torchao's and Adafactor. [F-10]

Their kernels move few bytes and compute much for each element: codes are found by searching a table, blocks are scaled by their largest
element. What an element takes was measured on one GPU and is carried to others by their fp32 peak.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from cost_models.constants import HOST_SYNC_S, Constant
from cost_models.frameworks.optimizers import has_looped_lion, updates_dtensors, updates_flat_parts
from cost_models.job import Job
from cost_models.layers.shapes import tensors_by_part
from cost_models.specs.training import BYTES_PER
from cost_models.strategies.strategy import Floats, Strategies
from cost_models.units import MICRO

LOOPED: Final = frozenset({"adafactor", "adam-8bit", "adam-4bit", "lion"})
"""Optimizers that take one parameter tensor after another; Lion in bitsandbytes alone."""
BITSANDBYTES_OPERATORS: Final = 3.0
"""Operators for each tensor of bitsandbytes' optimizers, of which one is the update."""
ADAFACTOR_OPERATORS: Final = 24.0
"""Operators for each fp32 matrix, one after another; a vector takes eight fewer. Casts come on top. [F-10]"""
_RATES = "(H200 of 67 TFLOP/s, data/measured_h200/optimizer_rates.json)"
BITSANDBYTES_FLOPS: Final[Mapping[str, Constant]] = {
    "adam-8bit": Constant(1800.0, "FLOP", 1600.0, 2100.0, f"fp32 peak over elements a second of one large tensor: 37 G/s {_RATES}"),
    "lion": Constant(520.0, "FLOP", 450.0, 650.0, f"the same of Lion with an fp32 moment: 128 G/s {_RATES}"),
}  # fmt: skip
"""What a GPU could compute in the time of one element."""
TORCHAO_FLOPS: Final[Mapping[str, Constant]] = {
    "adam-8bit": Constant(1100.0, "FLOP", 1000.0, 1300.0, f"64 G elements/s of bf16 parameters, 52 of fp32 {_RATES}"),
    "adam-4bit": Constant(1820.0, "FLOP", 1700.0, 2000.0, f"37 G elements/s {_RATES}"),
}  # fmt: skip
TORCHAO_TENSOR_S: Final = Constant(
    500.0 * MICRO, "s", 430.0 * MICRO, 960.0 * MICRO,
    "host seconds of torchao's compiled update of one tensor, whatever its size: 0.43 to 0.48 ms in bf16, 0.47 to 0.88 in fp32, 4 bits 0.50 "
    f"to 0.96 {_RATES}; in whole steps 0.56 and 0.85 (wider_rows.jsonl)",
)  # fmt: skip
TORCHAO_DTENSOR_S: Final = Constant(
    800.0 * MICRO, "s", 400.0 * MICRO, 1150.0 * MICRO,
    "the same of a DTensor: 1.13 ms of the update by itself, 0.78 by step less forward and backward, 0.4 to 0.8 in another lease, of 310 "
    "tensors (data/measured_h200/wider_rows.jsonl)",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Loop:
    """What a step has to do, shape (N,) each."""

    clip_s: Floats
    """The device's seconds for norm and clip."""
    update_s: Floats
    """Its seconds for what the update moves through memory."""
    owned: Floats
    """Elements that this rank updates."""
    launches_s: Floats | float
    """The host's seconds beside the loop."""
    tensors: Floats
    """Trained tensors of a stage's layers, without the norms of queries and keys."""


def looped_s(job: Job, strategies: Strategies, loop: Loop) -> Floats | None:
    """Seconds of one step of an optimizer of `LOOPED`, shape (N,); None where its framework has it in fused kernels. [F-10]"""
    optimizer, tensors = job.training.optimizer, _looped_tensors(job, strategies, loop)
    if optimizer == "adafactor":
        each_s = _adafactor_operators(job) * job.calibration.bare_op_s.value
        return np.maximum(loop.clip_s + loop.update_s, loop.launches_s + tensors * each_s)
    if optimizer == "lion":
        return _bitsandbytes_s(job, loop, tensors) if has_looped_lion(job.training) else None
    over_dtensor = np.array([updates_dtensors(job.training, stage) for stage in range(4)])[strategies.zero]
    host_s = np.where(over_dtensor, TORCHAO_DTENSOR_S.value, TORCHAO_TENSOR_S.value)
    compiled = _torchao_s(job, loop, tensors * host_s)
    if optimizer == "adam-4bit":
        return compiled
    # bitsandbytes' kernels know no DTensor, which torchtitan and FSDP2 shard into, so that torchao's stands in for it there.
    return np.where(over_dtensor, compiled, _bitsandbytes_s(job, loop, tensors))


def _torchao_s(job: Job, loop: Loop, loop_s: Floats) -> Floats:
    """The slower of device and host, which runs ahead, shape (N,)."""
    kernels_s = np.maximum(loop.update_s, _computed_s(job, TORCHAO_FLOPS, loop.owned))
    return np.maximum(loop.clip_s + kernels_s, loop.launches_s + loop_s)


def _bitsandbytes_s(job: Job, loop: Loop, tensors: Floats) -> Floats:
    """Device and host one after the other, shape (N,): it waits for the device after each tensor (optim/optimizer.py, sync_gpu).

    It makes gradient and parameter contiguous first.
    """
    each_s = BITSANDBYTES_OPERATORS * job.calibration.bare_op_s.value + HOST_SYNC_S.value
    kernels_s = np.maximum(loop.update_s, _computed_s(job, BITSANDBYTES_FLOPS, loop.owned))
    return loop.clip_s + kernels_s + loop.launches_s + tensors * each_s


def _computed_s(job: Job, flops: Mapping[str, Constant], owned: Floats) -> Floats:
    """The device's seconds by what an element computes, shape (N,)."""
    matrix = job.calibration.peak_flops_per_s("bf16")
    return owned * flops[job.training.optimizer].value / job.cluster.gpu.peak_flops_per_s.get("fp32", matrix / 16.0)


def _adafactor_operators(job: Job) -> float:
    t = job.training
    updated = BYTES_PER[t.main_param_dtype] or BYTES_PER[t.param_dtype]
    return ADAFACTOR_OPERATORS + (BYTES_PER[t.grad_dtype] == 2) + 2.0 * (updated == 2)


def _looped_tensors(job: Job, strategies: Strategies, loop: Loop) -> Floats:
    """Tensors that the loop takes, shape (N,): one flat part where the framework hands it that."""
    normed = 2.0 * job.model.num_layers / strategies.pp * (job.model.qk_norm != "none")
    flat = (strategies.zero >= 1) & updates_flat_parts(job.training)
    tensors = loop.tensors + normed
    if job.training.frozen:  # what is frozen has no gradient, and the loop passes it over
        parts = [tensors_by_part(job, kind) for kind in job.model.layer_kinds]
        tensors = tensors - sum(part.get(name, 0.0) for part in parts for name in job.training.frozen) / strategies.pp
    return np.where(flat, 1.0, tensors)
