"""Bytes of a stage's activations: layers times micro-batches in flight, after recomputation and offload. [M-5] [M-6]

Array suffixes: K slots, N strategies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.job import Job
from cost_models.layers.autocast import autocast
from cost_models.layers.trained import layers_run_backward
from cost_models.memory.adapted import wide_adapters
from cost_models.memory.batch import NOTHING, Batch, build_batch
from cost_models.memory.offloaded import offloaded_bytes
from cost_models.memory.towers import tower_saved_bytes
from cost_models.strategies.fields import Recompute, RecomputeMethod
from cost_models.strategies.recomputed_layers import recomputed_layers_by_slot, recomputed_mtp_share
from cost_models.strategies.strategy import Floats, Strategies
from cost_models.strategies.tensors import summed


@dataclass(frozen=True, eq=False)
class StageActivations:
    """Bytes of every slot's stage, shape (K, N) each."""

    saved_KN: Floats
    """Saved by all micro-batches in flight."""
    layer_KN: Floats
    """Saved by one layer for one micro-batch, on average."""
    transient_KN: Floats
    """Needed by a layer's backward beyond that, with what recomputation makes again."""
    host_KN: Floats
    """Moved to host memory."""


def stage_activations(batch: Batch, *, elements_KN: Floats) -> StageActivations:
    """Bytes of activations when each stage's first backward starts, which is when most micro-batches are in flight. [M-5]
    [M-6]
    """
    job, strategies, stages = batch.job, batch.strategies, batch.stages
    micro_KN, away_KN, transient_KN = _one_micro_batch(batch)
    saved_KN = micro_KN * stages.in_flight_KN
    if job.model.moe is not None and bool(strategies.overlap_moe_all_to_all.any()):
        saved_KN = saved_KN + _forward_beside_backward(batch)
    adapts = job.training.adapter is not None
    cast = (wide_adapters if adapts else autocast)(job, batch.traits, strategies)
    if bool(cast.any()):  # a copy of every weight in the compute type lives until the backward
        saved_KN = saved_KN + np.where(cast, job.training.compute_bytes, 0.0) * elements_KN
    layer_KN = micro_KN / np.maximum(stages.total_KN, 1.0)
    if job.tower_jobs:
        tower_KN = np.where(stages.first_KN, tower_saved_bytes(job, batch.traits, strategies), 0.0)
        saved_KN = saved_KN + tower_KN * stages.in_flight_KN
    return StageActivations(saved_KN, layer_KN, transient_KN, away_KN * stages.in_flight_KN)


def _forward_beside_backward(batch: Batch) -> Floats:
    """Bytes of the layer whose forward overlaps another micro-batch's backward, shape (N,).

    Overlapped expert all-to-all runs a layer's forward beside a layer's backward, which is freed only then. The forward
    that it schedules ahead for this stands in for the one that would precede the backward otherwise, so nothing else is
    added: Megatron Core's models/common/model_chunk_schedule_plan.py (run), pipeline_parallel/schedules.py.
    """
    strategies = batch.strategies
    layer = batch.table.kept_J[0]
    for other in batch.table.kept_J[1:]:
        layer = np.maximum(layer, other)
    beside = strategies.overlap_moe_all_to_all & (strategies.num_micro_batches > 1)
    return np.where(beside, layer, 0.0)


def offloaded_activation_bytes(job: Job, strategies: Strategies) -> Floats:
    """Bytes of one micro-batch's activations that the fullest stage sends to the host, shape (N,). [M-5] [C-16]"""
    found = np.zeros(len(strategies))
    sends = strategies.offload_activation_layers > 0
    if strategies.uses("offload_activation_modules"):
        sends = sends | (strategies.offload_activation_modules > 0)
    some = np.flatnonzero(sends)
    if len(some):
        _, away_KN, _ = _one_micro_batch(build_batch(job, strategies.take(some)))
        found[some] = away_KN.max(axis=0)
    return found


