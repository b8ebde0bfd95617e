"""How many parameters a model has, in all and on one rank, from its sizes alone.

Totals are what Hugging Face counts: the decoder's weights, without multi-token prediction. A rank's share follows from how
each tensor is split: over tensor-parallel ranks, key-value heads, expert-parallel ranks, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cost_models.frameworks import FRAMEWORKS
from cost_models.layers.recurrent_sizes import recurrent_parameters
from cost_models.specs.model import LayerKind, Mla, Model, Moe
from cost_models.specs.recurrent import Recurrent
from cost_models.specs.training import Framework
from cost_models.strategies.strategy import Floats


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Parameters of one decoder layer by how they are split; every field is a whole number."""

    matrices: float
    """Projections split by tp: q, attention output, dense MLP, MLA up-projections."""
    kv_matrices: float
    """Key and value projections, split by min(tp, kv_heads): ranks beyond the number of heads hold copies."""
    vectors: float
    """Biases of column-parallel projections and attention sinks, split by tp."""
    replicated: float
    """Norms, row-parallel biases, MLA's down-projections and the router, whole on every rank."""
    per_expert: float
    """One routed expert, split by etp; the layer's `num_experts` are spread over ep."""
    num_experts: float
    """Routed experts of the layer; 0 in a dense one."""
    shared_expert: float
    """All shared experts together, split by tp."""

    @property
    def total(self) -> float:
        """Parameters of the whole layer, before any split."""
        dense = self.matrices + self.kv_matrices + self.vectors + self.replicated + self.shared_expert
        return dense + self.num_experts * self.per_expert


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Exact counts of a whole model."""

    total: int
    """What Hugging Face counts: no multi-token prediction."""
    active: int
    """Used by one token: `total` less the experts that it is not routed to."""
    embedding: int
    positions: int
    head: int
    """Output projection; 0 where the head is the embedding."""
    final_norm: int
    per_layer: tuple[int, ...]
    mtp: int
    """Multi-token-prediction modules, which are not part of `total`."""


@lru_cache(maxsize=1024)
def _layer(kind: LayerKind, model_key: _Sizes) -> LayerParameters:
    m = model_key
    matrices, kv_matrices, vectors, replicated = _mixer(m, kind)
    replicated += m.norms * m.norm_width
    if not kind.has_mlp:
        return LayerParameters(float(matrices), float(kv_matrices), float(vectors), float(replicated), 0.0, 0.0, 0.0)
    if kind.is_moe:
        assert m.moe is not None
        per_expert, shared, router = _experts(m, m.moe)
        return LayerParameters(
            float(matrices), float(kv_matrices), float(vectors), float(replicated + router), float(per_expert),
            float(m.moe.num_experts), float(shared),
        )  # fmt: skip
    wide = 2 if m.gated_mlp else 1
    matrices += (wide + 1) * m.hidden * m.intermediate
    replicated += m.activation
    if m.mlp_bias:
        vectors += wide * m.intermediate
        replicated += m.hidden
    return LayerParameters(float(matrices), float(kv_matrices), float(vectors), float(replicated), 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The fields of a model that a layer's count depends on (a Model itself does not hash)."""

    hidden: int
    heads: int
    q_size: int
    kv_size: int
    head_dim: int
    intermediate: int
    gated_mlp: bool
    norms: int
    """Full-width norms of this kind of layer."""
    norm_width: int
    qk_norm: str
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    sinks: bool
    gate: bool
    activation: int
    moe: Moe | None
    mla: Mla | None
    recurrent: Recurrent | None


def _sizes(model: Model, kind: LayerKind) -> _Sizes:
    return _Sizes(
        model.hidden_size, model.num_attention_heads, model.q_size, model.kv_size, model.head_dim,
        model.intermediate_size, model.gated_mlp, model.norms_of(kind), norm_parameters(model), model.qk_norm,
        model.qkv_bias, model.attention_out_bias, model.mlp_bias, model.attention_sinks, model.attention_gate,
        model.activation_parameters, model.moe, model.mla, model.recurrent,
    )  # fmt: skip


def norm_parameters(model: Model) -> int:
    """Parameters of one full-width norm."""
    return model.hidden_size * (int(model.norm_weight) + int(model.norm_bias))


def layer_parameters(model: Model, kind: LayerKind) -> LayerParameters:
    """Parameters of a decoder layer of this kind, by how they are split."""
    return _layer(kind, _sizes(model, kind))


