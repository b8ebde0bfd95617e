"""Allocated bytes of every stage slot at each of the step's few moments, as named terms.

The peak is the largest moment, never a sum of maxima: a layer's backward and the optimizer's step never happen together.
Totals add a moment's terms in the order of `terms.MEMORY_NAMES`, so that a breakdown sums to its total to the last bit.
Terms of the head alone have shape (N,), the others (K, N); an array of shape () is zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cost_models.job import Job
from cost_models.memory.batch import NOTHING, Batch, build_batch
from cost_models.memory.communication import Buffers, buffers
from cost_models.memory.constants import CUBLAS_WORKSPACE_HOPPER_BYTES, CUBLAS_WORKSPACE_OLDER_BYTES
from cost_models.memory.loss import loss_bytes
from cost_models.memory.replica_state import replica_state_bytes
from cost_models.memory.stage_activations import StageActivations, stage_activations
from cost_models.memory.states import StageStates, stage_states
from cost_models.specs.training import BYTES_PER
from cost_models.strategies.strategy import Floats, Strategies
from cost_models.terms import MEMORY_NAMES

Terms = Mapping[str, Floats]
DUMMY_GRADIENTS_CACHED_SINCE = "2025-05"
"""Transformer Engine 2.3 (get_dummy_wgrad in pytorch/module/base.py); 2.2 allocates one for each use and frees it."""
_LARGE_WORKSPACE_GENERATIONS = ("hopper", "blackwell")


@dataclass(frozen=True, eq=False)
class Moments:
    """Terms and totals of a batch, in bytes, with what the reserved and device bytes are computed from."""

    terms: Mapping[str, Terms]
    """Bytes by moment and term; absent names are zero."""
    totals: Mapping[str, Floats]
    """Bytes by moment."""
    batch: Batch
    states: StageStates
    host_KN: Floats
    """Bytes that a rank keeps in host memory."""


def moments(job: Job, strategies: Strategies) -> Moments:
    """Bytes of every term at every moment. [M-1] [M-12]"""
    batch = build_batch(job, strategies)
    states = stage_states(batch)
    communication = buffers(batch, elements_KN=states.elements_KN, trained_KN=states.trained_KN)
    activations = stage_activations(batch, elements_KN=states.trained_KN)
    optimizer_KN, host_KN = states.bytes_KN.optimizer, states.bytes_KN.host + activations.host_KN
    # Counted with the optimizer's state: like it, all of this lives through the whole step.
    if not job.method.is_plain:
        held_KN, away_KN = replica_state_bytes(batch, trained_KN=states.trained_KN)
        optimizer_KN, host_KN = optimizer_KN + held_KN, host_KN + away_KN
    always = {
        "parameters": states.bytes_KN.parameters,
        "main_parameters": states.bytes_KN.main,
        "optimizer_states": optimizer_KN,
        "library_workspace": _library(batch),
    }
    terms = {
        **_at_head(batch, always, states, communication, activations),
        "layer_backward": always | _in_backward(batch, states, communication, activations),
        "optimizer_step": always
        | {
            "gradients": states.bytes_KN.gradients,
            "gradient_reduce": _reduced_by_step(states, communication),
            "comm_workspace": communication.permanent,
            "optimizer_transient": states.bytes_KN.step,
        },
    }
    if job.corrections.changes_memory:
        of_bytes = job.corrections.of_bytes
        terms = {
            moment: {name: of_bytes(name, value) for name, value in held.items()} for moment, held in terms.items()
        }
    totals = {name: _total(held) for name, held in terms.items()}
    return Moments(terms, totals, batch, states, host_KN)


def _reduced_by_step(states: StageStates, communication: Buffers) -> Floats:
    """Bytes of reduction buffers around the optimizer step, shape (K, N) or less.

    Buffers that gradients are flattened into before the step are freed before the step's own temporaries are made, so of the
    two only the larger counts.
    """
    before, during = communication.reduce_before_step, states.bytes_KN.step
    if not before.ndim:
        return communication.reduce_always
    return np.asarray(communication.reduce_always + np.maximum(before - during, 0.0))


def _total(terms: Terms) -> Floats:
    """Bytes of a moment, the sum of its terms in the order of MEMORY_NAMES."""
    # The first two are added into a new array, which the rest can then be added to in place: the terms themselves are
    # kept for breakdowns and must not change.
    present = [terms[name] for name in MEMORY_NAMES if name in terms and terms[name].ndim]
    total = present[0] + present[1]
    for term in present[2:]:
        np.add(total, term, out=total)
    return total


def _at_head(
    batch: Batch, always: Terms, states: StageStates, communication: Buffers, activations: StageActivations
) -> dict[str, Terms]:
    """Terms of the loss, and of the head's weight gradient after it, on the stage that holds the head; shape (N,) each.
    [M-7]
    """
    table, w = batch.table, batch.job.training.compute_bytes
    common = dict(always) | {
        "gradients": states.early_gradients_KN,
        "activations": activations.saved_KN,
        "parameter_gather": communication.gather_loss,
        "gradient_reduce": communication.reduce_loss,
        "comm_workspace": communication.working,
    }
    common = {name: batch.stages.at_head(value) for name, value in common.items()}
    common["activations"] = common["activations"] + table.final_norm_bytes
    # A fused linear loss never holds logits, so there is no gradient of them either.
    kept, entry = _kept_logits(batch), loss_bytes(batch.job, batch.traits)
    gradient = NOTHING if entry.linear else w * table.logit / entry.chunks
    reduce = common["gradient_reduce"] + communication.head_gradient
    at_loss = {"logits_and_loss": table.loss + kept}
    # Without chunks the head's gradient is made after the loss has freed its temporaries, hence the two moments.
    if entry.chunks > 1:  # all chunks but the first find the head's gradient of those before them
        at_loss["gradient_reduce"] = reduce
    return {
        "loss": common | at_loss,
        "head": common | {"logits_and_loss": gradient + kept, "gradient_reduce": reduce},
    }


def _kept_logits(batch: Batch) -> Floats:
    """Bytes of logits that a pipeline schedule keeps because they are its last stage's output, shape (N,) or (). [M-7]"""
    keeps = (batch.strategies.pp > 1) & batch.traits.buffers_pipeline_inputs
    if loss_bytes(batch.job, batch.traits).chunks > 1:  # the stage's output is the hidden states, which the head reads
        return NOTHING
    return np.where(keeps, batch.job.training.compute_bytes * batch.table.logit, 0.0) if bool(keeps.any()) else NOTHING