def _one_micro_batch(batch: Batch) -> tuple[Floats, Floats, Floats]:
    """Bytes of one micro-batch saved on the device and sent to the host, and a layer's transient; shape (K, N) each."""
    job, strategies, stages, table = batch.job, batch.strategies, batch.stages, batch.table
    layers_KN = stages.total_KN
    micro_KN = stages.layers_JKN[0] * table.kept_J[0]
    transient_KN = np.where(stages.layers_JKN[0] > 0, table.transient_J[0], 0.0)
    for held_KN, kept, transient in zip(stages.layers_JKN[1:], table.kept_J[1:], table.transient_J[1:], strict=True):
        micro_KN = micro_KN + held_KN * kept
        # One layer runs backward at a time, so a stage with several kinds of layer needs the largest kind's
        # transient.
        transient_KN = np.maximum(transient_KN, np.where(held_KN > 0, transient, 0.0))
    staying_KN: Floats = NOTHING
    if strategies.layouts.fixes_recomputation or bool((strategies.recompute == Recompute.FULL).any()):
        again = _recomputed(batch, micro_KN, transient_KN)
        micro_KN, transient_KN = again.saved_KN, again.transient_KN
        if not batch.traits.offloads_layer_inputs:
            staying_KN, layers_KN = again.inputs_KN, layers_KN - again.layers_KN
    away_KN: Floats = NOTHING
    if bool((strategies.offload_activation_layers > 0).any()):
        # The last layer's activations are needed at once, so they are never sent. Layers go in equal shares: which of
        # them are sent is the framework's choice, and layers of a stage differ only where their kinds do.
        count_KN = np.minimum(strategies.offload_activation_layers, layers_KN - 1.0).clip(0.0)
        away_KN = count_KN / np.maximum(layers_KN, 1.0) * (micro_KN - staying_KN)
        micro_KN = micro_KN - away_KN
    if strategies.uses("offload_activation_modules"):
        named_KN = summed(
            held_KN * each for held_KN, each in zip(stages.layers_JKN, offloaded_bytes(batch), strict=True)
        )
        named_KN = (layers_KN - 1.0).clip(0.0) / np.maximum(stages.total_KN, 1.0) * named_KN
        away_KN, micro_KN = away_KN + named_KN, micro_KN - named_KN
    if job.mtp_num_layers:
        micro_KN = micro_KN + np.where(stages.mtp_KN, job.mtp_num_layers * table.mtp_bytes, 0.0)
        if strategies.layouts.moves_mtp:  # the output layer's stage then keeps what it receives of each module
            micro_KN = micro_KN + np.where(stages.head_KN & ~stages.mtp_KN, job.mtp_num_layers * table.hidden, 0.0)
    return micro_KN, away_KN, transient_KN


@dataclass(frozen=True, slots=True)
class _Recomputed:
    """Bytes of a stage with fully recomputed layers, shape (K, N) each."""

    saved_KN: Floats
    """Saved by all layers for one micro-batch."""
    inputs_KN: Floats
    """The part of `saved_KN` that recomputed units keep as their inputs."""
    layers_KN: Floats
    """Number of recomputed layers."""
    transient_KN: Floats


def _recomputed(batch: Batch, micro_KN: Floats, transient_KN: Floats) -> _Recomputed:
    """Bytes of one micro-batch where layers are fully recomputed: each unit keeps its input and is made again in its backward.

    Where some layers of a stage keep everything, they come last in the model. The peak is then at the start of the backward, and
    the units made again later reuse what those layers have freed by then.
    """
    strategies, table = batch.strategies, batch.table
    held_KN = batch.stages.total_KN
    count_KN = recomputed_layers_by_slot(strategies)
    if batch.job.mtp_num_layers:
        modules = batch.job.mtp_num_layers * recomputed_mtp_share(strategies)
        count_KN = count_KN + np.where(batch.stages.mtp_KN, modules, 0.0)
    count_KN = np.minimum(count_KN, held_KN)
    if not layers_run_backward(batch.job.model, batch.job.training):
        count_KN = 0.0 * count_KN  # torch/utils/checkpoint.py keeps nothing of what needs no gradient
    kept_fraction_KN = 1.0 - count_KN / np.maximum(held_KN, 1.0)
    uniform = strategies.recompute_method == RecomputeMethod.UNIFORM
    unit = np.where(uniform, np.maximum(strategies.recompute_num_layers, 1.0), 1.0)
    inputs_KN = count_KN
    if bool(uniform.any()):
        per_chunk_KN = np.ceil(held_KN / strategies.vpp / unit)
        inputs_KN = np.where(uniform & (count_KN > 0), strategies.vpp * per_chunk_KN, count_KN)
    whole = table.whole_J[0]
    for other in table.whole_J[1:]:
        whole = np.maximum(whole, other)
    anew = np.maximum(unit * whole - table.hidden, 0.0)
    # Only where every layer is recomputed does the peak include a layer that is made again: see above.
    all_KN = (count_KN >= held_KN) & (held_KN > 0)
    kept_inputs_KN = inputs_KN * table.hidden
    return _Recomputed(
        saved_KN=micro_KN * kept_fraction_KN + kept_inputs_KN,
        inputs_KN=kept_inputs_KN,
        layers_KN=count_KN,
        transient_KN=transient_KN + np.where(all_KN, anew, 0.0),
    )
