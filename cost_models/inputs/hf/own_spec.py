"""The specification by which a config of an unknown family could be planned, for the hint where the config is refused.

It holds what the config says under the names that most families share. What those names do not say (norms, biases, the
activation) is left to the reader of the hint, so a config with parts that no specification has gets none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_SIZES: Mapping[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers", "num_layers", "n_layers", "n_layer"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_attention_heads": ("num_attention_heads", "n_heads", "n_head"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    "head_dim": ("head_dim", "kv_channels"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "max_seq_len"),
}
_EXPERTS: Mapping[str, tuple[str, ...]] = {
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k"),
    "expert_intermediate_size": ("moe_intermediate_size", "expert_intermediate_size", "expert_ffn_hidden_size"),
    "num_shared_experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "first_dense_layers": ("first_k_dense_replace", "num_dense_layers"),
}
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias")
_NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")
_FOREIGN = (
    "mamba", "ssm", "state_size", "d_state", "d_conv", "conv_", "linear_attn", "linear_key", "linear_num", "rwkv", "index_topk",
    "cross_attention", "encoder_layers", "decoder_layers", "hybrid_override", "attn_layer_", "attention_types", "num_loops",
)  # fmt: skip
"""Parts of keys that occur only in models whose layers are not attention and an MLP."""


def spec_hint(config: Mapping[str, Any]) -> str:
    """A sentence with the specification; empty where no specification can say what the config does."""
    spec = _spec(config)
    if spec is None:
        return ""
    return (
        "If its layers are attention and a gated MLP as in Llama, save this as the model instead, and correct what differs: "
        f"{json.dumps(spec)}. "
    )


def _spec(config: Mapping[str, Any]) -> dict[str, Any] | None:
    kinds = config.get("layer_types")
    hybrid = isinstance(kinds, list) and not all(kind in ("full_attention", "sliding_attention") for kind in kinds)
    if hybrid or any(part in str(key) for key in config for part in _FOREIGN):
        return None
    spec: dict[str, Any] = _found(config, _SIZES)
    # A hint that the reader of specifications would refuse in turn is worse than none.
    if not all(name in spec for name in _NEEDED) or spec["num_layers"] > 10_000:
        return None
    spec |= {name: config[name] for name in _FLAGS if isinstance(config.get(name), bool)}
    experts = _found(config, _EXPERTS)
    if "num_experts" in experts and "top_k" in experts:
        spec["moe"] = experts
    latent = {name: config[name] for name in _LATENT if _is_count(config.get(name))}
    if len(latent) >= len(_LATENT) - 1 and "kv_lora_rank" in latent:
        spec["mla"] = latent
        spec = {name: value for name, value in spec.items() if name not in ("head_dim", "num_key_value_heads")}
    has_mlp = "intermediate_size" in spec or "expert_intermediate_size" in spec.get("moe", {})
    return spec if has_mlp and _heads_divide(spec) else None


def _heads_divide(spec: Mapping[str, Any]) -> bool:
    """Whether the heads give a whole width, which every specification must."""
    heads, keys = spec["num_attention_heads"], spec.get("num_key_value_heads", 1)
    return heads % keys == 0 and ("head_dim" in spec or "mla" in spec or spec["hidden_size"] % heads == 0)


def _found(config: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """The first spelling of each field that holds a whole number."""
    held = (
        (name, next((config[s] for s in spellings if _is_count(config.get(s))), None))
        for name, spellings in names.items()
    )
    return {name: value for name, value in held if value is not None}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**15
