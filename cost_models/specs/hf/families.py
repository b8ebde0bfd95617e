"""One entry per `model_type`: the config class's defaults, what the architecture fixes, and what needs reading by hand.

Defaults are those of the config classes of transformers 5 (and 4, where both know the family); counts are held to the
modules themselves by tests/oracle/test_hf_parameters.py. To add a family, add an entry here and a row there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.specs.hf.keys import Keys
from cost_models.specs.hf.readers import (
    Spec,
    read_bloom,
    read_cohere,
    read_deepseek,
    read_falcon,
    read_gemma,
    read_gemma2,
    read_gemma3,
    read_gpt2,
    read_gpt_neox,
    read_gpt_oss,
    read_llama,
    read_mixtral,
    read_mpt,
    read_nemotron,
    read_olmo2,
    read_olmoe,
    read_opt,
    read_phi,
    read_plain,
    read_qwen2,
    read_qwen2_moe,
    read_qwen3,
    read_qwen3_moe,
    read_stablelm,
    read_starcoder2,
)


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
    "llama": Family(_LLAMA, RMS_GATED, read_llama),
    "mistral": Family(_MISTRAL, RMS_GATED, read_plain),
    "mixtral": Family(
        {**_MISTRAL, "sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2},
        RMS_GATED, read_mixtral, {"num_local_experts": ("num_experts",)},
    ),
    "qwen2": Family(_QWEN2, RMS_GATED, read_qwen2),
    "qwen3": Family({**_QWEN2, "head_dim": 128, "attention_bias": False}, RMS_GATED, read_qwen3),
    "qwen2_moe": Family(
        {
            **_QWEN_MOE, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16,
            "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4,
            "num_experts": 60, "qkv_bias": True,
        },
        RMS_GATED, read_qwen2_moe,
    ),
    "qwen3_moe": Family(
        {
            **_QWEN_MOE, "intermediate_size": 6144, "num_attention_heads": 32, "num_key_value_heads": 4,
            "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_experts": 128, "attention_bias": False,
        },
        RMS_GATED, read_qwen3_moe, {"num_experts": ("num_local_experts",)},
    ),
    "gemma": Family(_GEMMA, RMS_GATED, read_gemma),
    "gemma2": Family(_GEMMA2, {**RMS_GATED, "norms_per_layer": 4}, read_gemma2),
    "gemma3_text": Family(
        {**_GEMMA2, "vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window_pattern": 6},
        {**RMS_GATED, "norms_per_layer": 4}, read_gemma3, {"sliding_window_pattern": ("_sliding_window_pattern",)},
    ),
    "gpt2": Family(_GPT2, {**LAYERNORM_PLAIN, **_BIASED, "position_embedding": "learned"}, read_gpt2, GPT_ALIASES),
    "deepseek_v3": Family(
        _DEEPSEEK_V3, RMS_GATED, read_deepseek,
        {"n_routed_experts": ("num_local_experts",), "num_nextn_predict_layers": ("num_mtp_layers",)},
    ),
    "deepseek_v2": Family(_DEEPSEEK_V2, RMS_GATED, read_deepseek, {"n_routed_experts": ("num_local_experts",)}),
    "phi3": Family(
        {
            **_LLAMA, "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
            "max_position_embeddings": 4096, "sliding_window": None,
        },
        RMS_GATED, read_plain,
    ),
    "phi": Family(
        {
            **_LLAMA, "vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
            "qk_layernorm": False,
        },
        {**LAYERNORM_PLAIN, **_BIASED, "position_embedding": "rope", "parallel_block": True, "head_bias": True}, read_phi,
    ),
    "olmo2": Family(_OLMO2, RMS_GATED, read_olmo2),
    "olmoe": Family(
        {
            **_OLMO2, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16,
            "num_attention_heads": 16, "max_position_embeddings": 4096, "num_experts": 64, "num_experts_per_tok": 8,
        },
        RMS_GATED, read_olmoe, {"num_experts": ("num_local_experts",)},
    ),
    "gpt_neox": Family(
        {
            "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
            "intermediate_size": 24576, "max_position_embeddings": 2048, "tie_word_embeddings": False,
            "use_parallel_residual": True, "attention_bias": True,
        },
        {**LAYERNORM_PLAIN, "position_embedding": "rope"}, read_gpt_neox,
    ),
    "opt": Family(
        {
            "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072,
            "max_position_embeddings": 2048, "do_layer_norm_before": True, "_remove_final_layer_norm": False,
            "word_embed_proj_dim": None, "num_attention_heads": 12, "enable_bias": True, "tie_word_embeddings": True,
        },
        {**LAYERNORM_PLAIN, "position_embedding": "learned"}, read_opt,
    ),
    "bloom": Family(
        {"vocab_size": 250880, "hidden_size": 64, "n_layer": 2, "n_head": 8, "tie_word_embeddings": True},
        {**LAYERNORM_PLAIN, **_BIASED, "position_embedding": "alibi", "embedding_norm": True}, read_bloom,
        {"hidden_size": ("n_embed",), "n_layer": ("num_hidden_layers",), "n_head": ("num_attention_heads",)},
    ),
    "falcon": Family(
        {
            "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
            "num_ln_in_parallel_attn": None, "num_kv_heads": None, "alibi": False, "new_decoder_architecture": False,
            "multi_query": True, "parallel_attn": True, "bias": False, "ffn_hidden_size": None,
            "tie_word_embeddings": True,
        },
        LAYERNORM_PLAIN, read_falcon, {"hidden_size": ("n_embed",)},
    ),
    "mpt": Family(
        {
            "d_model": 2048, "n_heads": 16, "n_layers": 24, "expansion_ratio": 4, "vocab_size": 50368,
            "no_bias": True, "tie_word_embeddings": True,
        },
        {
            **LAYERNORM_PLAIN, "norm_bias": False, "attention_bias": False, "mlp_bias": False,
            "position_embedding": "alibi",
        }, read_mpt,
        {"d_model": ("hidden_size",), "n_heads": ("num_attention_heads",), "n_layers": ("num_hidden_layers",)},
    ),
    "starcoder2": Family(
        {
            **_LLAMA, "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30,
            "num_attention_heads": 24, "num_key_value_heads": 2, "max_position_embeddings": 4096,
            "sliding_window": None, "use_bias": True, "tie_word_embeddings": True,
        },
        {**LAYERNORM_PLAIN, "position_embedding": "rope"}, read_starcoder2,
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
        }, read_cohere,
    ),
    "granite": Family(_LLAMA, RMS_GATED, read_llama),
    "stablelm": Family(
        {
            "vocab_size": 50304, "intermediate_size": 6912, "hidden_size": 2560, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
            "tie_word_embeddings": False, "use_qkv_bias": False, "qk_layernorm": False,
            "use_parallel_residual": False,
        },
        {"norm": "layernorm", "gated_mlp": True, "position_embedding": "rope"}, read_stablelm,
    ),
    "nemotron": Family(
        {
            **_LLAMA, "vocab_size": 256000, "hidden_size": 6144, "intermediate_size": 24576,
            "num_attention_heads": 48, "max_position_embeddings": 4096,
        },
        {**LAYERNORM_PLAIN, "position_embedding": "rope"}, read_nemotron,
    ),
    "gpt_oss": Family(
        {
            "num_hidden_layers": 36, "num_local_experts": 128, "vocab_size": 201088, "hidden_size": 2880,
            "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
            "sliding_window": 128, "tie_word_embeddings": False, "max_position_embeddings": 131072,
            "num_experts_per_tok": 4, "layer_types": None, "attention_bias": True,
        },
        {**RMS_GATED, "mlp_bias": True, "attention_sinks": True}, read_gpt_oss,
        {"num_local_experts": ("num_experts",)},
    ),
}  # fmt: skip
