"""What is known about one family of models, and what many families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.inputs.hf.keys import Keys
from cost_models.inputs.hf.readers import Spec


@dataclass(frozen=True, slots=True)
class Family:
    """How one `model_type` is read."""

    defaults: Mapping[str, Any]
    fixed: Mapping[str, Any]
    """Contract fields that the architecture fixes."""
    read: Callable[[Keys], Spec]
    """Reads everything else, in contract fields."""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


RMS_GATED: Spec = {"norm": "rmsnorm", "gated_mlp": True, "position_embedding": "rope"}
LAYERNORM_PLAIN: Spec = {"norm": "layernorm", "gated_mlp": False}
BIASED: Spec = {"attention_bias": True, "mlp_bias": True, "norm_bias": True}
GPT_ALIASES = {
    "n_layer": ("num_hidden_layers",),
    "n_head": ("num_attention_heads",),
    "n_embd": ("hidden_size",),
    "n_positions": ("max_position_embeddings",),
}
MTP_ALIASES = {"num_nextn_predict_layers": ("num_mtp_layers",)}
LLAMA = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": None, "head_dim": None, "max_position_embeddings": 2048,
    "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
MISTRAL = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": None, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "sliding_window": 4096,
}  # fmt: skip
OLMO = {**LLAMA, "vocab_size": 50304}


def without(defaults: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The defaults of a class that has all of these keys but some."""
    return {key: value for key, value in defaults.items() if key not in keys}
