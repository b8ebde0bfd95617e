"""The families whose layers all have one dense MLP: class defaults, what the architecture fixes, and the reader.

Defaults are those of the config classes of transformers 5 (and 4, where both know the family).
"""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.inputs.hf import readers
from cost_models.inputs.hf.family import (
    BIASED,
    GPT_ALIASES,
    LAYERNORM_PLAIN,
    LLAMA,
    MISTRAL,
    MTP_ALIASES,
    OLMO,
    RMS_GATED,
    Family,
    without,
)

_QWEN2 = {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": None, "max_position_embeddings": 32768,
    "tie_word_embeddings": False, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28,
    "layer_types": None,
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
_GPTJ = {
    "vocab_size": 50400, "n_positions": 2048, "n_embd": 4096, "n_layer": 28, "n_head": 16, "n_inner": None,
    "tie_word_embeddings": False,
}  # fmt: skip
_ERNIE = {
    "vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072,
    "tie_word_embeddings": True, "use_bias": False,
}  # fmt: skip
_GLM = {
    "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "attention_bias": True,
}  # fmt: skip
_COHERE = {
    **LLAMA, "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
    "num_attention_heads": 64, "max_position_embeddings": 8192, "tie_word_embeddings": True,
}  # fmt: skip
_PARALLEL = {"parallel_block": True, "norms_per_layer": 1}
_ROTARY_GPT = {
    **LAYERNORM_PLAIN, **_PARALLEL, "attention_bias": False, "mlp_bias": True, "norm_bias": True,
    "position_embedding": "rope", "head_bias": True,
}  # fmt: skip
_COHERE_FIXED = {
    **_PARALLEL, "norm": "layernorm", "norm_bias": False, "gated_mlp": True, "position_embedding": "rope",
}  # fmt: skip

DENSE: Mapping[str, Family] = {
    "llama": Family(LLAMA, RMS_GATED, readers.read_llama),
    "mistral": Family(MISTRAL, RMS_GATED, readers.read_plain),
    "qwen2": Family(_QWEN2, RMS_GATED, readers.read_qwen2),
    "qwen3": Family({**_QWEN2, "head_dim": 128, "attention_bias": False}, RMS_GATED, readers.read_qwen3),
    "gemma": Family(_GEMMA, RMS_GATED, readers.read_gemma),
    "gemma2": Family(_GEMMA2, {**RMS_GATED, "norms_per_layer": 4}, readers.read_gemma2),
    "gemma3_text": Family(
        {**_GEMMA2, "vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window_pattern": 6},
        {**RMS_GATED, "norms_per_layer": 4}, readers.read_gemma3, {"sliding_window_pattern": ("_sliding_window_pattern",)},
    ),
    "gpt2": Family(_GPT2, {**LAYERNORM_PLAIN, **BIASED, "position_embedding": "learned"}, readers.read_gpt2, GPT_ALIASES),
    "phi3": Family(
        {
            **LLAMA, "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
            "max_position_embeddings": 4096, "sliding_window": None,
        },
        RMS_GATED, readers.read_plain,
    ),
    "phi": Family(
        {
            **LLAMA, "vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
            "qk_layernorm": False,
        },
        {**LAYERNORM_PLAIN, **BIASED, "position_embedding": "rope", "parallel_block": True, "head_bias": True}, readers.read_phi,
    ),
    "olmo2": Family(OLMO, RMS_GATED, readers.read_olmo2),
    "apertus": Family(
        {
            **LLAMA, "vocab_size": 131072, "intermediate_size": 14336, "max_position_embeddings": 65536,
            "hidden_act": "xielu",
        },
        {**RMS_GATED, "gated_mlp": False}, readers.read_apertus,
    ),
    "ministral": Family({**MISTRAL, "layer_types": None}, RMS_GATED, readers.read_ministral),
    "ministral3": Family(
        {
            **MISTRAL, "vocab_size": 131072, "num_hidden_layers": 34, "head_dim": 128,
            "max_position_embeddings": 262144, "sliding_window": None,
        },
        RMS_GATED, readers.read_ministral3,
    ),
    "mimo": Family({**_QWEN2, "num_nextn_predict_layers": 0}, RMS_GATED, readers.read_mimo, MTP_ALIASES),
    "glm4v_text": Family(
        {**without(_GLM, "attention_bias", "head_dim"), "max_position_embeddings": 32768},
        {**RMS_GATED, "norms_per_layer": 4}, readers.read_glm4v,
    ),
    "gpt_neox": Family(
        {
            "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
            "intermediate_size": 24576, "max_position_embeddings": 2048, "tie_word_embeddings": False,
            "use_parallel_residual": True, "attention_bias": True,
        },
        {**LAYERNORM_PLAIN, "position_embedding": "rope"}, readers.read_gpt_neox,
    ),
    "opt": Family(
        {
            "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072,
            "max_position_embeddings": 2048, "do_layer_norm_before": True, "_remove_final_layer_norm": False,
            "word_embed_proj_dim": None, "num_attention_heads": 12, "enable_bias": True, "tie_word_embeddings": True,
        },
        {**LAYERNORM_PLAIN, "position_embedding": "learned"}, readers.read_opt,
    ),
    "bloom": Family(
        {"vocab_size": 250880, "hidden_size": 64, "n_layer": 2, "n_head": 8, "tie_word_embeddings": True},
        {**LAYERNORM_PLAIN, **BIASED, "position_embedding": "alibi", "embedding_norm": True}, readers.read_bloom,
        {"hidden_size": ("n_embed",), "n_layer": ("num_hidden_layers",), "n_head": ("num_attention_heads",)},
    ),
    "falcon": Family(
        {
            "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
            "num_ln_in_parallel_attn": None, "num_kv_heads": None, "alibi": False, "new_decoder_architecture": False,
            "multi_query": True, "parallel_attn": True, "bias": False, "ffn_hidden_size": None,
            "tie_word_embeddings": True,
        },
        LAYERNORM_PLAIN, readers.read_falcon, {"hidden_size": ("n_embed",)},
    ),
    "mpt": Family(
        {
            "d_model": 2048, "n_heads": 16, "n_layers": 24, "expansion_ratio": 4, "vocab_size": 50368,
            "no_bias": True, "tie_word_embeddings": True,
        },
        {
            **LAYERNORM_PLAIN, "norm_bias": False, "attention_bias": False, "mlp_bias": False,
            "position_embedding": "alibi",
        }, readers.read_mpt,
        {"d_model": ("hidden_size",), "n_heads": ("num_attention_heads",), "n_layers": ("num_hidden_layers",)},
    ),
    "starcoder2": Family(
        {
            **LLAMA, "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30,
            "num_attention_heads": 24, "num_key_value_heads": 2, "max_position_embeddings": 4096,
            "sliding_window": None, "use_bias": True, "tie_word_embeddings": True,
        },
        {**LAYERNORM_PLAIN, "position_embedding": "rope"}, readers.read_starcoder2,
    ),
    "cohere": Family({**_COHERE, "use_qk_norm": False}, _COHERE_FIXED, readers.read_cohere),
    "cohere2": Family(
        {**_COHERE, "sliding_window": 4096, "layer_types": None, "sliding_window_pattern": 4}, _COHERE_FIXED,
        readers.read_cohere2, {"sliding_window_pattern": ("_sliding_window_pattern",)},
    ),
    "granite": Family(LLAMA, RMS_GATED, readers.read_llama),
    "stablelm": Family(
        {
            "vocab_size": 50304, "intermediate_size": 6912, "hidden_size": 2560, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
            "tie_word_embeddings": False, "use_qkv_bias": False, "qk_layernorm": False,
            "use_parallel_residual": False,
        },
        {"norm": "layernorm", "gated_mlp": True, "position_embedding": "rope"}, readers.read_stablelm,
    ),
    "nemotron": Family(
        {
            **LLAMA, "vocab_size": 256000, "hidden_size": 6144, "intermediate_size": 24576,
            "num_attention_heads": 48, "max_position_embeddings": 4096,
        },
        {**LAYERNORM_PLAIN, "position_embedding": "rope"}, readers.read_nemotron,
    ),
    "gptj": Family(_GPTJ, _ROTARY_GPT, readers.read_gptj, GPT_ALIASES),
    "codegen": Family(_GPTJ, _ROTARY_GPT, readers.read_gptj, GPT_ALIASES),
    "gpt_bigcode": Family(
        {**_GPT2, "multi_query": True}, {**LAYERNORM_PLAIN, **BIASED, "position_embedding": "learned"},
        readers.read_gpt_bigcode, GPT_ALIASES,
    ),
    "olmo": Family(OLMO, {**RMS_GATED, "norm": "layernorm", "norm_weight": False, "norm_bias": False}, readers.read_biased),
    "olmo3": Family({**OLMO, "sliding_window": 4096, "layer_types": None}, RMS_GATED, readers.read_olmo3),
    "glm": Family(_GLM, RMS_GATED, readers.read_qkv_biased),
    "glm4": Family(_GLM, {**RMS_GATED, "norms_per_layer": 4}, readers.read_qkv_biased),
    "smollm3": Family(
        {
            **LLAMA, "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
            "num_key_value_heads": 4, "max_position_embeddings": 32768, "tie_word_embeddings": True,
            "use_sliding_window": False, "sliding_window": None, "layer_types": None, "no_rope_layers": None,
            "no_rope_layer_interval": 4,
        },
        RMS_GATED, readers.read_smollm3,
    ),
    "exaone4": Family(
        {
            **LLAMA, "vocab_size": 102400, "intermediate_size": 16384, "num_key_value_heads": 32,
            "sliding_window": 4096, "sliding_window_pattern": 4, "layer_types": None,
        },
        RMS_GATED, readers.read_exaone4,
    ),
    "ernie4_5": Family(_ERNIE, RMS_GATED, readers.read_ernie),
    "hunyuan_v1_dense": Family({**LLAMA, "vocab_size": 290943}, RMS_GATED, readers.read_hunyuan),
    "arcee": Family(
        {**LLAMA, "hidden_size": 2560, "intermediate_size": 18432, "max_position_embeddings": 4096},
        {**RMS_GATED, "gated_mlp": False}, readers.read_llama,
    ),
    "seed_oss": Family(
        {
            **LLAMA, "vocab_size": 155136, "intermediate_size": 27648, "num_hidden_layers": 64,
            "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 524288,
            "attention_bias": True, "attention_out_bias": False,
        },
        RMS_GATED, readers.read_seed_oss,
    ),
}  # fmt: skip
