"""The families with mixtures of experts: class defaults, what the architecture fixes, and the reader.

Defaults are those of the config classes of transformers 5 (and 4, where both know the family).
"""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.inputs.hf import mixture_readers as readers
from cost_models.inputs.hf.family import LLAMA, MISTRAL, MTP_ALIASES, OLMO, RMS_GATED, Family

_QWEN_MOE = {
    "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 24, "head_dim": None,
    "max_position_embeddings": 32768, "tie_word_embeddings": False, "use_sliding_window": False,
    "sliding_window": 4096, "decoder_sparse_step": 1, "mlp_only_layers": None,
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
_LOCAL = {"num_local_experts": ("num_experts",)}
_ROUTED = {"n_routed_experts": ("num_local_experts",), **MTP_ALIASES}
_GLM_MOE = {
    "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
    "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": None, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "attention_bias": False, "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "num_nextn_predict_layers": 0,
}  # fmt: skip
_BAILING = {
    "max_position_embeddings": 16384, "tie_word_embeddings": False, "head_dim": None, "use_qkv_bias": False,
    "use_bias": True, "use_qk_norm": False, "num_shared_experts": 0, "first_k_dense_replace": 0,
    "num_nextn_predict_layers": 0,
}  # fmt: skip
"""The class's sizes are of no published model, so a config must state its own."""

MIXTURES: Mapping[str, Family] = {
    "mixtral": Family(
        {**MISTRAL, "sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2},
        RMS_GATED, readers.read_mixtral, {"num_local_experts": ("num_experts",)},
    ),
    "qwen2_moe": Family(
        {
            **_QWEN_MOE, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16,
            "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4,
            "num_experts": 60, "qkv_bias": True,
        },
        RMS_GATED, readers.read_qwen2_moe,
    ),
    "qwen3_moe": Family(
        {
            **_QWEN_MOE, "intermediate_size": 6144, "num_attention_heads": 32, "num_key_value_heads": 4,
            "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_experts": 128, "attention_bias": False,
        },
        RMS_GATED, readers.read_qwen3_moe, {"num_experts": ("num_local_experts",)},
    ),
    "olmoe": Family(
        {
            **OLMO, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16,
            "num_attention_heads": 16, "max_position_embeddings": 4096, "num_experts": 64, "num_experts_per_tok": 8,
        },
        RMS_GATED, readers.read_olmoe, {"num_experts": ("num_local_experts",)},
    ),
    "deepseek_v3": Family(
        _DEEPSEEK_V3, RMS_GATED, readers.read_deepseek,
        {"n_routed_experts": ("num_local_experts",), "num_nextn_predict_layers": ("num_mtp_layers",)},
    ),
    "deepseek_v32": Family(
        {
            **_DEEPSEEK_V3, "max_position_embeddings": 163840, "mlp_layer_types": None, "index_n_heads": 64,
            "index_head_dim": 128, "index_topk": 2048,
        },
        RMS_GATED, readers.read_deepseek_v32,
        {"n_routed_experts": ("num_local_experts",), "num_nextn_predict_layers": ("num_mtp_layers",)},
    ),
    "deepseek_v2": Family(_DEEPSEEK_V2, RMS_GATED, readers.read_deepseek, {"n_routed_experts": ("num_local_experts",)}),
    "gpt_oss": Family(
        {
            "num_hidden_layers": 36, "num_local_experts": 128, "vocab_size": 201088, "hidden_size": 2880,
            "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
            "sliding_window": 128, "tie_word_embeddings": False, "max_position_embeddings": 131072,
            "num_experts_per_tok": 4, "layer_types": None, "attention_bias": True,
        },
        {**RMS_GATED, "mlp_bias": True, "attention_sinks": True}, readers.read_gpt_oss,
        {"num_local_experts": ("num_experts",)},
    ),
    "glm4_moe": Family(
        {**_GLM_MOE, "use_qk_norm": False}, RMS_GATED, readers.read_glm4_moe, _ROUTED,
    ),
    "glm4v_moe_text": Family(
        {**_GLM_MOE, "vocab_size": 151424, "max_position_embeddings": 65536, "attention_bias": True},
        RMS_GATED, readers.read_glm4_moe, _ROUTED,
    ),
    "glm4_moe_lite": Family(
        {
            **_DEEPSEEK_V3, "vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240,
            "moe_intermediate_size": 1536, "num_hidden_layers": 47, "num_attention_heads": 20,
            "n_routed_experts": 64, "q_lora_rank": 768, "v_head_dim": 256, "qk_nope_head_dim": 192, "n_group": 1,
            "topk_group": 1, "num_experts_per_tok": 4, "max_position_embeddings": 202752, "mlp_layer_types": None,
        },
        RMS_GATED, readers.read_glm4_moe_lite, _ROUTED,
    ),
    "dots1": Family(
        {
            "vocab_size": 152064, "hidden_size": 4608, "intermediate_size": 10944, "moe_intermediate_size": 1408,
            "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": None,
            "n_shared_experts": None, "n_routed_experts": None, "num_experts_per_tok": None, "n_group": 1,
            "topk_group": 1, "first_k_dense_replace": 0, "max_position_embeddings": 2048,
            "tie_word_embeddings": False, "attention_bias": False, "sliding_window": 4096, "max_window_layers": 62,
            "layer_types": None,
        },
        RMS_GATED, readers.read_dots1, _ROUTED,
    ),
    "afmoe": Family(
        {
            "vocab_size": 200192, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 1408,
            "num_hidden_layers": 32, "num_dense_layers": 1, "num_attention_heads": 16, "num_key_value_heads": None,
            "head_dim": 128, "max_position_embeddings": 16384, "tie_word_embeddings": False, "num_experts": 64,
            "num_experts_per_tok": 6, "num_shared_experts": 2, "global_attn_every_n_layers": 4,
            "sliding_window": 1024, "layer_types": None, "attention_bias": False,
        },
        {**RMS_GATED, "norms_per_layer": 4, "attention_gate": True}, readers.read_afmoe,
        {"num_experts": ("num_local_experts",)},
    ),
    "bailing_moe": Family(_BAILING, RMS_GATED, readers.read_bailing, MTP_ALIASES),
    "bailing_moe_v2": Family({**_BAILING, "n_group": 8, "topk_group": 4}, RMS_GATED, readers.read_bailing, MTP_ALIASES),
    "granitemoeshared": Family(
        {**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 0}, RMS_GATED,
        readers.read_granitemoeshared, _LOCAL,
    ),
    "phimoe": Family(
        {
            **MISTRAL, "vocab_size": 32064, "intermediate_size": 6400, "sliding_window": None,
            "num_experts_per_tok": 2, "num_local_experts": 16, "attention_bias": False, "lm_head_bias": False,
        },
        {**RMS_GATED, "norm": "layernorm"}, readers.read_phimoe, _LOCAL,
    ),
    "granitemoe": Family(
        {**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2}, RMS_GATED, readers.read_granitemoe, _LOCAL
    ),
    "minimax_m2": Family(
        {
            "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62,
            "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 196608,
            "tie_word_embeddings": False, "num_experts_per_tok": 8, "num_local_experts": 256,
        },
        RMS_GATED, readers.read_minimax_m2, _LOCAL,
    ),
    "llama4_text": Family(
        {
            "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
            "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
            "max_position_embeddings": 131072, "tie_word_embeddings": False, "num_experts_per_tok": 1,
            "num_local_experts": 16, "moe_layers": None, "interleave_moe_layer_step": 1, "no_rope_layers": None,
            "no_rope_layer_interval": 4, "attention_chunk_size": 8192, "layer_types": None, "attention_bias": False,
        },
        RMS_GATED, readers.read_llama4, _LOCAL,
    ),
    "ernie4_5_moe": Family(
        {
            "vocab_size": 103424, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 28,
            "num_attention_heads": 20, "num_key_value_heads": 4, "head_dim": None, "max_position_embeddings": 131072,
            "tie_word_embeddings": True, "use_bias": False, "moe_intermediate_size": 1536, "moe_k": 6,
            "moe_num_experts": 64, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
            "moe_layer_end_index": -1, "moe_layer_interval": 1,
        },
        RMS_GATED, readers.read_ernie_moe, {"moe_num_experts": ("num_experts",), "moe_k": ("num_experts_per_tok",)},
    ),
    "hunyuan_v1_moe": Family(
        {**LLAMA, "vocab_size": 290943, "num_experts": 1, "moe_topk": 1}, RMS_GATED, readers.read_hunyuan_moe,
        {"num_experts": ("num_local_experts",)},
    ),
    "dbrx": Family(
        {
            "d_model": 2048, "n_heads": 16, "n_layers": 24, "max_seq_len": 2048, "vocab_size": 32000,
            "attn_config": None, "ffn_config": None, "tie_word_embeddings": False,
        },
        {
            **RMS_GATED, "norm": "layernorm", "norm_bias": False, "attention_bias": False, "mlp_bias": False,
        }, readers.read_dbrx,
        {
            "d_model": ("hidden_size",), "n_heads": ("num_attention_heads",), "n_layers": ("num_hidden_layers",),
            "max_seq_len": ("max_position_embeddings",),
        },
    ),
}  # fmt: skip
