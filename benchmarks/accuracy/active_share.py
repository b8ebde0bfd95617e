"""Total and per-token active weights of a model, counted from its fields alone, for the null model of the accuracy report.

This is deliberately not the planner's own count, because a baseline must not depend on what it is compared with. It assumes plain
attention and leaves out norms and biases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def total_and_active(model: Mapping[str, Any]) -> tuple[float, float]:
    """All weights, and those that one token uses; NaN for a preset or a model without the needed fields."""
    config = model.get("hf_config")
    spec = config if isinstance(config, Mapping) and config else model
    moe = spec.get("moe")
    fields = {**spec, **(moe if isinstance(moe, Mapping) else {})}
    layers, hidden = (
        _first(fields, "num_layers", "num_hidden_layers", "n_layer"),
        _first(fields, "hidden_size", "n_embd"),
    )
    heads, vocab = _first(fields, "num_attention_heads", "n_head"), _first(fields, "vocab_size")
    if not (layers and hidden and heads and vocab):
        return math.nan, math.nan
    head_dim = _first(fields, "head_dim", default=hidden / heads)
    # Projections of queries and output over all heads, those of keys and values over the key-value heads.
    attention = 2 * hidden * head_dim * (heads + _first(fields, "num_key_value_heads", default=heads))
    matrices, width = (3 if _gated(fields) else 2), _first(fields, "intermediate_size", "n_inner", default=4 * hidden)
    experts, top_k, expert_width, shared_width, moe_layers = _experts(fields, layers=layers, width=width)
    dense = hidden * vocab * (1 if fields.get("tie_word_embeddings") else 2)
    dense += layers * attention + (layers - moe_layers) * hidden * matrices * width
    dense += moe_layers * hidden * (experts + matrices * shared_width)
    per_expert = moe_layers * hidden * matrices * expert_width
    return dense + experts * per_expert, dense + top_k * per_expert


def _first(fields: Mapping[str, Any], *names: str, default: float = 0.0) -> float:
    """The first of these fields that is a positive number."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
            return float(value)
    return default


def _gated(fields: Mapping[str, Any]) -> bool:
    if fields.get("gated_mlp") is not None:
        return bool(fields["gated_mlp"])
    return (fields.get("hidden_act") or fields.get("activation_function") or "silu") in ("silu", "swiglu")


def _experts(fields: Mapping[str, Any], *, layers: float, width: float) -> tuple[float, float, float, float, float]:
    """Experts, experts per token, an expert's width, the shared experts' together, and the layers that have them."""
    experts = _first(fields, "num_experts", "num_local_experts", "n_routed_experts")
    expert_width = _first(fields, "expert_intermediate_size", "moe_intermediate_size", default=width)
    shared = _first(fields, "shared_expert_intermediate_size", default=expert_width)
    shared *= _first(fields, "num_shared_experts", "n_shared_experts")
    dense_first = _first(fields, "first_dense_layers", "first_k_dense_replace")
    every = _first(fields, "moe_layer_freq", default=1.0)
    moe_layers = float(math.ceil(max(layers - dense_first, 0.0) / every)) if experts else 0.0
    return experts, _first(fields, "num_experts_per_tok", "top_k"), expert_width, shared, moe_layers
