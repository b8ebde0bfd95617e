"""The families of hybrids: class defaults, what the architecture fixes, and the reader.

Defaults are those of the config classes of transformers 5.
"""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.inputs.hf import hybrid_readers as readers
from cost_models.inputs.hf.family import LLAMA, RMS_GATED, Family, without

_MAMBA2 = {
    "mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_proj_bias": False,
}  # fmt: skip
_DELTA = {
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "layer_types": None, "full_attention_interval": 4,
}  # fmt: skip
_QWEN = {
    **_DELTA, "max_position_embeddings": 32768, "tie_word_embeddings": False, "attention_bias": False, "head_dim": 256,
    "num_attention_heads": 16,
}  # fmt: skip
_QWEN_MOE = {
    **_QWEN, "hidden_size": 2048, "num_key_value_heads": 2, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}  # fmt: skip
_LFM2 = {
    "vocab_size": 65536, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 128_000, "tie_word_embeddings": True, "conv_bias": False, "conv_L_cache": 3,
    "layer_types": None,
}  # fmt: skip
_BLOCK_TYPES = {"layer_types": ("layers_block_type",)}
_NO_POSITIONS = {**RMS_GATED, "position_embedding": "none"}

HYBRIDS: Mapping[str, Family] = {
    "nemotron_h": Family(
        {
            "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 21504, "num_hidden_layers": 4,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096,
            "tie_word_embeddings": False, "mlp_bias": False, "layers_block_type": None, "hybrid_override_pattern": None,
            "ssm_state_size": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "conv_kernel": 4,
            "use_conv_bias": True, "chunk_size": 128, "use_bias": False, "n_routed_experts": 8, "moe_intermediate_size": 7688,
            "moe_shared_expert_intermediate_size": 7688, "moe_latent_size": None, "num_experts_per_tok": 2, "n_group": 1,
            "topk_group": 1,
        },
        {**_NO_POSITIONS, "gated_mlp": False}, readers.read_nemotron_h,
        {
            "layers_block_type": ("layer_types",), "n_routed_experts": ("num_local_experts",), "n_groups": ("mamba_n_groups",),
            "conv_kernel": ("mamba_d_conv",), "use_conv_bias": ("mamba_conv_bias",), "chunk_size": ("mamba_chunk_size",),
        },
    ),
    "bamba": Family(
        {
            **LLAMA, **_MAMBA2, "vocab_size": 128000, "intermediate_size": 14336, "num_key_value_heads": 8,
            "max_position_embeddings": 262144, "attn_layer_indices": None,
        },
        RMS_GATED, readers.read_bamba,
    ),
    "granitemoehybrid": Family(
        {
            **LLAMA, **_MAMBA2, "num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 1024,
            "position_embedding_type": None, "layer_types": None,
        },
        RMS_GATED, readers.read_granitemoehybrid, {"num_local_experts": ("num_experts",), **_BLOCK_TYPES},
    ),
    "falcon_h1": Family(
        {
            **LLAMA, **_MAMBA2, "vocab_size": 128000, "intermediate_size": 14336, "num_key_value_heads": 8,
            "max_position_embeddings": 8192, "mamba_d_ssm": 1024, "mamba_rms_norm": False, "projectors_bias": False,
        },
        RMS_GATED, readers.read_falcon_h1,
    ),
    "jamba": Family(
        {
            **without(LLAMA, "attention_bias", "mlp_bias"), "vocab_size": 65536, "intermediate_size": 14336,
            "num_key_value_heads": 8, "max_position_embeddings": 262144, "num_experts": 16, "num_experts_per_tok": 2,
            "expert_layer_period": 2, "expert_layer_offset": 1, "attn_layer_period": 8, "attn_layer_offset": 4,
            "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": "auto", "mamba_conv_bias": True,
            "mamba_proj_bias": False,
        },
        _NO_POSITIONS, readers.read_jamba, {"num_experts": ("num_local_experts",)},
    ),
    "qwen3_next": Family(
        {
            **_QWEN_MOE, "vocab_size": 151936, "intermediate_size": 5632, "num_hidden_layers": 48, "num_experts": 512,
            "num_experts_per_tok": 10, "decoder_sparse_step": 1, "mlp_only_layers": None,
        },
        RMS_GATED, readers.read_qwen3_next, {"num_experts": ("num_local_experts",)},
    ),
    "qwen3_5_text": Family(
        {
            **_QWEN, "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
            "num_key_value_heads": 4,
        },
        RMS_GATED, readers.read_qwen3_5,
    ),
    "qwen3_5_moe_text": Family(
        # The class has no dense MLP and no width of one.
        {
            **_QWEN_MOE, "vocab_size": 248320, "num_hidden_layers": 40, "intermediate_size": 512, "num_experts": 256,
            "num_experts_per_tok": 8,
        },
        RMS_GATED, readers.read_qwen3_5_moe, {"num_experts": ("num_local_experts",)},
    ),
    "olmo_hybrid": Family(
        {
            **LLAMA, **without(_DELTA, "full_attention_interval"), "vocab_size": 100352, "hidden_size": 3840, "num_attention_heads": 30,
            "max_position_embeddings": 65536, "linear_num_key_heads": None, "linear_num_value_heads": None,
            "linear_key_head_dim": None, "linear_value_head_dim": None,
        },
        RMS_GATED, readers.read_olmo_hybrid,
    ),
    "lfm2": Family(
        {
            **_LFM2, "hidden_size": 2560, "intermediate_size": 12288, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": True, "full_attn_idxs": None,
        },
        RMS_GATED, readers.read_lfm2,
        {"intermediate_size": ("block_ff_dim",), "tie_word_embeddings": ("tie_embedding",)},
    ),
    "lfm2_moe": Family(
        {
            **_LFM2, "hidden_size": 2048, "intermediate_size": 7168, "moe_intermediate_size": 1792, "num_dense_layers": 2,
            "num_experts_per_tok": 4, "num_experts": 32,
        },
        RMS_GATED, readers.read_lfm2_moe, {"tie_word_embeddings": ("tie_embedding",)},
    ),
}  # fmt: skip
