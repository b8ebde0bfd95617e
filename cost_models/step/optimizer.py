"""Time of the optimizer step on the GPU and of gradient accumulation; `offload` prices what the host updates.

Both move far more bytes than they compute, so that their time is bytes over achieved memory bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cost_models.constants import HOST_SYNC_S
from cost_models.frameworks.facts import FUSED_ACCUMULATION_BYTES
from cost_models.job import Job
from cost_models.layers.adapter_costs import adapter_tensors
from cost_models.layers.shapes import parameter_tensors
from cost_models.memory.adapted import base_bytes
from cost_models.specs.training import BYTES_PER
from cost_models.step.averages import average_s
from cost_models.step.looped_optimizers import LOOPED, Loop, looped_s
from cost_models.step.muon import muon_s, vectors_owned
from cost_models.strategies.strategy import Floats, Strategies

MOMENTS: Mapping[str, float] = {
    "adam": 2.0, "sgd": 1.0, "adam-8bit": 2.0, "adam-4bit": 2.0, "adafactor": 0.0, "muon": 2.0, "lion": 1.0, "sgd-momentum": 1.0,
}  # fmt: skip
"""Moments by optimizer; plain momentum for sgd. Muon's are those of what Adam updates beside it."""
BLOCK_STATE_BYTES: Mapping[str, float] = {"adam-8bit": 1.0, "adam-4bit": 0.5 + 4.0 / 128.0}
"""Bytes of one moment's element where moments are held in blocks; torchao's 4-bit blocks have an fp32 scale for 128. [M-4]"""
ADAFACTOR_BYTES = 84.0
"""What Adafactor's chain of operators moves per element of an fp32 matrix (transformers/optimization.py): root mean squares 8, square
and epsilon 16, means over rows and columns 8, their product and the gradient's 16, the clip's division 8, the learning rate 8, sign 8,
sum 12. [F-10]"""
CAST_BYTES = 6.0
"""A cast from 16 to 32 bits, or back."""
UNFUSED_ACCUMULATION_BYTES = 10.0
"""Adding a bf16 gradient to an fp32 buffer in an operator of its own: read 2 and 4, write 4. [F-9]"""


FLAT_STEP_BYTES = 30.0
"""What DeepSpeed's step without ZeRO moves for a 16-bit gradient beyond one that updates in place (runtime/fp16/fused_optimizer.py,
FP16_Optimizer.step; utils.py, has_inf_or_nan): largest and smallest element read 4, cast to fp32 6, copied into one tensor 8, norm, clip
and update of fp32 instead of 16 bits 8, the updated parameters read to be cast back 4. [F-10]"""
CHECK_OPERATORS = 6.0
"""Two reductions, two tests, their conjunction and its negation, for each gradient."""


def update_bytes_per_parameter(job: Job) -> tuple[float, float]:
    """Bytes moved per owned parameter, first by norm and clip, then by the update. [F-10]

    The norm reads the gradient; the clip reads and writes it. The update reads the gradient, the main (or stored) parameter
    and the moments, and writes the parameter, the moments and, where there is a main parameter, the cast copy.
    """
    t = job.training
    grad, stored = BYTES_PER[t.grad_dtype], BYTES_PER[t.param_dtype]
    main = BYTES_PER[t.main_param_dtype]
    moments = MOMENTS[t.optimizer]
    state = BLOCK_STATE_BYTES.get(t.optimizer, BYTES_PER[t.optimizer_state_dtype])
    updated = main or stored
    cast = stored if main else 0.0
    # The two are kept apart because a profile measures them apart: the update is one fused kernel, while norm and
    # clip are streaming kernels like any other.
    if t.optimizer == "adafactor":
        return 3 * grad, ADAFACTOR_BYTES + CAST_BYTES * ((grad == 2) + 2.0 * (updated == 2)) + cast
    return 3 * grad, grad + 2 * updated + 2 * moments * state + cast


def owned_parameters(strategies: Strategies, *, dense: Floats, expert: Floats) -> Floats:
    """Parameters that this rank updates, shape (N,): its share where optimizer state is sharded, else all it holds."""
    sharded = strategies.zero >= 1
    owned_dense = dense / np.where(sharded, strategies.zero_shard_size, 1.0)
    return owned_dense + expert / np.where(sharded, strategies.expert_shard_size, 1.0)


def optimizer_s(job: Job, strategies: Strategies, *, dense: Floats, expert: Floats) -> Floats:
    """Seconds of one optimizer step and of the weights' moving average behind it, as `update_s` says, shape (N,). [F-10] [F-37]"""
    seconds = update_s(job, strategies, dense=dense, expert=expert)
    if job.training.ema is None:
        return seconds
    return seconds + average_s(job, strategies, dense=dense, expert=expert)