def _mixer(m: _Sizes, kind: LayerKind) -> tuple[int, int, int, int]:
    """Matrices, k/v matrices, vectors and replicated parameters of what mixes the tokens of a layer, without its norm."""
    if kind.mixer == "attention":
        return _attention(m)
    matrices, kv_matrices, vectors, replicated = _attention(m) if kind.attends else (0, 0, 0, 0)
    if kind.recurs:
        assert m.recurrent is not None
        more = recurrent_parameters(m.recurrent, m.hidden)
        matrices, vectors, replicated = matrices + more.matrices, vectors + more.vectors, replicated + more.replicated
    return matrices, kv_matrices, vectors, replicated


def _attention(m: _Sizes) -> tuple[int, int, int, int]:
    """Matrices, k/v matrices, vectors and replicated parameters of the attention block, without its norm."""
    if m.mla is not None:
        return _latent_attention(m, m.mla)
    vectors = (m.q_size + 2 * m.kv_size) * m.qkv_bias + m.heads * m.sinks
    norms = {"none": 0, "per_head": 2 * m.head_dim, "full": m.q_size + m.kv_size}[m.qk_norm]
    return (2 + m.gate) * m.hidden * m.q_size, 2 * m.hidden * m.kv_size, vectors, norms + m.hidden * m.out_bias


def _latent_attention(m: _Sizes, mla: Mla) -> tuple[int, int, int, int]:
    """DeepSeek-V2, section 2.1: down-projections and their norms are replicated, up-projections split."""
    up = mla.kv_lora_rank * m.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    out = m.heads * mla.v_head_dim * m.hidden
    down_width = mla.kv_lora_rank + mla.qk_rope_head_dim
    replicated = m.hidden * down_width + mla.kv_lora_rank + m.hidden * m.out_bias + down_width * m.qkv_bias
    if mla.indexer is not None:  # with a LayerNorm of the keys; every rank chooses for itself
        replicated += _indexer_weights(m, mla) + 2 * mla.indexer.head_dim
    if mla.q_lora_rank is None:
        return up + out + m.hidden * m.q_size, 0, 0, replicated
    replicated += m.hidden * mla.q_lora_rank + mla.q_lora_rank * (2 if m.qkv_bias else 1)
    return up + out + mla.q_lora_rank * m.q_size, 0, 0, replicated


def _indexer_weights(m: _Sizes, mla: Mla) -> int:
    """Weights of an indexer's three projections: of the queries' latent, of its one key, and of the heads' weights. [M-57]"""
    if mla.indexer is None:
        return 0
    queries = (mla.q_lora_rank or m.hidden) * mla.indexer.num_heads * mla.indexer.head_dim
    return queries + m.hidden * (mla.indexer.head_dim + mla.indexer.num_heads)


def _experts(m: _Sizes, moe: Moe) -> tuple[int, int, int]:
    """One routed expert, all shared experts, and the router with the shared expert's gate."""
    wide = 2 if m.gated_mlp else 1

    def mlp(width: int) -> int:
        return (wide + 1) * m.hidden * width + (wide * width + m.hidden) * m.mlp_bias

    router = moe.num_experts * (m.hidden + moe.router_bias) + m.hidden * moe.shared_expert_gate
    shared = moe.num_shared_experts * mlp(moe.shared_expert_intermediate_size) if moe.num_shared_experts else 0
    return mlp(moe.expert_intermediate_size), shared, router


def embedding_parameters(model: Model, padded_vocab: Floats) -> Floats:
    """Parameters of a token table of this many rows, before any split, shape of padded_vocab."""
    return padded_vocab * float(model.hidden_size)


def head_parameters(model: Model, padded_vocab: Floats) -> Floats:
    """Parameters of the output projection, shape of padded_vocab; only its bias, if any, where the matrix is the
    embedding. A classification head is whole on every rank and has no bias (transformers/modeling_layers.py, GenericForSequenceClassification).
    """
    if model.classes is not None:
        return np.full_like(padded_vocab, float(model.classes * model.hidden_size))
    return padded_vocab * ((0.0 if model.tie_word_embeddings else model.hidden_size) + float(model.head_bias))


def position_parameters(model: Model) -> int:
    """Parameters beside the token table at the model's entrance: learned positions, and a norm of the embedding."""
    learned = model.position_embedding == "learned"
    positions = (model.max_position_embeddings or 0) * model.hidden_size if learned else 0
    return positions + (norm_parameters(model) if model.embedding_norm else 0)


