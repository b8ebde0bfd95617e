"""Bytes of communication buffers: gathered parameters, gradients on their way, sequence and pipeline workspaces.

What is gathered and when is the same as in the time model (`step.fsdp_comm`); here it is held rather than moved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.layers.casts import layer_gather_bytes, weight_copy_bytes
from cost_models.layers.trained import head_is_trained
from cost_models.memory.adapted import reduced_layer, stored_base, trains_all
from cost_models.memory.batch import NOTHING, Batch
from cost_models.specs.training import BYTES_PER
from cost_models.strategies.strategy import Floats


@dataclass(frozen=True, eq=False)
class Buffers:
    """Bytes by moment; shape (K, N), (N,), or () where nothing is held."""

    gather_loss: Floats
    """Gathered parameters while the loss runs."""
    gather_backward: Floats
    """Gathered parameters while a layer's backward runs."""
    reduce_always: Floats
    """Reduction buffers that are never freed."""
    reduce_before_step: Floats
    """Gradients flattened for their reduction, between the last backward and the optimizer step."""
    reduce_loss: Floats
    """Everything the gradient reduction holds while the loss runs."""
    reduce_backward: Floats
    """Everything the gradient reduction holds while a layer's backward runs."""
    deferred: Floats
    """The part of these that waits unsharded for the last micro-batch, whose backward replaces it by shards."""
    head_gradient: Floats
    """Weight gradient of the head with its reduction's input, in addition to `reduce_loss`."""
    permanent: Floats
    """Sequence and pipeline workspaces that are never freed."""
    working: Floats
    """All workspaces, permanent ones included, while forward and backward run."""


def buffers(batch: Batch, *, elements_KN: Floats, trained_KN: Floats) -> Buffers:
    """Bytes of all communication buffers. [M-8] [M-9] [M-10]

    Args:
        batch: strategies with traits, stages and layer table.
        elements_KN: a rank's parameters before data-parallel sharding.
        trained_KN: those of them that have gradients.
    """
    table, whole = batch.table, trains_all(batch.job)
    layer = table.dense_J[0] + table.expert_J[0]
    for dense, expert in zip(table.dense_J[1:], table.expert_J[1:], strict=True):
        layer = np.maximum(layer, dense + expert)
    if not whole:
        layer = max(reduced_layer(batch.job, kind) for kind in batch.job.model.distinct_kinds) / batch.strategies.tp
    gather_loss, gather_backward = _gathers(batch, elements_KN)
    bucketed = batch.traits.reduce_bucket_elements > 0
    reductions = _bucket_reductions(batch, trained_KN) if bucketed else _reductions(batch, trained_KN, layer)
    always, before_step, at_loss, in_backward = reductions
    permanent, working = _workspaces(batch)
    return Buffers(
        gather_loss=gather_loss,
        gather_backward=gather_backward,
        reduce_always=always,
        reduce_before_step=before_step,
        reduce_loss=at_loss,
        reduce_backward=in_backward,
        deferred=_deferred(batch, trained_KN),
        head_gradient=_head_gradient(batch) if head_is_trained(batch.job.model, batch.job.training) else NOTHING,
        permanent=permanent,
        working=working,
    )


def _gathers(batch: Batch, elements_KN: Floats) -> tuple[Floats, Floats]:
    """Bytes of parameters gathered from their shards, at the loss and in a layer's backward. [M-8]"""
    traits, strategies, stages = batch.traits, batch.strategies, batch.stages
    zero, w = strategies.zero, batch.job.training.compute_bytes
    if not (zero >= (2 if traits.zero2_shards_parameters else 3)).any():
        return NOTHING, NOTHING
    embedding_KN, ends_KN = batch.end_words
    kept_KN = NOTHING
    if traits.zero2_shards_parameters:
        narrow = w - layer_gather_bytes(batch.job)  # of every weight in a layer outside its routed experts
        layers_KN = elements_KN - embedding_KN - ends_KN - _expert_elements(batch) if narrow else NOTHING
        kept_KN = np.where(zero == 2, w * elements_KN - narrow * layers_KN, 0.0)
    if traits.ends_stay_gathered:
        single = batch.job.model.tie_word_embeddings & (strategies.pp == 1)
        ends_KN = ends_KN + np.where(single, 0.0, embedding_KN)
    # DeepSpeed keeps parameters gathered up to a number of elements (stage3_max_live_parameters and the prefetch
    # bucket); FSDP holds the running layer and the prefetched one, whatever their size.
    if traits.gather_elements:
        # What is used again soon is not released behind the forward, so that as much is alive at the loss, the head included.
        live_KN = w * np.minimum(elements_KN, traits.gather_elements)
        at_loss_KN = np.maximum(live_KN, w * ends_KN)
        held_KN = np.where(zero >= 3, live_KN + w * ends_KN, 0.0)
        return kept_KN + np.where(zero >= 3, at_loss_KN, 0.0), kept_KN + held_KN
    live_KN = np.where(stages.total_KN > 0, 2.0 * _gathered_layer(batch), 0.0)
    piecewise = zero >= 3
    backward_KN = live_KN + w * ends_KN if traits.ends_stay_gathered else live_KN
    return kept_KN + np.where(piecewise, w * ends_KN, 0.0), kept_KN + np.where(piecewise, backward_KN, 0.0)