def update_s(job: Job, strategies: Strategies, *, dense: Floats, expert: Floats) -> Floats:
    """Seconds of one optimizer step on the GPU, for the stage that holds the most parameters, shape (N,). [F-10]

    The share of the state that the host updates is left out here; `offload.offload_s` prices it.

    Args:
        job: model, cluster, training and prices.
        strategies: shape (N,), as all that follows.
        dense: dense parameters that one rank of that stage holds.
        expert: its routed-expert parameters.
    """
    owned = owned_parameters(strategies, dense=dense, expert=expert) * (1.0 - strategies.offload_optimizer_fraction)
    clipped, updated = update_bytes_per_parameter(job)
    stream, update = job.calibration.memory_bytes_per_s_effective.value, job.calibration.update_bytes_per_s.value
    matrices_s: Floats | float = 0.0
    if job.training.optimizer == "muon":
        matrices_s = muon_s(job, strategies)
        moved = clipped * owned + updated * (stream / update) * vectors_owned(job, strategies)
    else:
        moved = (clipped + updated * (stream / update)) * owned
    tensors = job.framework.optimizer_launches_per_tensor and _held_tensors(job, strategies)
    operators = job.framework.optimizer_launches + job.framework.optimizer_launches_per_tensor * tensors
    launches = operators * job.calibration.bare_op_s.value
    if job.training.optimizer in LOOPED:
        loop = Loop(
            clip_s=clipped * owned / stream, update_s=updated * owned / update, owned=owned, launches_s=launches,
            tensors=_held_tensors(job, strategies),
        )  # fmt: skip
        looped = looped_s(job, strategies, loop)
        if looped is not None:
            return looped
    if (
        job.framework.zero0_checks_gradients
        and job.training.adapter is None
        and BYTES_PER[job.training.grad_dtype] == 2
    ):
        # The host waits for the answer about each gradient before it asks about the next.
        alone = strategies.zero == 0
        check_s = CHECK_OPERATORS * job.calibration.bare_op_s.value + HOST_SYNC_S.value
        moved = moved + np.where(alone, FLAT_STEP_BYTES * owned, 0.0)
        return np.maximum(moved / stream, launches) + np.where(alone, check_s * tensors, 0.0) + matrices_s
    # The host launches ahead of the device, so that the slower of the two sets the pace and they never add up.
    return np.maximum(moved / stream, launches) + matrices_s


def _held_tensors(job: Job, strategies: Strategies) -> Floats:
    """Parameter tensors of an even stage's layers that are trained, shape (N,): the adapters' where there are any."""
    tensors = parameter_tensors if job.training.adapter is None else adapter_tensors
    per_layer = sum(float(tensors(job, kind)) for kind in job.model.layer_kinds)
    return np.asarray(per_layer / strategies.pp)


def accumulation_s(job: Job, strategies: Strategies, *, dense: Floats, expert: Floats, sharded: np.ndarray) -> Floats:
    """Seconds per micro-batch to add weight gradients into the held buffer, shape of `dense` and `expert`. [F-9]

    Where gradients are reduced and sharded layer by layer, only the reduced shard is added.

    Args:
        job: model, cluster, training and prices.
        strategies: shape (N,).
        dense: dense parameters on one rank.
        expert: routed-expert parameters on one rank.
        sharded: whether gradients are reduced in every micro-batch, layer by layer, shape (N,).
    """
    shard = dense / strategies.zero_shard_size + expert / strategies.expert_shard_size
    rate = job.calibration.memory_bytes_per_s_effective.value
    held = np.where(sharded, shard, dense + expert)
    moved = UNFUSED_ACCUMULATION_BYTES if job.has_core_modules else job.framework.gradient_accumulation_bytes
    each_s = moved / rate
    # A profile times weight gradients that accumulate inside their product, and so replaces the constant only in
    # frameworks that do so; separate additions stay bytes over bandwidth.
    if moved == FUSED_ACCUMULATION_BYTES and job.calibration.products.accumulation_s is not None:
        each_s = job.calibration.products.accumulation_s
    return np.asarray(held * each_s)


def unit_copies_s(
    job: Job, strategies: Strategies, *, dense: Floats, expert: Floats, trained: Floats, gathers: Floats
) -> Floats:
    """Seconds per micro-batch of FSDP2's copies around a layer's collectives, shape of `dense`. [C-14]

    A shard is cast as it is copied into the gather's input, what arrives is copied into the layer's tensors, and gradients are
    copied, cast to the type of their reduction, into its input (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py). They
    run beside the layers and take memory bandwidth from them. FSDP1, which alone takes a quantised base, gathers in place.

    Args:
        job: model, cluster, training and prices.
        strategies: shape (N,).
        dense: dense parameters of a layer on one rank before sharding.
        expert: its routed-expert parameters.
        trained: those of both that have gradients.
        gathers: how often a micro-batch gathers a layer, shape (N,).
    """
    t = job.training
    if t.adapter is not None and t.adapter.quantized_base != "none":
        return np.zeros_like(dense)
    whole, shard = dense + expert, dense / strategies.zero_shard_size + expert / strategies.expert_shard_size
    gathered = (base_bytes(job) + t.compute_bytes) * shard + 2.0 * t.compute_bytes * whole
    reduced = (t.compute_bytes + BYTES_PER[t.grad_reduce_dtype]) * trained
    reductions = np.where(strategies.grad_sync_each, 1.0, 1.0 / strategies.num_micro_batches)
    moved = gathers * gathered + reductions * reduced
    return np.asarray(moved / job.calibration.copy_bytes_per_s.value)
