"""Elements and bytes that depend on few axes, computed once per distinct combination and gathered to the batch in one go.

Rows of the gathered matrix are elements on one rank, or bytes of one micro-batch. Array suffixes: J layer kinds, U distinct
combinations, N strategies.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from cost_models.frameworks import MemoryTraits
from cost_models.job import Job
from cost_models.layers.autocast import autocast
from cost_models.layers.parameters import (
    dense_layer_parameters_on_rank,
    embedding_parameters,
    expert_layer_parameters_on_rank,
    final_norm_parameters,
    head_parameters,
    layer_parameters,
    norm_parameters,
    padded_vocab_size,
    position_parameters,
)
from cost_models.memory.activations import Sizes, batch_sizes, layer_parts, upcasts_norms
from cost_models.memory.adapted import adapted_parts
from cost_models.memory.frozen import frozen_parts
from cost_models.memory.layer_memory import LayerMemory, layer_memory
from cost_models.memory.loss import logits_and_loss
from cost_models.strategies.fields import CpComm
from cost_models.strategies.kept_columns import Columns, kept_columns
from cost_models.strategies.strategy import Floats, Strategies
from cost_models.strategies.tensors import combinations_of

AXES = (
    "tp", "cp", "ep", "etp", "micro_batch_size", "sequence_parallel", "recompute", "recompute_modules", "cp_comm",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class LayerTable:
    """Sizes per strategy, shape (N,) each; lists run over layer kinds."""

    dense_J: list[Floats]
    """Elements of one layer on a rank, routed experts left out."""
    expert_J: list[Floats]
    """Elements of one layer's routed experts on a rank."""
    kept_J: list[Floats]
    """Bytes saved by a layer that is not fully recomputed."""
    transient_J: list[Floats]
    """Bytes by which a layer's backward exceeds what is saved."""
    whole_J: list[Floats]
    """Bytes that a fully recomputed layer makes again."""
    cached_dense: Floats
    """Elements of the distinct weight shapes of a dense layer; `cached_moe` those of a mixture layer, `cached_both`
    those that occur in either. [M-12]"""
    cached_moe: Floats
    cached_both: Floats
    mtp: Floats
    """Elements of an MTP module beyond its decoder layer."""
    mtp_bytes: Floats
    """Bytes an MTP module saves beyond its decoder layer."""
    word: Floats
    """Elements of a rank's share of the embedding table."""
    head_word: Floats
    """Elements of a rank's share of the head, where it is no copy of the embedding: as many, but for a classification head."""
    positions: Floats
    final_norm: Floats
    final_norm_bytes: Floats
    hidden: Floats
    """Bytes of one residual-stream tensor, as it travels between stages."""
    sequence: Floats
    """Bytes of the same tensor gathered over tp."""
    gathered_kv: Floats
    """Bytes of keys and values of the whole sequence, where context parallelism gathers them."""
    logit: Floats
    """Logits of one micro-batch on this rank, in elements."""
    loss: Floats
    """Bytes of logits and cross entropy at their peak."""


def layer_table(job: Job, traits: MemoryTraits, strategies: Strategies) -> LayerTable:
    """The table of a batch."""
    # The ZeRO stage matters only through autocast, so it is left out of the axes elsewhere: fewer combinations to
    # compute.
    adapts = job.training.adapter is not None
    axes = (*AXES, "zero") if adapts or autocast(job, traits, strategies).any() else AXES
    cases = combinations_of(strategies, axes)
    (matrix,) = kept_columns(job, "memory", cases.rows, axes, lambda rows: _columns(job, traits, rows))
    # One gather of a stacked matrix costs less than one per column.
    spread, kinds = iter(cases.spread(matrix)), job.model.distinct_kinds
    gathered: dict[str, Any] = {
        field.name: [next(spread) for _ in kinds] if field.name.endswith("_J") else next(spread)
        for field in fields(LayerTable)
    }
    return LayerTable(**gathered)


