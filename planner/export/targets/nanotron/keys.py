"""The keys of nanotron's YAML.

Read in huggingface/nanotron: config/parallelism_config.py (19f88fb), config/config.py (00708b8), config/models_config.py (025f314).
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.export.spellings import Spelling

SPELLINGS: tuple[Spelling, ...] = (
    Spelling("parallelism.tp", "tp"),
    Spelling("parallelism.pp", "pp"),
    Spelling("parallelism.context_parallel_size", "cp"),
    Spelling("parallelism.pp_engine", "schedule", {"1f1b": "1f1b", "gpipe": "afab"}, "pp_engine is 1f1b or afab", idle="1f1b"),
    Spelling("parallelism.tp_mode", "sequence_parallel", {True: "REDUCE_SCATTER", False: "ALL_REDUCE"}),
    Spelling("parallelism.recompute_layer", "recompute", {"none": False, "full": True},
             "recompute_layer is a switch for every layer"),
    Spelling("parallelism.tp_linear_async_communication", "overlap.tp_comm", {True: True, False: False}, idle=False),
    Spelling("tokens.sequence_length", "training.seq_length"),
    Spelling("tokens.micro_batch_size", "micro_batch_size"),
    Spelling("optimizer.zero_stage", "zero", {0: 0, 1: 1}, "optimizer.zero_stage is 0 or 1"),
    Spelling("optimizer.accumulate_grad_in_fp32", "training.grad_dtype", {"fp32": True, "bf16": False, "fp16": False},
             "gradients are kept in fp32 or in the parameter's type"),
    Spelling("model.dtype", "training.param_dtype", {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"},
             "model.dtype is a type of PyTorch"),
)  # fmt: skip
DP = "parallelism.dp"
EXPERTS = "parallelism.expert_parallel_size"
ACCUMULATION = "tokens.batch_accumulation_per_replica"
OPTIMIZER = "optimizer.optimizer_factory.name"
KERNEL = "model.model_config._attn_implementation"
VOCAB_MULTIPLE = "model.make_vocab_size_divisible_by"
KERNELS: Mapping[str, str] = {"fa2": "flash_attention_2", "sdpa": "sdpa", "flex": "flex_attention"}
"""nanotron/nn/attention.py (ALL_ATTENTION_FUNCTIONS)."""
RING = "ring_flash_triton"
"""The implementation that exchanges keys and values between context-parallel ranks, which the trainer asks for there."""

SHAPE: Mapping[str, str] = {
    "hidden_size": "hidden_size", "intermediate_size": "intermediate_size", "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_attention_heads", "num_key_value_heads": "num_key_value_heads", "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings", "tie_word_embeddings": "tie_word_embeddings",
}  # fmt: skip
"""Fields of a model by the keys of model.model_config (LlamaConfig, Qwen2Config)."""
QWEN = "is_qwen2_config"
"""The key by which model.model_config is a Qwen2Config, whose layers read attention_bias (models/qwen.py, on q, k and v) and moe_config."""
BIAS = "attention_bias"
