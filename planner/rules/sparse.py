"""Rules on sparse attention with an indexer (DeepSeek-V3.2): who trains it with kernels that have a cost model, and what these take."""

from __future__ import annotations

import numpy as np

from cost_models.frameworks import frameworks_where
from cost_models.job import Job
from cost_models.layers.sparse_core import LEAST_HEADS
from cost_models.strategies.fields import CpComm
from cost_models.strategies.strategy import Bools, Strategies
from planner.rules.rule import Rule, always

_DSA = "megatron/core/transformer/experimental_attention_variant"
_KERNELS_SINCE = "0.19"
_HF_MODULES = frameworks_where(lambda facts: facts.model_impl == "transformers")
_TRAINS = frameworks_where(lambda facts: facts.choices.sparse_attention)
_OTHERS = frameworks_where(lambda facts: facts.model_impl != "transformers" and not facts.choices.sparse_attention)
_WIDTHS = (512, 64)
"""Widths of the latent and of the rotated part that the kernels are written for: DeepSeek-V3.2's and GLM-5's."""
_TILE = 64
"""Keys of one tile."""


def _chooses(job: Job) -> bool:
    return job.model.indexer is not None


def _other_widths(job: Job) -> bool:
    mla, indexer = job.model.mla, job.model.indexer
    return mla is not None and indexer is not None and (mla.kv_lora_rank, mla.qk_rope_head_dim) != _WIDTHS


def _partial_tiles(job: Job) -> bool:
    return job.model.indexer is not None and job.model.indexer.top_k % _TILE != 0


def _other_precision(job: Job) -> bool:
    return _chooses(job) and job.training.precision in ("fp16", "fp32")


def _unfused(job: Job) -> bool:
    return _chooses(job) and job.training.attention == "math"


def _has_biases(job: Job) -> bool:
    model = job.model
    return _chooses(job) and (model.qkv_bias or model.attention_out_bias or model.mlp_bias)


def _odd_heads(job: Job, s: Strategies) -> Bools:
    heads = np.maximum(job.model.num_attention_heads / s.tp, LEAST_HEADS)
    return np.asarray(np.log2(heads) % 1.0 != 0.0)


def _not_gathered(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.cp > 1) & (s.cp_comm != CpComm.ALLGATHER))


def _not_split(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.tp > 1) & ~s.sequence_parallel)


_HINT = "Set training.framework to 'megatron' and framework_version to 0.19 or later, whose kernels train it."
SPARSE_RULES: tuple[Rule, ...] = (
    Rule(
        "layers-unsupported-by-framework", always,
        "{framework} runs transformers' modules, whose indexer chooses keys without being trained and whose attention masks the scores of all pairs",
        _HINT, "transformers/models/deepseek_v32/modeling_deepseek_v32.py (torch.no_grad of the indexer; index_mask)",
        frameworks=_HF_MODULES, when=_chooses,
    ),
    Rule(
        "layers-unsupported-by-framework", always, "{framework} {version} has no sparse attention with an indexer", _HINT,
        "torchtitan/models/deepseek_v3; nanotron/models; Megatron-DeepSpeed megatron/model", frameworks=_OTHERS, when=_chooses,
    ),
    # Its PyTorch operators run, and hold fp32 scores of all heads and pairs: 8 GiB a layer at 4,096 tokens.
    Rule(
        "layers-unsupported-by-framework", always,
        "megatron {version} writes the scores of all heads and pairs of tokens in fp32 for sparse attention, which is not modelled",
        "Use framework_version 0.19 or later, whose kernels (--dsa-kernel-backend) hold the chosen keys alone.", f"{_DSA}/dsa.py before core 0.19",
        frameworks=_TRAINS, until=_KERNELS_SINCE, when=_chooses,
    ),
    Rule(
        "layers-unsupported-by-framework", always,
        "megatron's kernels of sparse attention take a kv_lora_rank of 512 with a qk_rope_head_dim of 64 alone",
        "Use these widths, or leave mla.indexer out.", f"{_DSA}/ops/tilelang_dsa.py (fused_sparse_mla_absorbed)",
        frameworks=_TRAINS, when=_other_widths,
    ),
    Rule(
        "layers-unsupported-by-framework", always, "megatron's kernels of sparse attention take keys in tiles of 64, which top_k is no multiple of",
        "Use a top_k that 64 divides, such as 2048.", f"{_DSA}/ops/tilelang_dsa.py (fused_sparse_mla_absorbed)",
        frameworks=_TRAINS, when=_partial_tiles,
    ),
    Rule(
        "precision-unsupported-by-framework", always, "megatron's kernels of sparse attention compute in bf16, not in {precision}",
        "Set precision to 'bf16' or 'fp8'.", f"{_DSA}/ops/tilelang_dsa.py (_all_bfloat16)", frameworks=_TRAINS, when=_other_precision,
    ),
    Rule(
        "attention-unsupported-by-framework", always, "sparse attention has no unfused form that is modelled",
        "Set attention to 'flash', or leave it out.", f"{_DSA}/dsa.py (_unfused_absorbed_dsa_fn)", frameworks=_TRAINS, when=_unfused,
    ),
    Rule(
        "layers-unsupported-by-framework", always, "megatron's sparse attention has no linear layers with a bias",
        "Set attention_bias and mlp_bias to false.", f"{_DSA}/absorbed_mla.py; transformer_config.py (add_bias_linear)",
        frameworks=_TRAINS, when=_has_biases,
    ),
    Rule(
        "tensor-parallel-unsupported", _not_split, "megatron's sparse attention is split over tp {tp} with sequence parallelism alone",
        "Set sequence_parallel to true.", f"{_DSA}/absorbed_mla.py", frameworks=_TRAINS, when=_chooses,
        smallest_change="sequence_parallel false -> true",
    ),
    Rule(
        "heads-not-divisible", _odd_heads,
        "tp {tp} leaves a rank a number of the {heads} heads that is no power of two, which the kernels of sparse attention need",
        "Use a tp that leaves 16, 32, 64 or 128 heads, or fewer than 16.", f"{_DSA}/ops/tilelang_dsa.py (_is_supported_sparse_mla_head_count)",
        frameworks=_TRAINS, when=_chooses,
    ),
    Rule(
        "context-parallel-comm-unsupported", _not_gathered, "megatron's sparse attention gathers keys over its cp {cp} ranks, and knows no other exchange",
        "Set cp_comm to 'allgather'.", "megatron/core/transformer/transformer_config.py (DSAttention context parallelism)",
        frameworks=_TRAINS, when=_chooses, smallest_change="cp_comm -> allgather",
    ),
)  # fmt: skip
"""The modules come first: without them no degree matters."""
