"""Parameters that one rank of each stage holds before data-parallel sharding, kept apart by the ranks that share them.

Dense parameters are shared by dp*cp ranks, routed experts by edp ranks. Array suffixes: K slots, J layer kinds, N strategies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cost_models.job import Job
from cost_models.layers.parameters import (
    dense_layer_parameters_on_rank,
    embedding_parameters,
    expert_layer_parameters_on_rank,
    final_norm_parameters,
    head_parameters,
    norm_parameters,
    padded_vocab_size,
    position_parameters,
)
from cost_models.layers.tower_parameters import rank_tower_elements
from cost_models.layers.trained import adapter_elements, frozen_layer_elements, saved_elements
from cost_models.strategies.strategy import Floats, Strategies
from cost_models.strategies.tensors import summed


@dataclass(frozen=True, eq=False)
class RankParameters:
    """Parameter elements that one rank holds, for N strategies; shape (N,) unless a suffix says otherwise."""

    dense_JN: Floats
    """Elements of one layer of each kind, routed experts excluded."""
    expert_JN: Floats
    """Elements of the routed experts of one layer of each kind."""
    embedding: Floats
    """Elements of the token and position embeddings."""
    head: Floats
    """Elements of everything the last stage holds beside layers: the output projection (a copy where it is tied and pp > 1,
    nothing where it is the embedding itself), the final norm, and the multi-token-prediction modules without their routed
    experts."""
    mtp: Floats
    """The part of `head` that those modules are, with their copy of the embedding."""
    head_expert: Floats
    """Elements of the routed experts of those modules."""
    head_unit: Floats
    """Elements of the output projection and the final norm alone."""
    word: Floats
    """Elements of the token embedding, which a tied output projection shares."""
    tower: Floats | None = None
    """Elements of the towers, which the first stage holds; None where there are none."""


def rank_parameters(job: Job, strategies: Strategies) -> RankParameters:
    """Parameter elements of each part that one rank holds, before data-parallel sharding. [M-1]"""
    model, training = job.model, job.training
    vocab = padded_vocab_size(model, training.framework, strategies.tp)
    word = embedding_parameters(model, vocab) / strategies.tp
    bias = vocab / strategies.tp * float(model.head_bias)
    shared = model.tie_word_embeddings & (strategies.pp == 1)
    # A tied output projection is the embedding itself only where one rank holds both ends; in a pipeline the last
    # stage has a copy, kept equal by the all-reduce of C-15.
    unit = np.where(shared, 0.0, word) + bias + final_norm_parameters(model)
    if model.classes is not None:
        unit = head_parameters(model, vocab) + final_norm_parameters(model)
    modules, expert = mtp_parameters_on_rank(job, strategies)
    if job.mtp_num_layers and not model.tie_word_embeddings:  # a copy of the embedding beside the modules
        modules = modules + np.where(strategies.pp > 1, word, 0.0)
    return RankParameters(
        dense_JN=np.stack(
            [dense_layer_parameters_on_rank(model, kind, strategies.tp) for kind in model.distinct_kinds]
        ),
        expert_JN=np.stack(
            [
                expert_layer_parameters_on_rank(model, kind, strategies.ep, strategies.etp)
                for kind in model.distinct_kinds
            ]
        ),
        embedding=word + position_parameters(model),
        head=unit + modules,
        mtp=np.broadcast_to(modules, np.shape(word)),
        head_expert=expert,
        head_unit=unit,
        word=word,
        tower=rank_tower_elements(job, strategies)[0] if training.tower_uses else None,
    )


def trained_rank_parameters(job: Job, strategies: Strategies) -> RankParameters:
    """The part of `rank_parameters` that has gradients: all of it, the adapters, or what is not frozen. [M-17]"""
    held = rank_parameters(job, strategies)
    model, adapter, frozen, tp = job.model, job.training.adapter, job.training.frozen, strategies.tp
    if adapter is not None:
        none = np.zeros(len(strategies))
        embedding, head = saved_elements(model, adapter)
        return RankParameters(
            dense_JN=np.stack([adapter_elements(model, adapter, kind) / tp for kind in model.distinct_kinds]),
            expert_JN=np.zeros_like(held.expert_JN),
            embedding=embedding / tp,
            head=head / tp,
            mtp=none,
            head_expert=none,
            head_unit=head / tp,
            word=none,
            tower=rank_tower_elements(job, strategies)[1] if job.training.tower_uses else None,
        )
    if job.training.tower_uses:
        held = replace(held, tower=rank_tower_elements(job, strategies)[1])
    if not frozen:
        return held
    without = tuple(part for part in frozen if part != "experts")
    layers = np.stack([frozen_layer_elements(model, kind, without) / tp for kind in model.distinct_kinds])
    embedding_frozen = "embedding" in frozen
    norm = final_norm_parameters(model) * ("norms" in frozen)
    shared = model.tie_word_embeddings
    head_frozen = "head" in frozen or (shared and embedding_frozen)
    own = held.word if model.classes is None else held.head_unit - final_norm_parameters(model)
    lost = np.where(shared & (strategies.pp == 1), 0.0, own) * head_frozen + norm
    return replace(
        held,
        dense_JN=np.maximum(held.dense_JN - layers, 0.0),
        expert_JN=held.expert_JN * ("experts" not in frozen),
        embedding=held.embedding * (not embedding_frozen),
        head=np.maximum(held.head - lost, 0.0),
        head_unit=np.maximum(held.head_unit - lost, 0.0),
        word=held.word * (not embedding_frozen),
    )


def mtp_parameters_on_rank(job: Job, strategies: Strategies) -> tuple[Floats, Floats]:
    """Parameters of the multi-token-prediction modules on one rank, dense ones and routed experts, shape (N,) each. [M-1]

    A module has a decoder layer like the model's last one, a projection of 2h to h and three norms; it shares embedding and
    head with the model.

    Source: DeepSeek-V3, section 2.2; Megatron Core's transformer/multi_token_prediction.py (the projection is column-parallel).
    """
    model, modules = job.model, float(job.mtp_num_layers)
    if not modules:
        none = np.zeros(len(strategies))
        return none, none
    kind = model.layer_kinds[-1]
    projection = 2.0 * model.hidden_size**2 / strategies.tp + 3.0 * norm_parameters(model)
    dense = dense_layer_parameters_on_rank(model, kind, strategies.tp) + projection
    expert = expert_layer_parameters_on_rank(model, kind, strategies.ep, strategies.etp)
    return modules * dense, modules * expert


def dense_by_slot(held: RankParameters, strategies: Strategies) -> Floats:
    """Dense parameters on one rank of each slot's stage, shape (K, N)."""
    layouts, layout = strategies.layouts, strategies.layout
    total = over_kinds(np.take(layouts.slot_layers, layout, axis=-1), held.dense_JN)
    total += np.take(layouts.slot_embedding, layout, axis=-1) * held.embedding
    head_KN = np.take(layouts.slot_head, layout, axis=-1)
    total += head_KN * held.head
    if layouts.moves_mtp:
        total += (np.take(layouts.slot_mtp, layout, axis=-1) * 1.0 - head_KN) * held.mtp
    if held.tower is not None:
        total += np.take(layouts.slot_embedding, layout, axis=-1) * held.tower
    return total


def expert_by_slot(held: RankParameters, strategies: Strategies) -> Floats:
    """Routed-expert parameters on one rank of each slot's stage, shape (K, N)."""
    layouts, layout = strategies.layouts, strategies.layout
    total = over_kinds(np.take(layouts.slot_layers, layout, axis=-1), held.expert_JN)
    total += np.take(layouts.slot_mtp, layout, axis=-1) * held.head_expert
    return total


def over_kinds(layers_JKN: Floats, each_JN: Floats) -> Floats:
    """Sum over layer kinds of a slot's layers times what one of them has, shape (K, N), in the unit of `each_JN`."""
    return summed(layers_KN * each for layers_KN, each in zip(layers_JKN, each_JN, strict=True))
