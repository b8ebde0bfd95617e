"""How the keys of a Hugging Face `config.json` follow from a model: the inverse of `cost_models.inputs.hf`.

A key means the same in nearly all families, so it has one formula; where a family means something else, `OWN` says so. Whether a
family can say a model is not known here: `model_config` reads the keys back and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from cost_models.specs.model import Model, Moe
from planner.export.hf.hybrid_keys import HYBRID_KEYS

Key = Callable[[Model], Any]


def _windows(model: Model) -> list[int | None]:
    return [kind.window for kind in model.layer_kinds]


def _window(model: Model) -> int | None:
    return next((window for window in _windows(model) if window is not None), None)


def _layer_types(model: Model) -> list[str]:
    return ["full_attention" if window is None else "sliding_attention" for window in _windows(model)]


def _first_window(model: Model) -> int:
    return next((layer for layer, window in enumerate(_windows(model)) if window is not None), model.num_layers)


def _dense(model: Model) -> list[int]:
    return [layer for layer, kind in enumerate(model.layer_kinds) if not kind.is_moe]


def _sparse(model: Model) -> list[int]:
    return [layer for layer, kind in enumerate(model.layer_kinds) if kind.is_moe]


def _first_sparse(model: Model) -> int:
    return next(iter(_sparse(model)), model.num_layers)


def _intermediate(model: Model) -> int:
    # A class wants a width also where no layer uses it.
    return model.intermediate_size or _expert_width(model)


def _of_moe(field: str, *, without: Any = 0) -> Key:
    return lambda model: without if model.moe is None else getattr(model.moe, field)


def _of_mla(field: str) -> Key:
    return lambda model: None if model.mla is None else getattr(model.mla, field)


def _expert_width(model: Model) -> int:
    return 1 if model.moe is None else model.moe.expert_intermediate_size


def _shared_width(model: Model) -> int:
    moe: Moe | None = model.moe
    return 0 if moe is None else moe.num_shared_experts * moe.shared_expert_intermediate_size


def _heads(model: Model) -> int:
    return model.num_attention_heads


def _kv_heads(model: Model) -> int:
    return model.num_key_value_heads


def _any_bias(model: Model) -> bool:
    return model.qkv_bias or model.attention_out_bias or model.mlp_bias


def _normed(model: Model) -> bool:
    return model.qk_norm != "none"


KEYS: Final[Mapping[str, Key]] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers"), lambda model: model.num_layers),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), lambda model: model.hidden_size),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), _heads),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), _kv_heads),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"), _intermediate),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), lambda model: model.max_position_embeddings),
    "head_dim": lambda model: None if model.mla is not None else model.head_dim,
    "vocab_size": lambda model: model.vocab_size,
    "tie_word_embeddings": lambda model: model.tie_word_embeddings,
    **dict.fromkeys(("attention_bias", "qkv_bias", "use_qkv_bias"), lambda model: model.qkv_bias),
    "attention_out_bias": lambda model: model.attention_out_bias,
    "mlp_bias": lambda model: model.mlp_bias,
    **dict.fromkeys(("use_bias", "bias", "enable_bias"), _any_bias),
    "no_bias": lambda model: not _any_bias(model),
    "lm_head_bias": lambda model: model.head_bias,
    **dict.fromkeys(("use_qk_norm", "qk_layernorm"), _normed),
    **dict.fromkeys(("use_parallel_residual", "parallel_attn"), lambda model: model.parallel_block),
    "num_ln_in_parallel_attn": lambda model: model.norms_per_layer,
    # Falcon-40B and -180B (configuration_falcon.py): only the new decoder reads num_kv_heads.
    "new_decoder_architecture": lambda model: model.parallel_block and _kv_heads(model) not in (1, _heads(model)),
    "multi_query": lambda model: _kv_heads(model) == 1,
    "alibi": lambda model: model.position_embedding == "alibi",
    "position_embedding_type": lambda model: "rope" if model.position_embedding == "rope" else "nope",
    # Of all activations only xIELU has parameters (arXiv 2411.13010).
    "hidden_act": lambda model: "xielu" if model.activation_parameters else "silu",
    "do_layer_norm_before": lambda model: model.final_norm,
    "sliding_window": _window,
    "use_sliding_window": lambda model: _window(model) is not None,
    "layer_types": _layer_types,
    # Qwen counts the layers before the first window, where its layers are not listed.
    "max_window_layers": _first_window,
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), _of_moe("num_experts")),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk"), _of_moe("top_k")),
    "moe_intermediate_size": _expert_width,
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), _of_moe("num_shared_experts")),
    **dict.fromkeys(("shared_expert_intermediate_size", "shared_intermediate_size"), _shared_width),
    # DeepSeek chooses groups of experts first; one group means that it does not (modeling_deepseek_v3.py).
    "n_group": _of_moe("num_groups", without=1),
    "topk_group": _of_moe("topk_groups", without=1),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"), _first_sparse),
    # Which layers are dense is listed in mlp_only_layers, so that no other period is ever needed.
    "decoder_sparse_step": lambda _model: 1,
    "moe_layer_interval": lambda _model: 1,
    "mlp_only_layers": _dense,
    "mlp_layer_types": lambda model: ["sparse" if kind.is_moe else "dense" for kind in model.layer_kinds],
    "num_nextn_predict_layers": lambda model: model.mtp_num_layers,
    **{name: _of_mla(name) for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")},
}  # fmt: skip
"""Formula of each key; keys of a family's class that are not here keep the class's default."""

_WHOLE_WIDTH: Final[Mapping[str, Key]] = {"intermediate_size": _expert_width}
"""Families whose experts are as wide as `intermediate_size`."""
OWN: Final[Mapping[str, Mapping[str, Key]]] = {
    **dict.fromkeys(("mixtral", "olmoe", "gpt_oss", "granitemoe", "granitemoeshared", "phimoe", "minimax_m2", "hunyuan_v1_moe"), _WHOLE_WIDTH),
    # Its class has no number of experts for a token, so that a config has to say one.
    "deepseek_v2": {"num_experts_per_tok": _of_moe("top_k")},
    # OPT's learned table has two rows before position 0.
    "opt": {"max_position_embeddings": lambda model: (model.max_position_embeddings or 2) - 2},
    "ernie4_5_moe": {"moe_layer_end_index": lambda model: max(_sparse(model), default=-1)},
    **HYBRID_KEYS,
    "granitemoehybrid": {
        **_WHOLE_WIDTH,
        **HYBRID_KEYS["granitemoehybrid"],
        "shared_intermediate_size": lambda model: _shared_width(model) or model.intermediate_size,
    },
    "llama4_text": {
        "intermediate_size": _expert_width,
        "intermediate_size_mlp": lambda model: model.intermediate_size or _expert_width(model),
        "moe_layers": _sparse,
        "attention_chunk_size": _window,
        "layer_types": lambda model: ["chunked_attention" if each == "sliding_attention" else each for each in _layer_types(model)],
    },
    "dbrx": {
        "attn_config": lambda model: {"kv_n_heads": _kv_heads(model)},
        "ffn_config": lambda model: {
            "ffn_hidden_size": _expert_width(model),
            "moe_num_experts": _of_moe("num_experts")(model),
            "moe_top_k": _of_moe("top_k")(model),
        },
    },
}  # fmt: skip
"""Keys that mean something else in one family."""

_GPT2_DROPOUT: Final = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
_HIDDEN_DROPOUT: Final = ("hidden_dropout", "attention_dropout")
DROPOUT: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("gpt2", "gptj", "codegen", "gpt_bigcode"), _GPT2_DROPOUT),
    **dict.fromkeys(("gpt_neox", "bloom", "falcon", "stablelm"), _HIDDEN_DROPOUT),
    **dict.fromkeys(("phi", "phi3"), ("resid_pdrop", "embd_pdrop", "attention_dropout")),
    "opt": ("dropout", "attention_dropout"),
    "starcoder2": ("residual_dropout", "embedding_dropout", "attention_dropout"),
}
"""Keys of the probabilities with which activations are dropped, in families that drop more than attention's weights
(transformers/models/*/configuration_*.py). The others cannot drop what `training.dropout` means, and say 0."""
