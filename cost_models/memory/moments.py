"""Allocated bytes of every stage slot at each of the step's few moments, as named terms.

Totals add a moment's terms in the order of `terms.MEMORY_NAMES`, so a breakdown sums to its total to the last bit. The peak
is the largest moment, never a sum of maxima.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cost_models.job import Job
from cost_models.memory.communication import Buffers, buffers, deferred_reduction
from cost_models.memory.constants import constant
from cost_models.memory.in_flight import StageContents, stage_contents
from cost_models.memory.layer_table import LayerTable, layer_table
from cost_models.memory.loss import loss_bytes
from cost_models.memory.stage_activations import StageActivations, stage_activations
from cost_models.memory.states import expert_shard, state_bytes
from cost_models.memory.traits import MemoryTraits, memory_traits
from cost_models.specs.training import BYTES_PER
from cost_models.strategy import Floats, Strategies
from cost_models.terms import MEMORY_NAMES

Terms = Mapping[str, Floats]
_NOTHING = np.zeros(())
_LARGE_WORKSPACE_GENERATIONS = ("hopper", "blackwell")


@dataclass(frozen=True, eq=False)
class Moments:
    """Terms and totals of a batch, with what the reserved and device bytes need."""

    terms: Mapping[str, Terms]
    """By moment and name; absent names are zero. Moments of the head alone have shape (N,), the others (K, N)."""
    totals: Mapping[str, Floats]
    stages: StageContents
    table: LayerTable
    traits: MemoryTraits
    states: States
    host_KN: Floats
    """Bytes that the rank keeps in host memory."""


@dataclass(frozen=True, eq=False)
class States:
    """Elements and state bytes of every slot, shape (K, N) each."""

    elements_KN: Floats
    """A rank's parameters before data-parallel sharding."""
    parameters_KN: Floats
    main_KN: Floats
    gradients_KN: Floats
    """Held after backward."""
    early_gradients_KN: Floats
    """Held when a later micro-batch's loss and backward run."""
    optimizer_KN: Floats
    step_KN: Floats
    host_KN: Floats
    gradients_exist: Floats
    """1 where gradients are held before the step's last backward, shape (N,)."""


def moments(job: Job, strategies: Strategies) -> Moments:
    """Every term at every moment. [M-1 ... M-12]"""
    traits = memory_traits(job.training)
    stages = stage_contents(strategies, mtp_layers=job.model.mtp_num_layers)
    table = layer_table(job, traits, strategies)
    states = _states(job, traits, strategies, stages, table)
    comm = buffers(job, traits, strategies, stages=stages, table=table, parameters_KN=states.elements_KN)
    activations = stage_activations(
        job, traits, strategies, stages=stages, table=table, parameters_KN=states.elements_KN
    )
    terms = _terms(job, traits, strategies, stages, table, states, comm, activations)
    return Moments(
        terms=terms,
        totals={name: _total(held) for name, held in terms.items()},
        stages=stages,
        table=table,
        traits=traits,
        states=states,
        host_KN=states.host_KN + activations.host_KN,
    )


def _total(terms: Terms) -> Floats:
    """Sum of a moment's terms, in the order of MEMORY_NAMES."""
    present = [terms[name] for name in MEMORY_NAMES if name in terms and terms[name].ndim]
    total = present[0] + present[1]
    for term in present[2:]:
        np.add(total, term, out=total)
    return total


