"""The runs: which model, in which form, with which optimizer and which sequences; tiny ones of each for a try without a GPU.

A model is the fields of its Hugging Face configuration. A form is how the step is run, by `child.py`:

    bf16      everything in bf16 on one GPU, as a fine-tuning script that loads its model in bf16
    autocast  fp32 parameters under torch.autocast on one GPU
    fsdp2     fp32 parameters, fully_shard on every layer and the root, bf16 compute, fp32 reduction, on all GPUs
"""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]

_QWEN3: Case = {
    "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 6144, "vocab_size": 151936, "max_position_embeddings": 40960,
}  # fmt: skip
_LLAMA: Case = {
    "model_type": "llama", "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072, "tie_word_embeddings": True,
}  # fmt: skip
_PATTERN = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
"""Nemotron-H 8B's layers: Mamba-2, MLP and attention."""
_KINDS = {"M": "mamba", "-": "mlp", "*": "attention"}

MODELS: dict[str, Case] = {
    "qwen3-1.7b": {"model_type": "qwen3", "tie_word_embeddings": True, **_QWEN3},
    "llama-3.2-3b": {
        **_LLAMA, "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24, "intermediate_size": 8192,
    },
    "qwen3-vl-2b": {
        "model_type": "qwen3_vl",
        "tie_word_embeddings": True,
        "text_config": {"model_type": "qwen3_vl_text", "rope_parameters": {
            "rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True,
        }, **_QWEN3},
        "vision_config": {
            "model_type": "qwen3_vl", "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "out_hidden_size": 2048,
            "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "deepstack_visual_indexes": [5, 11, 17],
        },
    },
    "lfm2-1.2b": {
        "model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 12288, "vocab_size": 65536, "conv_L_cache": 3, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "tie_word_embeddings": True,
    },
    "qwen3.5-2b": {
        "model_type": "qwen3_5_text", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 256, "intermediate_size": 6144, "vocab_size": 151936, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "tie_word_embeddings": True,
    },
    "qwen3-next-16-layers-64-experts": {
        "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 256, "vocab_size": 151936, "num_experts": 64, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    },
    "granite-4.0-h-micro": {
        "model_type": "granitemoehybrid", "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 8192, "shared_intermediate_size": 8192, "num_local_experts": 0, "num_experts_per_tok": 0, "vocab_size": 100352,
        "mamba_n_heads": 64, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_expand": 2, "mamba_chunk_size": 256,
        "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)], "tie_word_embeddings": True,
    },
    "nemotron-h-8b": {
        "model_type": "nemotron_h", "hidden_size": 4096, "layers_block_type": [_KINDS[mark] for mark in _PATTERN], "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 21504, "vocab_size": 131072, "mamba_num_heads": 128,
        "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "chunk_size": 128, "tie_word_embeddings": False,
    },
}  # fmt: skip

_CONVOLVED = ("lfm2", "qwen3_5_text", "qwen3_next", "granitemoehybrid", "nemotron_h")
"""Families whose layers run causal-conv1d's kernel where it is installed."""
_IMAGES: Case = {"images_per_sequence": 4, "image_patches": [48, 48]}
"""4 images of 48 x 48 patches, each 576 tokens after merging 2 x 2: 2,304 of a sequence's 4,096 tokens."""
_MIXED = [8192, 4096, 2048, 1024, 512, 256, 128, 64, 32, 32]


def _case(name: str, model: str, form: str, optimizer: str = "adamw", **other: Any) -> Case:
    return {
        "name": name, "model": model, "form": form, "optimizer": optimizer, "seq_length": 4096, "batch": 2, "gpus": 0 if form == "fsdp2" else 1,
        "attention": "sdpa", "recompute": False, "limit_s": 75, "compiled": MODELS[model]["model_type"] in _CONVOLVED, **other,
    }  # fmt: skip


def _docs(name: str, documents: list[int]) -> Case:
    """A sequence of 16,384 tokens with these documents, by PyTorch's attention of variable lengths."""
    long: Case = {"attention": "varlen", "seq_length": 16384, "batch": 1}
    return _case(name, "qwen3-1.7b", "bf16", documents=documents, **long)


FIRST: tuple[Case, ...] = (
    _case("adamw bf16", "qwen3-1.7b", "bf16"),
    _case("muon bf16", "qwen3-1.7b", "bf16", "muon"),
    _case("adam-8bit bf16, bitsandbytes", "qwen3-1.7b", "bf16", "adam-8bit-bitsandbytes"),
    _case("adam-8bit bf16, torchao", "qwen3-1.7b", "bf16", "adam-8bit-torchao", limit_s=110),
    _case("vision tower frozen", "qwen3-vl-2b", "bf16", towers="frozen", **_IMAGES),
    _case("vision tower trained", "qwen3-vl-2b", "bf16", towers="trained", **_IMAGES),
    _docs("one document of 16,384 tokens", [16384]),
    _docs("16 documents of 1,024 tokens", [1024] * 16),
    _docs("documents of mixed lengths", _MIXED),
    _case("muon autocast", "qwen3-1.7b", "autocast", "muon"),
)
HYBRIDS: tuple[Case, ...] = (
    _case("gated delta net", "qwen3.5-2b", "bf16", limit_s=220),
    _case("Mamba-2", "granite-4.0-h-micro", "bf16", limit_s=150),
    _case("short convolution", "lfm2-1.2b", "bf16"),
    _case("Mamba-2, 8B, recomputed", "nemotron-h-8b", "bf16", recompute=True, limit_s=220),
    _case("gated delta net with experts", "qwen3-next-16-layers-64-experts", "bf16", limit_s=220),
)
ALL_GPUS: tuple[Case, ...] = (
    _case("adamw fsdp2", "qwen3-1.7b", "fsdp2"),
    _case("muon fsdp2, sharded matrices", "qwen3-1.7b", "fsdp2", "muon"),
    _case("adam-8bit fsdp2, torchao", "qwen3-1.7b", "fsdp2", "adam-8bit-torchao", limit_s=110),
    _case("vision tower frozen fsdp2", "qwen3-vl-2b", "fsdp2", towers="frozen", **_IMAGES),
    _case("vision tower trained fsdp2", "qwen3-vl-2b", "fsdp2", towers="trained", **_IMAGES),
    _case("gated delta net fsdp2", "qwen3.5-2b", "fsdp2", limit_s=110),
    _case("muon fsdp2, whole matrices on ranks", "qwen3-1.7b", "fsdp2", "muon-packed"),
    _case("Mamba-2 fsdp2", "granite-4.0-h-micro", "fsdp2", limit_s=110),
)
LAST: tuple[Case, ...] = (
    _case("adam-8bit bf16, bitsandbytes, 3B", "llama-3.2-3b", "bf16", "adam-8bit-bitsandbytes"),
    _case("adam-8bit bf16, torchao, 3B", "llama-3.2-3b", "bf16", "adam-8bit-torchao", limit_s=110),
    _case("adafactor bf16, 3B", "llama-3.2-3b", "bf16", "adafactor"),
    _case("adamw bf16, 3B", "llama-3.2-3b", "bf16"),
    _case("muon bf16, 3B", "llama-3.2-3b", "bf16", "muon"),
    _case("adam-4bit bf16, torchao", "qwen3-1.7b", "bf16", "adam-4bit-torchao", limit_s=110),
    _case("adafactor bf16", "qwen3-1.7b", "bf16", "adafactor"),
    _case("lion bf16, bitsandbytes", "qwen3-1.7b", "bf16", "lion"),
    _case("sgd-momentum bf16", "qwen3-1.7b", "bf16", "sgd-momentum"),
)
CASES: tuple[Case, ...] = (*FIRST, *HYBRIDS, *ALL_GPUS, *LAST)
"""In the order in which they are run. What has `compiled` reads a kernel that is compiled while the first ones run, and waits for it."""

_SMALL: Case = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 256,
    "num_hidden_layers": 4, "shared_intermediate_size": 128, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "num_experts": 4, "num_experts_per_tok": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 32, "mamba_num_heads": 8,
    "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16, "chunk_size": 32, "depth": 2, "num_heads": 4, "out_hidden_size": 64,
    "num_position_embeddings": 64,
}  # fmt: skip


