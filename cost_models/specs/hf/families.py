"""One entry per `model_type`: the config class's defaults, what the architecture fixes, and what needs reading by hand.

Defaults are those of the config classes of transformers 5 (and 4, where both know the family); counts are held to the
modules themselves by tests/oracle/test_hf_parameters.py. To add a family, add an entry here and a row there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.specs.hf.keys import Keys

Spec = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """How one `model_type` is read."""

    defaults: Mapping[str, Any]
    fixed: Mapping[str, Any]
    """Contract fields that the architecture fixes."""
    read: Callable[[Keys], Spec]
    """Everything else, in contract fields."""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


RMS_GATED: Spec = {"norm": "rmsnorm", "gated_mlp": True, "position_embedding": "rope"}
LAYERNORM_PLAIN: Spec = {"norm": "layernorm", "gated_mlp": False}
GPT_ALIASES = {
    "n_layer": ("num_hidden_layers",),
    "n_head": ("num_attention_heads",),
    "n_embd": ("hidden_size",),
    "n_positions": ("max_position_embeddings",),
}


def _sizes(k: Keys) -> Spec:
    """The sizes that most families spell alike. Null key-value heads mean as many as heads."""
    heads = k.count("num_attention_heads", reported_as="num_attention_heads")
    spec: Spec = {
        "num_layers": k.layers("num_hidden_layers"),
        "hidden_size": k.count("hidden_size", reported_as="hidden_size"),
        "num_attention_heads": heads,
        "intermediate_size": k.count("intermediate_size", reported_as="intermediate_size"),
        "vocab_size": k.count("vocab_size", reported_as="vocab_size"),
        "max_position_embeddings": k.count("max_position_embeddings"),
        "tie_word_embeddings": k.flag("tie_word_embeddings", reported_as="tie_word_embeddings"),
    }
    if "num_key_value_heads" in k.defaults:
        spec["num_key_value_heads"] = k.count(
            "num_key_value_heads", reported_as="num_key_value_heads", if_null=heads
        )
    if "head_dim" in k.defaults:
        width = k.optional_count("head_dim") if k.defaults["head_dim"] is None else k.count(
            "head_dim", reported_as="head_dim"
        )  # fmt: skip
        if width is not None:
            spec["head_dim"] = width
    return spec


def _biases(k: Keys, *, mlp: bool = False) -> Spec:
    return {
        "attention_bias": k.flag("attention_bias"),
        "mlp_bias": k.flag("mlp_bias") if mlp else False,
    }


def _llama(k: Keys) -> Spec:
    return {**_sizes(k), **_biases(k, mlp=True)}


def _plain(k: Keys) -> Spec:
    return {**_sizes(k), "attention_bias": False, "mlp_bias": False, **_one_window(k)}


def _one_window(k: Keys) -> Spec:
    window = k.optional_count("sliding_window") if "sliding_window" in k.defaults else None
    return {} if window is None else {"sliding_window": window}


def _mixtral(k: Keys) -> Spec:
    spec = _plain(k)
    spec["moe"] = {
        "num_experts": k.count("num_local_experts"),
        "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": spec["intermediate_size"],
    }
    return spec


def _late_windows(k: Keys, num_layers: int) -> Spec:
    """Qwen: windows only where switched on, and then from `max_window_layers` on unless listed."""
    listed = k.strings("layer_types")
    if not k.flag("use_sliding_window"):
        return {} if listed is None else {"layer_types": ["full_attention" if "attention" in t else t for t in listed]}
    window = k.optional_count("sliding_window")
    if window is None:
        return {}
    if listed is None:
        first = k.count("max_window_layers", least=0)
        listed = ["sliding_attention" if i >= first else "full_attention" for i in range(num_layers)]
    return {"sliding_window": window, "layer_types": listed}


def _qwen2(k: Keys) -> Spec:
    spec = _sizes(k)
    return {**spec, "attention_bias": "qkv", "mlp_bias": False, **_late_windows(k, spec["num_layers"])}


def _qwen3(k: Keys) -> Spec:
    spec = _sizes(k)
    return {**spec, **_biases(k), "qk_norm": True, **_late_windows(k, spec["num_layers"])}


def _sparse_layers(k: Keys, num_layers: int) -> list[int]:
    """Qwen MoE: every `decoder_sparse_step`-th layer counted from 1, less `mlp_only_layers`."""
    step = k.count("decoder_sparse_step")
    dense = k.value("mlp_only_layers") or []
    if not isinstance(dense, list):
        k.count("mlp_only_layers")
        dense = []
    return [int((i + 1) % step == 0 and i not in dense) for i in range(num_layers)]


def _with_experts(k: Keys, spec: Spec, moe: Spec) -> Spec:
    """The spec with its experts, or dense where no layer is sparse."""
    layers = _sparse_layers(k, spec["num_layers"])
    return {**spec, "moe": {**moe, "moe_layer_freq": layers}} if any(layers) else spec


def _qwen3_moe(k: Keys) -> Spec:
    spec = {**_sizes(k), **_biases(k), "qk_norm": True}
    if k.flag("use_sliding_window"):
        spec.update(_one_window(k))
    moe = {
        "num_experts": k.count("num_experts"),
        "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": k.count("moe_intermediate_size"),
    }
    return _with_experts(k, spec, moe)


def _qwen2_moe(k: Keys) -> Spec:
    spec = {**_sizes(k), "attention_bias": "qkv" if k.flag("qkv_bias") else False, "mlp_bias": False}
    if k.flag("use_sliding_window"):
        k.refuse("use_sliding_window", "sliding windows of qwen2_moe are not modelled")
    moe = {
        "num_experts": k.count("num_experts"),
        "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": k.count("moe_intermediate_size"),
        "num_shared_experts": 1,
        "shared_expert_intermediate_size": k.count("shared_expert_intermediate_size"),
        "shared_expert_gate": True,
    }
    return _with_experts(k, spec, moe)


def _patterned(k: Keys, num_layers: int, period: int) -> Spec:
    """Windows in all layers but every `period`-th, unless listed."""
    listed = k.strings("layer_types")
    window = k.optional_count("sliding_window")
    if listed is None:
        listed = ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(num_layers)]
    if window is None:
        listed = ["full_attention" if t == "sliding_attention" else t for t in listed]
        return {"layer_types": listed}
    return {"layer_types": listed, "sliding_window": window}


def _gemma(k: Keys) -> Spec:
    _refuse_bidirectional(k)
    return {**_sizes(k), **_biases(k)}


def _gemma2(k: Keys) -> Spec:
    _refuse_bidirectional(k)
    spec = _sizes(k)
    return {**spec, **_biases(k), **_patterned(k, spec["num_layers"], 2)}


def _gemma3(k: Keys) -> Spec:
    _refuse_bidirectional(k)
    spec = _sizes(k)
    return {**spec, **_biases(k), "qk_norm": True, **_patterned(k, spec["num_layers"], k.count("sliding_window_pattern"))}


def _refuse_bidirectional(k: Keys) -> None:
    if k.flag("use_bidirectional_attention", if_null=False):
        k.refuse("use_bidirectional_attention", "bidirectional attention is not modelled")


def _gpt2(k: Keys) -> Spec:
    if k.flag("add_cross_attention"):
        k.refuse("add_cross_attention", "cross-attention is not modelled")
    hidden = k.count("n_embd", reported_as="hidden_size")
    return {
        "num_layers": k.layers("n_layer"),
        "hidden_size": hidden,
        "num_attention_heads": k.count("n_head", reported_as="num_attention_heads"),
        "intermediate_size": k.count("n_inner", if_null=4 * hidden),
        "vocab_size": k.count("vocab_size", reported_as="vocab_size"),
        "max_position_embeddings": k.count("n_positions", reported_as="max_position_embeddings"),
        "tie_word_embeddings": k.flag("tie_word_embeddings", reported_as="tie_word_embeddings"),
    }


def _deepseek(k: Keys) -> Spec:
    spec = {**_sizes(k), "attention_bias": k.flag("attention_bias"), "mlp_bias": False}
    spec["mla"] = {
        "q_lora_rank": k.optional_count("q_lora_rank"),
        "kv_lora_rank": k.count("kv_lora_rank"),
        "qk_nope_head_dim": k.count("qk_nope_head_dim"),
        "qk_rope_head_dim": k.count("qk_rope_head_dim"),
        "v_head_dim": k.count("v_head_dim"),
    }
    spec["mtp_num_layers"] = k.count("num_nextn_predict_layers", if_null=0, least=0)
    first_dense = k.count("first_k_dense_replace", if_null=0, least=0)
    if first_dense >= spec["num_layers"]:
        return spec
    width, shared = k.count("moe_intermediate_size"), k.count("n_shared_experts", if_null=0, least=0)
    spec["moe"] = {
        "num_experts": k.count("n_routed_experts"),
        "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": width,
        # One module of n_shared x width: the parameters of n_shared experts.
        "num_shared_experts": shared,
        "shared_expert_intermediate_size": width if shared else 0,
        "first_dense_layers": first_dense,
        "num_groups": k.count("n_group", if_null=1),
        "topk_groups": k.count("topk_group", if_null=1),
    }
    return spec


def _olmo2(k: Keys) -> Spec:
    return {**_sizes(k), **_biases(k), "qk_norm": "full"}


def _olmoe(k: Keys) -> Spec:
    spec = {**_sizes(k), **_biases(k), "qk_norm": "full"}
    moe = {"num_experts": k.count("num_experts"), "top_k": k.count("num_experts_per_tok")}
    return {**spec, "moe": {**moe, "expert_intermediate_size": spec["intermediate_size"]}}


def _gpt_neox(k: Keys) -> Spec:
    parallel = k.flag("use_parallel_residual")
    return {
        **_sizes(k), "attention_bias": k.flag("attention_bias"), "mlp_bias": True, "parallel_block": parallel,
        "norms_per_layer": 2,
    }  # fmt: skip


def _opt(k: Keys) -> Spec:
    hidden = k.count("hidden_size", reported_as="hidden_size")
    if k.optional_count("word_embed_proj_dim") not in (None, hidden):
        k.refuse("word_embed_proj_dim", "an embedding narrower than hidden_size is not modelled")
    bias = k.flag("enable_bias")
    return {
        "num_layers": k.layers("num_hidden_layers"),
        "hidden_size": hidden,
        "num_attention_heads": k.count("num_attention_heads", reported_as="num_attention_heads"),
        "intermediate_size": k.count("ffn_dim", reported_as="intermediate_size"),
        "vocab_size": k.count("vocab_size", reported_as="vocab_size"),
        # OPT's learned table has two rows before position 0.
        "max_position_embeddings": k.count("max_position_embeddings") + 2,
        "tie_word_embeddings": k.flag("tie_word_embeddings", reported_as="tie_word_embeddings"),
        "attention_bias": bias,
        "mlp_bias": bias,
        "final_norm": k.flag("do_layer_norm_before") and not k.flag("_remove_final_layer_norm"),
    }


def _bloom(k: Keys) -> Spec:
    hidden = k.count("hidden_size", reported_as="hidden_size")
    return {
        "num_layers": k.layers("n_layer"),
        "hidden_size": hidden,
        "num_attention_heads": k.count("n_head", reported_as="num_attention_heads"),
        "intermediate_size": 4 * hidden,
        "vocab_size": k.count("vocab_size", reported_as="vocab_size"),
        "tie_word_embeddings": k.flag("tie_word_embeddings", reported_as="tie_word_embeddings"),
    }


def _falcon(k: Keys) -> Spec:
    hidden, heads = k.count("hidden_size", reported_as="hidden_size"), k.count("num_attention_heads")
    new = k.flag("new_decoder_architecture", if_null=False)
    parallel = k.flag("parallel_attn", if_null=False) or new
    kv_heads = k.count("num_kv_heads", if_null=heads) if new else 1 if k.flag("multi_query", if_null=False) else heads
    norms = k.count("num_ln_in_parallel_attn", if_null=2 if new else 1) if parallel else 2
    bias = k.flag("bias", if_null=False)
    return {
        "num_layers": k.layers("num_hidden_layers"),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": k.count("ffn_hidden_size", if_null=4 * hidden),
        "vocab_size": k.count("vocab_size", reported_as="vocab_size"),
        "tie_word_embeddings": k.flag("tie_word_embeddings", reported_as="tie_word_embeddings"),
        "position_embedding": "alibi" if k.flag("alibi", if_null=False) else "rope",
        "parallel_block": parallel,
        "norms_per_layer": norms if new or not parallel else 1,
        "attention_bias": bias,
        "mlp_bias": bias,
    }


def _mpt(k: Keys) -> Spec:
    if not k.flag("no_bias"):
        k.refuse("no_bias", "MPT with biases is not modelled")
    hidden = k.count("d_model", reported_as="hidden_size")
    return {
        "num_layers": k.layers("n_layers"),
        "hidden_size": hidden,
        "num_attention_heads": k.count("n_heads", reported_as="num_attention_heads"),
        "intermediate_size": k.count("expansion_ratio") * hidden,
        "vocab_size": k.count("vocab_size", reported_as="vocab_size"),
        "tie_word_embeddings": k.flag("tie_word_embeddings", reported_as="tie_word_embeddings"),
    }


def _starcoder2(k: Keys) -> Spec:
    bias = k.flag("use_bias")
    return {**_sizes(k), "attention_bias": bias, "mlp_bias": bias, **_one_window(k)}


def _cohere(k: Keys) -> Spec:
    return {**_sizes(k), **_biases(k), "qk_norm": "full" if k.flag("use_qk_norm", if_null=False) else "none"}


def _stablelm(k: Keys) -> Spec:
    if k.flag("qk_layernorm"):
        k.refuse("qk_layernorm", "a norm per head with its own weights is not modelled")
    parallel = k.flag("use_parallel_residual")
    bias = "qkv" if k.flag("use_qkv_bias") else False
    return {**_sizes(k), "attention_bias": bias, "mlp_bias": False, "parallel_block": parallel}


def _phi(k: Keys) -> Spec:
    if k.flag("qk_layernorm"):
        k.refuse("qk_layernorm", "a LayerNorm of queries and keys is not modelled")
    return _sizes(k)


def _nemotron(k: Keys) -> Spec:
    return {**_sizes(k), **_biases(k, mlp=True)}


def _gpt_oss(k: Keys) -> Spec:
    spec = _sizes(k)
    moe = {
        "num_experts": k.count("num_local_experts"), "top_k": k.count("num_experts_per_tok"),
        "expert_intermediate_size": spec["intermediate_size"], "router_bias": True,
    }  # fmt: skip
    return {**spec, "attention_bias": k.flag("attention_bias"), "moe": moe, **_patterned(k, spec["num_layers"], 2)}


_LLAMA = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": None, "head_dim": None, "max_position_embeddings": 2048,
    "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
_MISTRAL = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": None, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "sliding_window": 4096,
}  # fmt: skip
_QWEN2 = {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": None, "max_position_embeddings": 32768,
    "tie_word_embeddings": False, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28,
    "layer_types": None,
}  # fmt: skip
_QWEN_MOE = {
    "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 24, "head_dim": None,
    "max_position_embeddings": 32768, "tie_word_embeddings": False, "use_sliding_window": False,
    "sliding_window": 4096, "decoder_sparse_step": 1, "mlp_only_layers": None,
}  # fmt: skip
_GEMMA = {
    "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "max_position_embeddings": 8192,
    "tie_word_embeddings": True, "attention_bias": False, "use_bidirectional_attention": None,
}  # fmt: skip
_GEMMA2 = {
    **_GEMMA, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "sliding_window": 4096, "layer_types": None,
}  # fmt: skip
_GPT2 = {
    "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None,
    "add_cross_attention": False, "tie_word_embeddings": True,
}  # fmt: skip
_DEEPSEEK_V3 = {
    "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
    "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "attention_bias": False,
    # Absent means that nothing trains the module: transformers 4 ignores its weights.
    "num_nextn_predict_layers": 0,
}  # fmt: skip
_DEEPSEEK_V2 = {
    "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008, "moe_intermediate_size": 1407,
    "num_hidden_layers": 32, "num_attention_heads": 32, "n_shared_experts": 2, "n_routed_experts": 64,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
    "n_group": None, "topk_group": None, "first_k_dense_replace": 0, "max_position_embeddings": 2048,
    "tie_word_embeddings": False, "attention_bias": False, "num_nextn_predict_layers": 0,
}  # fmt: skip
_OLMO2 = {**_LLAMA, "vocab_size": 50304}
_BIASED = {"attention_bias": True, "mlp_bias": True, "norm_bias": True}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(_LLAMA, RMS_GATED, _llama),
    "mistral": Family(_MISTRAL, RMS_GATED, _plain),
    "mixtral": Family(
        {**_MISTRAL, "sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2},
        RMS_GATED, _mixtral, {"num_local_experts": ("num_experts",)},
    ),
    "qwen2": Family(_QWEN2, RMS_GATED, _qwen2),
    "qwen3": Family({**_QWEN2, "head_dim": 128, "attention_bias": False}, RMS_GATED, _qwen3),
    "qwen2_moe": Family(
        {
            **_QWEN_MOE, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16,
            "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4,
            "num_experts": 60, "qkv_bias": True,
        },
        RMS_GATED, _qwen2_moe,
    ),
    "qwen3_moe": Family(
        {
            **_QWEN_MOE, "intermediate_size": 6144, "num_attention_heads": 32, "num_key_value_heads": 4,
            "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_experts": 128, "attention_bias": False,
        },
        RMS_GATED, _qwen3_moe, {"num_experts": ("num_local_experts",)},
    ),
    "gemma": Family(_GEMMA, RMS_GATED, _gemma),
    "gemma2": Family(_GEMMA2, {**RMS_GATED, "norms_per_layer": 4}, _gemma2),
    "gemma3_text": Family(
        {**_GEMMA2, "vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window_pattern": 6},
        {**RMS_GATED, "norms_per_layer": 4}, _gemma3, {"sliding_window_pattern": ("_sliding_window_pattern",)},
    ),
    "gpt2": Family(_GPT2, {**LAYERNORM_PLAIN, **_BIASED, "position_embedding": "learned"}, _gpt2, GPT_ALIASES),
    "deepseek_v3": Family(
        _DEEPSEEK_V3, RMS_GATED, _deepseek,
        {"n_routed_experts": ("num_local_experts",), "num_nextn_predict_layers": ("num_mtp_layers",)},
    ),
    "deepseek_v2": Family(_DEEPSEEK_V2, RMS_GATED, _deepseek, {"n_routed_experts": ("num_local_experts",)}),
    "phi3": Family(
        {
            **_LLAMA, "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
            "max_position_embeddings": 4096, "sliding_window": None,
        },
        RMS_GATED, _plain,
    ),
    "phi": Family(
        {
            **_LLAMA, "vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
            "qk_layernorm": False,
        },
        {**LAYERNORM_PLAIN, **_BIASED, "position_embedding": "rope", "parallel_block": True, "head_bias": True}, _phi,
    ),
    "olmo2": Family(_OLMO2, RMS_GATED, _olmo2),
    "olmoe": Family(
        {
            **_OLMO2, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16,
            "num_attention_heads": 16, "max_position_embeddings": 4096, "num_experts": 64, "num_experts_per_tok": 8,
        },
        RMS_GATED, _olmoe, {"num_experts": ("num_local_experts",)},
    ),
    "gpt_neox": Family(
        {
            "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
            "intermediate_size": 24576, "max_position_embeddings": 2048, "tie_word_embeddings": False,
            "use_parallel_residual": True, "attention_bias": True,
        },
        {**LAYERNORM_PLAIN, "position_embedding": "rope"}, _gpt_neox,
    ),
    "opt": Family(
        {
            "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072,
            "max_position_embeddings": 2048, "do_layer_norm_before": True, "_remove_final_layer_norm": False,
            "word_embed_proj_dim": None, "num_attention_heads": 12, "enable_bias": True, "tie_word_embeddings": True,
        },
        {**LAYERNORM_PLAIN, "position_embedding": "learned"}, _opt,
    ),
    "bloom": Family(
        {"vocab_size": 250880, "hidden_size": 64, "n_layer": 2, "n_head": 8, "tie_word_embeddings": True},
        {**LAYERNORM_PLAIN, **_BIASED, "position_embedding": "alibi", "embedding_norm": True}, _bloom,
        {"hidden_size": ("n_embed",), "n_layer": ("num_hidden_layers",), "n_head": ("num_attention_heads",)},
    ),
    "falcon": Family(
        {
            "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
            "num_ln_in_parallel_attn": None, "num_kv_heads": None, "alibi": False, "new_decoder_architecture": False,
            "multi_query": True, "parallel_attn": True, "bias": False, "ffn_hidden_size": None,
            "tie_word_embeddings": True,
        },
        LAYERNORM_PLAIN, _falcon, {"hidden_size": ("n_embed",)},
    ),
    "mpt": Family(
        {
            "d_model": 2048, "n_heads": 16, "n_layers": 24, "expansion_ratio": 4, "vocab_size": 50368,
            "no_bias": True, "tie_word_embeddings": True,
        },
        {
            **LAYERNORM_PLAIN, "norm_bias": False, "attention_bias": False, "mlp_bias": False,
            "position_embedding": "alibi",
        }, _mpt,
        {"d_model": ("hidden_size",), "n_heads": ("num_attention_heads",), "n_layers": ("num_hidden_layers",)},
    ),
    "starcoder2": Family(
        {
            **_LLAMA, "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30,
            "num_attention_heads": 24, "num_key_value_heads": 2, "max_position_embeddings": 4096,
            "sliding_window": None, "use_bias": True, "tie_word_embeddings": True,
        },
        {**LAYERNORM_PLAIN, "position_embedding": "rope"}, _starcoder2,
    ),
    "cohere": Family(
        {
            **_LLAMA, "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
            "num_attention_heads": 64, "max_position_embeddings": 8192, "tie_word_embeddings": True,
            "use_qk_norm": False,
        },
        {
            "norm": "layernorm", "norm_bias": False, "gated_mlp": True, "position_embedding": "rope",
            "parallel_block": True, "norms_per_layer": 1,
        }, _cohere,
    ),
    "granite": Family(_LLAMA, RMS_GATED, _llama),
    "stablelm": Family(
        {
            "vocab_size": 50304, "intermediate_size": 6912, "hidden_size": 2560, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
            "tie_word_embeddings": False, "use_qkv_bias": False, "qk_layernorm": False,
            "use_parallel_residual": False,
        },
        {"norm": "layernorm", "gated_mlp": True, "position_embedding": "rope"}, _stablelm,
    ),
    "nemotron": Family(
        {
            **_LLAMA, "vocab_size": 256000, "hidden_size": 6144, "intermediate_size": 24576,
            "num_attention_heads": 48, "max_position_embeddings": 4096,
        },
        {**LAYERNORM_PLAIN, "position_embedding": "rope"}, _nemotron,
    ),
    "gpt_oss": Family(
        {
            "num_hidden_layers": 36, "num_local_experts": 128, "vocab_size": 201088, "hidden_size": 2880,
            "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
            "sliding_window": 128, "tie_word_embeddings": False, "max_position_embeddings": 131072,
            "num_experts_per_tok": 4, "layer_types": None, "attention_bias": True,
        },
        {**RMS_GATED, "mlp_bias": True, "attention_sinks": True}, _gpt_oss,
        {"num_local_experts": ("num_experts",)},
    ),
}  # fmt: skip