def _in_backward(
    batch: Batch, states: StageStates, communication: Buffers, activations: StageActivations
) -> dict[str, Floats]:
    """Terms of a layer's backward. [M-6]

    Where gradients appear only during this backward, activations shrink while gradients grow, so that the peak is at one of the
    ends: the first layer's backward with everything saved, or the last layer's with all gradients.
    """
    saved_KN, gradients_KN = activations.saved_KN, states.early_gradients_KN
    reduce = communication.reduce_backward
    if not bool(states.gradients_exist.all()):
        grown_KN = states.bytes_KN.gradients - gradients_KN - communication.deferred
        late_KN = (states.gradients_exist == 0) & (grown_KN > saved_KN - activations.layer_KN)
        saved_KN = np.where(late_KN, activations.layer_KN, saved_KN)
        gradients_KN = np.where(late_KN, states.bytes_KN.gradients, gradients_KN)
        if communication.deferred.ndim:
            reduce = np.where(late_KN, reduce - communication.deferred, reduce)
    kept = _kept_logits(batch)
    return {
        "gradients": gradients_KN,
        "activations": saved_KN,
        "layer_transient": activations.transient_KN,
        "logits_and_loss": np.where(batch.stages.head_KN, kept, 0.0) if kept.ndim else NOTHING,
        "parameter_gather": communication.gather_backward,
        "gradient_reduce": reduce,
        "comm_workspace": communication.working,
    }


def _library(batch: Batch) -> Floats:
    """Bytes of GEMM workspaces, and of the dummy weight gradients that Transformer Engine caches, shape (N,) or (K, N). [M-12]

    Where weight gradients are added into the buffer by their product, autograd still wants a gradient tensor; Transformer Engine
    hands it a dummy, one for each distinct weight shape.
    """
    stages, table = batch.stages, batch.table
    large = batch.job.cluster.gpu.generation in _LARGE_WORKSPACE_GENERATIONS
    workspace = (CUBLAS_WORKSPACE_HOPPER_BYTES if large else CUBLAS_WORKSPACE_OLDER_BYTES).value
    caches = batch.traits.fuses_weight_gradients and batch.job.training.software_date >= DUMMY_GRADIENTS_CACHED_SINCE
    if not caches:
        return np.full(len(batch.strategies), workspace)
    elements_KN = batch.end_words[1]
    kinds = batch.job.model.distinct_kinds
    held = {
        is_moe: [layers for layers, kind in zip(stages.layers_JKN, kinds, strict=True) if kind.is_moe == is_moe]
        for is_moe in (False, True)
    }
    has = {is_moe: np.sum(layers, axis=0) > 0 for is_moe, layers in held.items() if layers}
    for is_moe, present_KN in has.items():
        elements_KN = elements_KN + np.where(present_KN, table.cached_moe if is_moe else table.cached_dense, 0.0)
    # A stage with dense and mixture layers has attention matrices of one shape in both; their dummies are shared.
    if len(has) == 2:
        elements_KN = elements_KN - np.where(has[False] & has[True], table.cached_both, 0.0)
    return np.asarray(workspace + BYTES_PER[batch.job.training.param_dtype] * elements_KN)