def _columns(job: Job, traits: MemoryTraits, rows: Strategies) -> Columns:
    """The matrix whose rows are the columns of `LayerTable` in the order of its fields, for these combinations."""
    sizes = batch_sizes(job, traits, rows)
    columns = _ends(job, traits, rows, sizes) | _cached(job, rows)
    kinds = job.model.distinct_kinds
    layers: list[LayerMemory] = []
    for kind in kinds:
        parts = layer_parts(job, traits, kind, sizes)
        if job.training.adapter is not None:
            parts = adapted_parts(job, traits, kind, sizes, parts, rows)
        elif job.training.frozen:
            parts = frozen_parts(job, traits, kind, sizes, parts)
        layers.append(layer_memory(parts, rows, traits=traits))
    lists = {
        "dense_J": [dense_layer_parameters_on_rank(job.model, kind, rows.tp) for kind in kinds],
        "expert_J": [expert_layer_parameters_on_rank(job.model, kind, rows.ep, rows.etp) for kind in kinds],
        "kept_J": [layer.kept for layer in layers],
        "transient_J": [layer.transient for layer in layers],
        "whole_J": [layer.whole for layer in layers],
    }
    flat: list[Floats] = []
    for field in fields(LayerTable):
        flat += lists.get(field.name) or [columns[field.name]]
    matrix = np.empty((len(flat), len(rows)))
    for number, value in enumerate(flat):
        matrix[number] = value
    return (matrix,)


def _ends(job: Job, traits: MemoryTraits, rows: Strategies, s: Sizes) -> dict[str, Floats]:
    """Elements and bytes of embedding, head and loss, and of the tensors between stages, shape (U,) each."""
    model = job.model
    vocab_share = padded_vocab_size(model, job.training.framework, rows.tp) / rows.tp
    hidden = s.hidden(model)
    gathered = s.w * model.hidden_size * s.tokens
    output = gathered if job.framework.keeps_gathered_norms else gathered / s.sp
    upcast = 4.0 * model.hidden_size * s.tokens / s.sp if upcasts_norms(job, traits) else 0.0
    kv = model.kv_size / np.minimum(rows.tp, model.num_key_value_heads)
    word = np.asarray(embedding_parameters(model, vocab_share))
    outputs = vocab_share if model.classes is None else np.full(len(rows), float(model.classes))
    # Only this exchange holds the keys and values of the whole sequence; the ring holds one neighbour's at a time.
    allgather = (rows.cp > 1) & (rows.cp_comm == CpComm.ALLGATHER)
    return {
        "mtp": 2.0 * model.hidden_size**2 / rows.tp + 3.0 * norm_parameters(model),
        "mtp_bytes": 2.0 * hidden + 4.0 * output,
        "word": word,
        "head_word": word if model.classes is None else head_parameters(model, word),
        "positions": np.full(len(rows), float(position_parameters(model))),
        "final_norm": np.full(len(rows), float(final_norm_parameters(model))),
        "final_norm_bytes": hidden + output + upcast if model.final_norm else hidden,
        "hidden": hidden,
        "sequence": gathered,
        "gathered_kv": np.where(allgather, 2.0 * s.w * kv * s.tokens * rows.cp, 0.0),
        "logit": s.tokens * outputs,
        "loss": logits_and_loss(
            job, traits, tokens=s.tokens, vocab_share=outputs, tp=rows.tp, sequences=rows.micro_batch_size
        ),
    }


def _cached(job: Job, rows: Strategies) -> dict[str, Floats]:
    """Elements of the distinct weight shapes by kind of layer, shape (U,); a mixture layer counts one expert. [M-12]"""
    model = job.model
    found: dict[bool, Floats] = {}
    shared = np.zeros(len(rows))
    for kind in model.distinct_kinds:
        layer = layer_parameters(model, kind)
        attention = layer.kv_matrices / np.minimum(rows.tp, float(model.num_key_value_heads))
        has_dense = kind.has_mlp and not kind.is_moe
        attention = attention + _attention_matrices(job, layer.matrices, has_dense=has_dense) / rows.tp
        shapes = attention + (layer.per_expert / rows.etp) + layer.shared_expert / rows.tp
        if has_dense:
            shapes = shapes + _dense_mlp(job) / rows.tp
        if kind.is_plain:
            found[kind.is_moe] = shapes
        else:  # layers of several kinds are counted by the largest
            found[kind.is_moe] = np.maximum(found.get(kind.is_moe, np.zeros(len(rows))), shapes)
        shared = attention
    return {
        "cached_dense": found.get(False, np.zeros(len(rows))),
        "cached_moe": found.get(True, np.zeros(len(rows))),
        "cached_both": shared,
    }


def _dense_mlp(job: Job) -> float:
    return float((3 if job.model.gated_mlp else 2) * job.model.hidden_size * job.model.intermediate_size)


def _attention_matrices(job: Job, matrices: float, *, has_dense: bool) -> float:
    return matrices - _dense_mlp(job) if has_dense else matrices