def tiny(case: Case) -> Case:
    """The same run with a model of thousands of parameters and short sequences."""
    small: Case = {**case, "hf_config": _shrunk(MODELS[case["model"]]), "seq_length": 128, "dry": True}
    if "documents" in case:
        shrink = case["seq_length"] // 128
        kept = [length // shrink for length in case["documents"] if length >= shrink]
        small["documents"] = [*kept, 128 - sum(kept)] if sum(kept) < 128 else kept
    if "image_patches" in case:
        small |= {"images_per_sequence": 2, "image_patches": [8, 8]}
    return small


def _shrunk(fields: Case) -> Case:
    small = {key: _SMALL.get(key, value) for key, value in fields.items()}
    for key in ("text_config", "vision_config"):
        if key in fields:
            small[key] = _shrunk(fields[key])
    if "rope_parameters" in small:
        small["rope_parameters"] = {**fields["rope_parameters"], "mrope_section": [4, 2, 2]}
    if "layer_types" in small:
        small["layer_types"] = ["mamba", "mamba", "mamba", "attention"]
    if "layers_block_type" in small:
        small["layers_block_type"] = [_KINDS[mark] for mark in "M-M*"]
    if "full_attn_idxs" in small:
        small["full_attn_idxs"] = [2]
    if "deepstack_visual_indexes" in small:
        small |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 64}
    if "vision_config" in small:
        small |= {
            "image_token_id": 250,
            "video_token_id": 251,
            "vision_start_token_id": 252,
            "vision_end_token_id": 253,
        }
    return small