def final_norm_parameters(model: Model) -> int:
    """Parameters of the norm before the head."""
    return norm_parameters(model) if model.final_norm else 0


def count_parameters(model: Model) -> ParameterCounts:
    """Exact parameter counts of the whole model, unpadded."""
    by_kind = {kind: layer_parameters(model, kind) for kind in model.distinct_kinds}
    per_layer = tuple(int(by_kind[kind].total) for kind in model.layer_kinds)
    embedding = model.vocab_size * model.hidden_size
    head = int(head_parameters(model, np.array(float(model.vocab_size))))
    positions, final_norm = position_parameters(model), final_norm_parameters(model)
    total = embedding + positions + sum(per_layer) + final_norm + head
    idle = 0
    if model.moe is not None:
        spare = model.moe.num_experts - model.moe.top_k
        idle = sum(spare * int(by_kind[kind].per_expert) for kind in model.layer_kinds)
    return ParameterCounts(total, total - idle, embedding, positions, head, final_norm, per_layer, _mtp(model))


def _mtp(model: Model) -> int:
    """Parameters of all multi-token-prediction modules: a layer, a 2h -> h projection and three norms each.

    Embedding and head are shared with the model. Source: DeepSeek-V3, section 2.2.
    """
    if not model.mtp_num_layers:
        return 0
    layer = int(layer_parameters(model, model.layer_kinds[-1]).total)
    return model.mtp_num_layers * (layer + 2 * model.hidden_size**2 + 3 * norm_parameters(model))


def dense_layer_parameters_on_rank(model: Model, kind: LayerKind, tp: Floats) -> Floats:
    """Parameters of one layer that a tensor-parallel rank holds, routed experts left out, shape of tp."""
    layer = layer_parameters(model, kind)
    split = (layer.matrices + layer.vectors + layer.shared_expert) / tp
    kv = layer.kv_matrices / np.minimum(tp, float(model.num_key_value_heads))
    return np.asarray(split + kv + layer.replicated)


def expert_layer_parameters_on_rank(model: Model, kind: LayerKind, ep: Floats, etp: Floats) -> Floats:
    """Routed-expert parameters of one layer that a rank holds, broadcast shape of ep and etp; 0 in a dense layer."""
    layer = layer_parameters(model, kind)
    return np.asarray(layer.num_experts / ep * (layer.per_expert / etp))


def padded_vocab_size(model: Model, framework: Framework, tp: Floats) -> Floats:
    """Rows of the embedding table as the framework pads it for this tp, shape of tp; the same in every known version."""
    per_tp = FRAMEWORKS[framework].vocab_multiple_per_tp
    multiple = per_tp * np.asarray(tp, dtype=np.float64)
    if not per_tp:
        return np.full_like(multiple, float(model.vocab_size))
    return np.asarray(np.ceil(model.vocab_size / multiple) * multiple)


def active_matmul_parameters(model: Model) -> float:
    """Weights multiplied for one token, the head included: model FLOPs are 2 a weight forward, 4 backward."""
    per_kind = {kind: layer_matmul_parameters(model, kind) for kind in model.distinct_kinds}
    return sum(per_kind[kind] for kind in model.layer_kinds) + float(model.vocab_size * model.hidden_size)


def layer_matmul_parameters(model: Model, kind: LayerKind) -> float:
    """Matrix weights of one layer that one token is multiplied with; router and shared experts included."""
    m = _sizes(model, kind)
    matrices, kv_matrices, _, _ = _attention(m) if kind.attends else (0, 0, 0, 0)
    if kind.recurs:
        assert m.recurrent is not None
        matrices += recurrent_parameters(m.recurrent, m.hidden).multiplied
    if m.mla is not None and kind.attends:
        matrices += m.hidden * (m.mla.kv_lora_rank + m.mla.qk_rope_head_dim + (m.mla.q_lora_rank or 0))
        matrices += _indexer_weights(m, m.mla)
    wide = 3 if m.gated_mlp else 2
    if not kind.has_mlp:
        return float(matrices + kv_matrices)
    if not kind.is_moe:
        return float(matrices + kv_matrices + wide * m.hidden * m.intermediate)
    assert m.moe is not None
    moe = m.moe
    widths = moe.top_k * moe.expert_intermediate_size + moe.num_shared_experts * moe.shared_expert_intermediate_size
    router = m.hidden * (moe.num_experts + moe.shared_expert_gate)
    return float(matrices + kv_matrices + wide * m.hidden * widths + router)