def _gathered_layer(batch: Batch) -> Floats:
    """Bytes of the largest layer when gathered, with its quantised copies, shape (N,). [M-8]"""
    job, table = batch.job, batch.table
    copies = weight_copy_bytes(job) if batch.traits.transformer_engine else 0.0
    dense_bytes = layer_gather_bytes(job) + copies
    expert_bytes = job.training.gather_bytes + copies
    if job.training.adapter is not None:
        dense_bytes = min(dense_bytes, stored_base(job).weight)
    each_J = [dense_bytes * d + expert_bytes * e for d, e in zip(table.dense_J, table.expert_J, strict=True)]
    return np.asarray(np.max(each_J, axis=0))


def _expert_elements(batch: Batch) -> Floats:
    """Routed-expert elements of every slot's stage on a rank, shape (K, N)."""
    found = batch.stages.layers_JKN[0] * batch.table.expert_J[0]
    for layers_KN, expert in zip(batch.stages.layers_JKN[1:], batch.table.expert_J[1:], strict=True):
        found = found + layers_KN * expert
    return found


Reductions = tuple[Floats, Floats, Floats, Floats]
"""Bytes of the gradient reduction: held always, flattened before the step, held at the loss, held in a layer's
backward."""


def _reductions(batch: Batch, elements_KN: Floats, layer: Floats) -> Reductions:
    """Bytes of unsharded gradients and reduction inputs of DDP and FSDP. [M-9]"""
    traits, strategies, training = batch.traits, batch.strategies, batch.job.training
    zero, w, held = strategies.zero, training.compute_bytes, BYTES_PER[training.grad_dtype]
    always = NOTHING
    replicated = (zero == 0) & (strategies.dp_cp > 1) & traits.replicated_buckets
    if replicated.any():
        always = np.where(replicated, held, 0.0) * elements_KN
    if not (zero >= 2).any():
        return always, NOTHING, always, always
    reduced = BYTES_PER[training.grad_reduce_dtype]
    at_loss = always + _deferred(batch, elements_KN)
    # Two reduction inputs are alive at a time: those of two layers, or of the head and the layer behind it.
    head_KN = batch.end_words[1] if head_is_trained(batch.job.model, batch.job.training) else NOTHING
    inputs_KN = reduced * (1.0 - batch.deferred) * (layer + np.maximum(layer, head_KN))
    return always, NOTHING, at_loss, at_loss + np.where(zero >= 2, w * layer + inputs_KN, 0.0)


def _deferred(batch: Batch, elements_KN: Floats) -> Floats:
    """Bytes of gradients that accumulate unsharded, in the type in which they are reduced. [M-9]"""
    if not batch.deferred.any() or batch.traits.reduce_bucket_elements > 0:
        return NOTHING
    return BYTES_PER[batch.job.training.grad_reduce_dtype] * batch.deferred * elements_KN


