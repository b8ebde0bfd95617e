"""Buffers of communication: gathered parameters, gradients on their way, sequence and pipeline workspaces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.job import Job
from cost_models.memory.in_flight import StageContents
from cost_models.memory.layer_table import LayerTable
from cost_models.memory.traits import MemoryTraits
from cost_models.specs.training import BYTES_PER
from cost_models.strategy import Bools, Floats, Strategies


_NOTHING = np.zeros(())
"""A term that is zero everywhere; sums skip it."""


@dataclass(frozen=True, eq=False)
class Buffers:
    """Bytes by moment; shape (K, N), (N,) where the name lacks the suffix, or () where nothing is held."""

    gather_loss_KN: Floats
    """Gathered parameters while the loss runs."""
    gather_backward_KN: Floats
    reduce_always_KN: Floats
    """Reduction buffers that are never freed."""
    reduce_loss_KN: Floats
    """All of the gradient reduction while the loss runs."""
    reduce_backward_KN: Floats
    """The same while a layer's backward runs."""
    head_gradient: Floats
    """Weight gradient of the head with its reduction, on top of reduce_loss_KN."""
    permanent_KN: Floats
    """Sequence and pipeline workspaces that are never freed."""
    working_KN: Floats
    """Those workspaces while forward and backward run."""


def buffers(
    job: Job,
    traits: MemoryTraits,
    strategies: Strategies,
    *,
    stages: StageContents,
    table: LayerTable,
    parameters_KN: Floats,
) -> Buffers:
    """Communication buffers; `parameters_KN` are a rank's elements before data-parallel sharding. [M-8, M-9, M-10]"""
    layer = table.dense_J[0] + table.expert_J[0]
    for dense, expert in zip(table.dense_J[1:], table.expert_J[1:], strict=True):
        layer = np.maximum(layer, dense + expert)
    scene = _Scene(job, traits, strategies, stages, table, parameters_KN, layer)
    gather_loss_KN, gather_backward_KN = _gathers(scene)
    always_KN, loss_KN, backward_KN = _reductions(scene)
    permanent_KN, working_KN = _workspaces(scene)
    return Buffers(
        gather_loss_KN=gather_loss_KN,
        gather_backward_KN=gather_backward_KN,
        reduce_always_KN=always_KN,
        reduce_loss_KN=loss_KN,
        reduce_backward_KN=backward_KN,
        head_gradient=_head_gradient(scene),
        permanent_KN=permanent_KN,
        working_KN=working_KN,
    )


@dataclass(frozen=True, slots=True)
class _Scene:
    """What every buffer depends on; `layer` is the largest layer's elements on a rank, shape (N,)."""

    job: Job
    traits: MemoryTraits
    strategies: Strategies
    stages: StageContents
    table: LayerTable
    parameters_KN: Floats
    layer: Floats


def _gathers(scene: _Scene) -> tuple[Floats, Floats]:
    """Parameters gathered from their shards, at the loss and in a layer's backward. [M-8]"""
    traits, stages, table, strategies = scene.traits, scene.stages, scene.table, scene.strategies
    zero, w = strategies.zero, scene.job.training.compute_bytes
    if not (zero >= (2 if traits.zero2_shards_parameters else 3)).any():
        return _NOTHING, _NOTHING
    whole = np.where((zero == 2) & traits.zero2_shards_parameters, w, 0.0)
    piecewise = np.where(zero >= 3, w, 0.0)
    ends_KN = np.where(stages.head_KN, table.word, 0.0)
    if traits.ends_stay_gathered:
        single = scene.job.model.tie_word_embeddings & (strategies.pp == 1)
        ends_KN = ends_KN + np.where(stages.first_KN & ~single, table.word + table.positions, 0.0)
    if traits.gather_elements > 0:
        live_KN = np.minimum(scene.parameters_KN, traits.gather_elements)
    else:
        live_KN = np.where(stages.total_KN > 0, 2.0 * scene.layer, 0.0)
    kept_KN = whole * scene.parameters_KN
    backward_KN = live_KN + ends_KN if traits.ends_stay_gathered else live_KN
    return kept_KN + piecewise * ends_KN, kept_KN + piecewise * backward_KN


