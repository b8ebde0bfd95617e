"""Time of the optimizer step on the GPU and of accumulating gradients; what the host updates is priced by `offload`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cost_models.frameworks.facts import FUSED_ACCUMULATION_BYTES
from cost_models.job import Job
from cost_models.specs.training import BYTES_PER
from cost_models.strategies.strategy import Floats, Strategies

MOMENTS: Mapping[str, float] = {"adam": 2.0, "sgd": 1.0, "adam-8bit": 2.0}
"""Moments by optimizer; plain momentum for sgd."""
UNFUSED_ACCUMULATION_BYTES = 10.0
"""Adding a bf16 gradient to an fp32 buffer in an operator of its own: read 2 and 4, write 4. [F-9]"""


def update_bytes_per_parameter(job: Job) -> tuple[float, float]:
    """Bytes moved per owned parameter by norm and clip, and by the update. [F-10]

    Read the gradient for the norm, read and write it for the clip; then read gradient, stored or main parameter and
    moments, and write parameter, moments and the cast copy.
    """
    t = job.training
    grad, stored = BYTES_PER[t.grad_dtype], BYTES_PER[t.param_dtype]
    main = BYTES_PER[t.main_param_dtype]
    moments = MOMENTS[t.optimizer]
    state = 1.0 if t.optimizer == "adam-8bit" else BYTES_PER[t.optimizer_state_dtype]
    updated = main or stored
    cast = stored if main else 0.0
    return 3 * grad, grad + 2 * updated + 2 * moments * state + cast


def owned_parameters(strategies: Strategies, *, dense: Floats, expert: Floats) -> Floats:
    """Parameters whose update this rank computes."""
    sharded = strategies.zero >= 1
    owned_dense = dense / np.where(sharded, strategies.zero_shard_size, 1.0)
    return owned_dense + expert / np.where(sharded, strategies.expert_shard_size, 1.0)


def optimizer_s(job: Job, strategies: Strategies, *, dense: Floats, expert: Floats) -> Floats:
    """Seconds of one optimizer step on the fullest stage, shape (N,); offloaded shares are priced by `offload.offload_s`. [F-10]"""
    owned = owned_parameters(strategies, dense=dense, expert=expert) * (1.0 - strategies.offload_optimizer_fraction)
    clipped, updated = update_bytes_per_parameter(job)
    stream, update = job.calibration.memory_bytes_per_s_effective.value, job.calibration.update_bytes_per_s.value
    moved = (clipped + updated * (stream / update)) * owned
    launches = job.framework.optimizer_launches * job.calibration.bare_op_s.value
    return np.maximum(moved / stream, launches)


def accumulation_s(job: Job, strategies: Strategies, *, dense: Floats, expert: Floats, layerwise: np.ndarray) -> Floats:
    """Seconds per micro-batch to add weight gradients into the held buffer, shape of `dense` and `expert`. [F-9]

    Where gradients are sharded layer by layer only the reduced shard is added.
    """
    sharded = dense / strategies.zero_shard_size + expert / strategies.expert_shard_size
    rate = job.calibration.memory_bytes_per_s_effective.value
    held = np.where(layerwise, sharded, dense + expert)
    moved = UNFUSED_ACCUMULATION_BYTES if job.has_core_modules else job.framework.gradient_accumulation_bytes
    each_s = moved / rate
    if moved == FUSED_ACCUMULATION_BYTES and job.calibration.products.accumulation_s is not None:
        each_s = job.calibration.products.accumulation_s
    return np.asarray(held * each_s)