def _bucket_reductions(batch: Batch, elements_KN: Floats) -> Reductions:
    """Bytes of DeepSpeed's reduction buckets. [M-9]

    Stage 3 allocates one bucket when training starts. Stages that reduce through hooks allocate one for a backward and free it
    afterwards, and a second one where reduction overlaps. Other stages, and gradients accumulated in a type of their own, are
    flattened one bucket at a time when the last backward is over.
    """
    traits, strategies, training = batch.traits, batch.strategies, batch.job.training
    zero, size, replicas = strategies.zero, traits.reduce_bucket_elements, strategies.dp_cp > 1
    w, held = training.compute_bytes, BYTES_PER[training.grad_dtype]
    accumulates = traits.compute_gradients == "backward" and held > w  # BF16_Optimizer, which knows no stage above 1
    hooks_from = 2 if accumulates else batch.job.framework.reduces_in_backward_from
    bucket = BYTES_PER[training.param_dtype] * size
    always = np.where(zero >= 3, bucket, 0.0)
    if traits.offload_staging and bool((strategies.offload_optimizer_fraction > 0).any()):
        stages_gradients = (strategies.offload_optimizer_fraction > 0) & (zero >= 1) & (zero <= 2)
        always = always + np.where(stages_gradients, held * batch.table.word, 0.0)
    staged = (zero >= hooks_from) & (zero <= 2)
    buckets = np.where(staged, bucket * (1.0 + strategies.overlap_grad_reduce), 0.0)
    at_loss = always + buckets
    if traits.buckets_at_first_gradient:
        # Stage 2 frees them behind every micro-batch, stage 1 behind the last one, which reduces.
        later = (zero < 2) & (strategies.num_micro_batches > 1)
        at_loss = always + np.where(later, buckets, 0.0)
    flat_KN = np.where(replicas, held, 0.0) * np.minimum(elements_KN, size)
    before_step_KN = np.where(zero < hooks_from, flat_KN, 0.0)
    if batch.job.training.adapter is not None:  # own peft runs: no bucket is there yet when the loss's memory peaks
        at_loss = always
    in_backward = always + buckets
    if accumulates:
        in_backward = in_backward + np.where(zero < 2, w, 0.0) * elements_KN
    return always, before_step_KN, at_loss, in_backward


def _head_gradient(batch: Batch) -> Floats:
    """Bytes of the head's weight gradient where no product adds it into the buffer, and of its reduction's input, shape
    (N,). [M-9]
    """
    traits, training = batch.traits, batch.job.training
    # A product that accumulates writes into the gradient buffer at once and needs no tensor of its own.
    w = 0.0 if traits.fuses_weight_gradients else training.compute_bytes
    sharded = (batch.strategies.zero >= 2) & (traits.reduce_bucket_elements == 0)
    reduction = np.where(sharded, training.compute_bytes - w + BYTES_PER[training.grad_reduce_dtype], 0.0)
    return np.asarray((w + reduction) * batch.table.head_word)


def _workspaces(batch: Batch) -> tuple[Floats, Floats]:
    """Bytes of sequence workspaces and pipeline buffers: the permanent ones, and all that exist in forward and backward.
    [M-10]
    """
    traits, strategies, stages, table = batch.traits, batch.strategies, batch.stages, batch.table
    split = strategies.sequence_parallel & (strategies.tp > 1)
    gathers_again = not batch.job.framework.keeps_gathered_norms  # what stays saved needs no buffer to be gathered into
    permanent: Floats = np.where(split, gathers_again * traits.sequence_workspaces * table.sequence, 0.0)
    pipelined = strategies.pp > 1
    working = permanent + 2.0 * table.gathered_kv
    if not pipelined.any():
        return permanent, working
    if not traits.buffers_pipeline_inputs:
        return permanent, working + np.where(pipelined, 2.0 * table.hidden, 0.0)
    later_KN = (stages.stage_KN > 0).astype(np.float64)
    earlier_KN = (stages.stage_KN < strategies.pp - 1).astype(np.float64)
    # Every chunk receives activations from the one before it and gradients from the one after it, except that the
    # model's first chunk receives no activations and its last no gradients.
    received_KN = 2.0 * (strategies.vpp - 1.0) + later_KN + earlier_KN
    hidden = np.where(pipelined, table.hidden, 0.0)
    buffers_KN = strategies.num_micro_batches * hidden * received_KN
    # A stage's outputs are kept with their micro-batch, and its inputs lie in the buffers. So only the first stage's
    # outputs are extra, and the last stage's inputs would be counted twice: with its layers, or, where it has none, with its
    # final norm, which counts one micro-batch's. One more tensor is a gradient on its way.
    counted_KN = np.where((stages.total_KN > 0) | (earlier_KN > 0), stages.in_flight_KN, 1.0)
    kept_KN = hidden * (counted_KN * (earlier_KN - later_KN) + later_KN)
    return permanent + buffers_KN, working + buffers_KN + kept_KN