def _terms(
    job: Job,
    traits: MemoryTraits,
    strategies: Strategies,
    stages: StageContents,
    table: LayerTable,
    states: States,
    comm: Buffers,
    activations: StageActivations,
) -> dict[str, Terms]:
    """The terms of each moment."""
    always = {
        "parameters": states.parameters_KN,
        "main_parameters": states.main_KN,
        "optimizer_states": states.optimizer_KN,
        "library_workspace": _library(job, traits, strategies, stages, table),
    }
    w = job.training.compute_bytes
    keeps_logits = (strategies.pp > 1) & traits.buffers_pipeline_inputs
    kept_logits = np.where(keeps_logits, w * table.logit, 0.0) if bool(keeps_logits.any()) else _NOTHING
    at_head = always | {
        "gradients": states.early_gradients_KN,
        "activations": activations.saved_KN,
        "parameter_gather": comm.gather_loss_KN,
        "gradient_reduce": comm.reduce_loss_KN,
        "comm_workspace": comm.working_KN,
    }
    at_head = {name: stages.at_head(value) for name, value in at_head.items()}
    at_head["activations"] = at_head["activations"] + table.final_norm_bytes
    logit_gradient = _NOTHING if loss_bytes(job, traits).linear else w * table.logit
    backward = _backward(states, activations, stages)
    if kept_logits.ndim:
        backward["logits_and_loss"] = np.where(stages.head_KN, kept_logits, 0.0)
    return {
        "loss": at_head | {"logits_and_loss": table.loss + kept_logits},
        "layer_backward": always
        | backward
        | {
            "parameter_gather": comm.gather_backward_KN,
            "gradient_reduce": comm.reduce_backward_KN,
            "comm_workspace": comm.working_KN,
        },
        "head": at_head
        | {
            "logits_and_loss": logit_gradient + kept_logits,
            "gradient_reduce": at_head["gradient_reduce"] + comm.head_gradient,
        },
        "optimizer_step": always
        | {
            "gradients": states.gradients_KN,
            "gradient_reduce": comm.reduce_always_KN,
            "comm_workspace": comm.permanent_KN,
            "optimizer_transient": states.step_KN,
        },
    }


def _backward(states: States, activations: StageActivations, stages: StageContents) -> dict[str, Floats]:
    """Activations, gradients and the layer's transient in a layer's backward.

    Where gradients appear only now, activations shrink as they grow, so the peak is at one end: the first layer's
    backward with everything saved, or the last one's with all gradients.
    """
    terms = {
        "activations": activations.saved_KN,
        "gradients": states.early_gradients_KN,
        "layer_transient": activations.transient_KN,
    }
    if bool(np.all(states.gradients_exist > 0)):
        return terms
    late_KN = (states.gradients_exist == 0) & (
        states.gradients_KN - states.early_gradients_KN > activations.saved_KN - activations.layer_KN
    )
    terms["activations"] = np.where(late_KN, activations.layer_KN, activations.saved_KN)
    terms["gradients"] = np.where(late_KN, states.gradients_KN, states.early_gradients_KN)
    return terms


def _elements(job: Job, strategies: Strategies, stages: StageContents, table: LayerTable) -> tuple[Floats, Floats]:
    """Dense and routed-expert elements of every slot on a rank, shape (K, N); experts () without a mixture."""
    dense_KN = stages.layers_JKN[0] * table.dense_J[0]
    for layers_KN, dense in zip(stages.layers_JKN[1:], table.dense_J[1:], strict=True):
        dense_KN = dense_KN + layers_KN * dense
    copy = table.word
    if job.model.tie_word_embeddings:
        copy = np.where(strategies.pp > 1, table.word, 0.0)
        if stages.folded is not None:  # one stage holds both ends and shares the table
            copy = np.where(stages.folded, 0.0, copy)
    head = copy + table.final_norm + job.model.mtp_num_layers * table.mtp
    dense_KN = dense_KN + np.where(stages.first_KN, table.word + table.positions, 0.0)
    dense_KN += np.where(stages.head_KN, head, 0.0)
    if job.model.moe is None:
        return dense_KN, _NOTHING
    expert_KN = stages.layers_JKN[0] * table.expert_J[0]
    for layers_KN, expert in zip(stages.layers_JKN[1:], table.expert_J[1:], strict=True):
        expert_KN = expert_KN + layers_KN * expert
    return dense_KN, expert_KN


