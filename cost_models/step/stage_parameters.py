"""Parameters that one rank of each stage holds before data-parallel sharding, split by who shares them.

Array suffixes: K slots, J layer kinds. Dense parameters are shared by dp*cp ranks, experts by edp ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.job import Job
from cost_models.layers.parameters import (
    dense_layer_parameters_on_rank,
    embedding_parameters,
    expert_layer_parameters_on_rank,
    final_norm_parameters,
    norm_parameters,
    padded_vocab_size,
    position_parameters,
)
from cost_models.strategies.strategy import Floats, Strategies
from cost_models.strategies.tensors import summed


@dataclass(frozen=True, eq=False)
class RankParameters:
    """Elements per rank, over a batch of N strategies."""

    dense_JN: Floats
    """One layer of each kind, experts excluded."""
    expert_JN: Floats
    """Routed experts of one layer of each kind."""
    embedding: Floats
    """Token and position embedding, shape (N,)."""
    head: Floats
    """Output projection (a copy where it is tied and pp > 1; nothing where it is the embedding itself), final norm, and the
    multi-token-prediction modules but for their routed experts."""
    head_expert: Floats
    """Routed experts of those modules."""
    head_unit: Floats
    """Output projection and final norm alone."""
    word: Floats
    """Of the embedding what a tied output projection shares."""


def rank_parameters(job: Job, strategies: Strategies) -> RankParameters:
    """Elements of each part that a rank of these strategies holds."""
    model, training = job.model, job.training
    vocab = padded_vocab_size(model, training.framework, strategies.tp)
    word = embedding_parameters(model, vocab) / strategies.tp
    bias = vocab / strategies.tp * float(model.head_bias)
    shared = model.tie_word_embeddings & (strategies.pp == 1)
    unit = np.where(shared, 0.0, word) + bias + final_norm_parameters(model)
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
        head_expert=expert,
        head_unit=unit,
        word=word,
    )


def mtp_parameters_on_rank(job: Job, strategies: Strategies) -> tuple[Floats, Floats]:
    """Parameters of the multi-token-prediction modules on one rank, routed experts apart, shape (N,) each. [M-1]

    DeepSeek-V3, section 2.2: each has a decoder layer like the last one, a projection of 2h to h (column-parallel in
    megatron/core/transformer/multi_token_prediction.py) and three norms; embedding and head are shared.
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
    """Dense parameters of each slot's stage on one rank, shape (K, N)."""
    layouts, layout = strategies.layouts, strategies.layout
    layers_KJN = layouts.layers_LKJ[layout].transpose(1, 2, 0)
    total = over_kinds(layers_KJN, held.dense_JN)
    total += layouts.has_embedding_LK[layout].T * held.embedding
    return np.asarray(total + layouts.has_head_LK[layout].T * held.head)


def expert_by_slot(held: RankParameters, strategies: Strategies) -> Floats:
    """Routed-expert parameters of each slot's stage on one rank, shape (K, N)."""
    layers_KJN = strategies.layouts.layers_LKJ[strategies.layout].transpose(1, 2, 0)
    has_head_KN = strategies.layouts.has_head_LK[strategies.layout].T
    return np.asarray(over_kinds(layers_KJN, held.expert_JN) + has_head_KN * held.head_expert)


def over_kinds(layers_KJN: Floats, each_JN: Floats) -> Floats:
    """Sum over layer kinds of a slot's layers times what one of them has, shape (K, N)."""
    return summed(layers_KJN[:, kind] * each for kind, each in enumerate(each_JN))