def _reductions(scene: _Scene) -> tuple[Floats, Floats, Floats]:
    """Unsharded gradients and reduction buckets: always there, at the loss, in a layer's backward. [M-9]"""
    traits, strategies, training = scene.traits, scene.strategies, scene.job.training
    zero, w, held = strategies.zero, training.compute_bytes, BYTES_PER[training.grad_dtype]
    always_KN = _NOTHING
    replicated = (zero == 0) & (strategies.dp_cp > 1) & traits.replicated_buckets
    if replicated.any():
        always_KN = np.where(replicated, held, 0.0) * scene.parameters_KN
    accumulates = traits.compute_gradients == "backward" and held > w
    if traits.reduce_bucket_elements > 0 and not accumulates:
        elements_KN = np.minimum(scene.parameters_KN, traits.reduce_bucket_elements)
        always_KN = np.where(zero >= 1, 2.0 * BYTES_PER[training.param_dtype], 0.0) * elements_KN
    backward_KN = always_KN
    if accumulates:
        backward_KN = always_KN + w * scene.parameters_KN
    if traits.reduce_bucket_elements > 0 or not (zero >= 2).any():
        return always_KN, always_KN, backward_KN
    reduced = BYTES_PER[training.grad_reduce_dtype]
    deferred = (zero >= 2) & deferred_reduction(traits, strategies)
    loss_KN = always_KN + np.where(deferred, reduced, 0.0) * scene.parameters_KN
    head_KN = np.where(scene.stages.head_KN, scene.table.word, 0.0)
    inputs_KN = np.where(deferred, 0.0, reduced) * (scene.layer + np.maximum(scene.layer, head_KN))
    return always_KN, loss_KN, loss_KN + np.where(zero >= 2, w * scene.layer + inputs_KN, 0.0)


def _head_gradient(scene: _Scene) -> Floats:
    """The head's weight gradient where no GEMM adds it into the buffer, and its reduction's input."""
    training, zero = scene.job.training, scene.strategies.zero
    w = 0.0 if scene.traits.fuses_weight_gradients else training.compute_bytes
    if scene.traits.reduce_bucket_elements > 0 or not (zero >= 2).any():
        return np.asarray(w * scene.table.word)
    return np.asarray((training.compute_bytes + BYTES_PER[training.grad_reduce_dtype] * (zero >= 2)) * scene.table.word)


def deferred_reduction(traits: MemoryTraits, strategies: Strategies) -> Bools:
    """Where gradients of all micro-batches accumulate unsharded before one reduction, shape (N,)."""
    pipelined = (strategies.pp > 1) & traits.defers_pipeline_reduction
    return (strategies.num_micro_batches > 1) & (pipelined | ~strategies.grad_sync_each)


def _workspaces(scene: _Scene) -> tuple[Floats, Floats]:
    """Sequence workspaces and pipeline buffers: permanent ones, and all that exist in forward and backward. [M-10]"""
    traits, strategies, stages, table = scene.traits, scene.strategies, scene.stages, scene.table
    split = strategies.sequence_parallel & (strategies.tp > 1)
    permanent: Floats = np.where(split, traits.sequence_workspaces * table.sequence, 0.0)
    pipelined = strategies.pp > 1
    working = permanent + 2.0 * table.gathered_kv
    if not pipelined.any():
        return permanent, working
    if not traits.buffers_pipeline_inputs:
        return permanent, working + np.where(pipelined, 2.0 * table.hidden, 0.0)
    later_KN = (stages.stage_KN > 0).astype(np.float64)
    earlier_KN = (stages.stage_KN < strategies.pp - 1).astype(np.float64)
    received_KN = 2.0 * (strategies.vpp - 1.0) + later_KN + earlier_KN
    hidden = np.where(pipelined, table.hidden, 0.0)
    buffers_KN = strategies.num_micro_batches * hidden * received_KN
    # A stage's outputs stay with their micro-batch, its inputs lie in the buffers: only the first stage's outputs are
    # extra, the last stage's inputs would be counted twice. One more tensor is a gradient on its way.
    kept_KN = hidden * (stages.in_flight_KN * (earlier_KN - later_KN) + later_KN)
    return permanent + buffers_KN, working + buffers_KN + kept_KN