def _states(
    job: Job, traits: MemoryTraits, strategies: Strategies, stages: StageContents, table: LayerTable
) -> States:
    """State bytes of every slot. [M-1, M-2, M-3, M-4]"""
    dense_KN, expert_KN = _elements(job, strategies, stages, table)
    dense = state_bytes(job, traits, strategies, shard=strategies.zero_shard_size)
    parts = {name: dense_KN * getattr(dense, name) for name in dense.__slots__}
    elements_KN = dense_KN
    if expert_KN.ndim:
        expert = state_bytes(job, traits, strategies, shard=expert_shard(strategies))
        parts = {name: value + expert_KN * getattr(expert, name) for name, value in parts.items()}
        elements_KN = dense_KN + expert_KN
    training = job.training
    held, w = BYTES_PER[training.grad_dtype], training.compute_bytes
    gradients_KN = parts["gradients"]
    if traits.compute_gradients == "always" and held > w:
        gradients_KN = gradients_KN + w * elements_KN
    if traits.embedding_gradient_whole:
        whole = np.where(strategies.zero == 0, held * table.word * (strategies.tp - 1.0), 0.0)
        gradients_KN = gradients_KN + np.where(stages.first_KN, whole, 0.0)
    exist = traits.gradients_persist | (strategies.num_micro_batches > 1)
    exist = exist & ~((strategies.zero >= 2) & (not traits.gradients_persist) & deferred_reduction(traits, strategies))
    return States(
        elements_KN=elements_KN,
        parameters_KN=parts["parameters"] + _quantised_copies(job, traits, strategies, stages, table, elements_KN),
        main_KN=parts["main"] if BYTES_PER[training.main_param_dtype] else _NOTHING,
        gradients_KN=gradients_KN,
        early_gradients_KN=gradients_KN if bool(exist.all()) else np.where(exist, gradients_KN, 0.0),
        optimizer_KN=parts["optimizer"],
        step_KN=parts["step"],
        host_KN=parts["host"],
        gradients_exist=exist.astype(np.float64),
    )


def _quantised_copies(
    job: Job,
    traits: MemoryTraits,
    strategies: Strategies,
    stages: StageContents,
    table: LayerTable,
    elements_KN: Floats,
) -> Floats:
    """fp8 copies of the layers' weights, as they are and transposed, kept over the micro-batches of a step. [M-1]"""
    training = job.training
    if training.precision not in ("fp8", "nvfp4") or not traits.fuses_weight_gradients:
        return _NOTHING
    copies = 2.0 - (1.0 if training.param_dtype == "fp8" else 0.0)
    ends_KN = np.where(stages.first_KN, table.word, 0.0) + np.where(stages.head_KN, table.word, 0.0)
    return copies * np.maximum(elements_KN - ends_KN, 0.0)


def _library(
    job: Job, traits: MemoryTraits, strategies: Strategies, stages: StageContents, table: LayerTable
) -> Floats:
    """GEMM workspaces, and one cached dummy gradient per distinct weight shape. [M-12]"""
    large = job.cluster.gpu.generation in _LARGE_WORKSPACE_GENERATIONS
    workspace = constant("cublas_workspace_hopper" if large else "cublas_workspace_older")
    if not traits.fuses_weight_gradients:
        return np.full(len(strategies), workspace)
    elements_KN = np.where(stages.head_KN, table.word, 0.0)
    kinds = job.model.distinct_kinds
    moe = [layers for layers, kind in zip(stages.layers_JKN, kinds, strict=True) if kind.is_moe]
    dense = [layers for layers, kind in zip(stages.layers_JKN, kinds, strict=True) if not kind.is_moe]
    for layers, cached in ((dense, table.cached_dense), (moe, table.cached_moe)):
        if layers:
            elements_KN = elements_KN + np.where(sum(layers[1:], layers[0]) > 0, cached, 0.0)
    if moe and dense:
        both = (sum(moe[1:], moe[0]) > 0) & (sum(dense[1:], dense[0]) > 0)
        elements_KN = elements_KN - np.where(both, table.cached_both, 0.0)
    return workspace + BYTES_PER[job.training.param_dtype] * elements_KN
