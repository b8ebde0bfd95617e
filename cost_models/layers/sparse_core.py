"""Sparse attention of DeepSeek-V3.2 between its projections, by kernel: index scores, choice of keys, attention, the indexer's loss. [F-38]

Each kernel is a roofline: its operations over the peak of the matrix units, or its bytes over the memory bandwidth that streaming kernels
reach, whichever takes longer. Counted in Megatron Core 0.19's kernels (transformer/experimental_attention_variant/ops), whose attention has
one latent key for all heads: wider heads than plain latent attention, over few keys. How close they come to the roofline was not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.constants import ELEMENTWISE_KERNEL_S
from cost_models.job import Job
from cost_models.specs.documents import Lengths
from cost_models.specs.model import Indexer, Model
from cost_models.strategies.strategy import Floats, Strategies

_FP32, _INDEX = 4.0, 4.0
LEAST_HEADS = 16.0
"""The kernels compute a tile of so many heads where a rank has fewer (ops/tilelang_dsa.py, fused_sparse_mla_absorbed)."""
QUERY_BLOCK = 8192.0
"""Queries whose index scores are held at once (dsa.py, fused_indexer_block_size)."""


@dataclass(frozen=True, slots=True)
class _Kernel:
    """Operations and bytes of one kernel for one token, shape (N,)."""

    flops: Floats
    moved_bytes: Floats


def chosen_keys(indexer: Indexer, spans: Lengths) -> float:
    """Keys that the kernels compute for a query: top_k, or as many as its sequence or document has, on average over tokens. [F-38]"""
    # Early queries have fewer keys before them, but the kernels pass over as many places for every query.
    return sum(share * min(float(indexer.top_k), length) for length, share in spans)


def sparse_core_s(job: Job, rows: Strategies) -> tuple[Floats, Floats]:
    """Seconds of one layer's forward and backward between its projections, per micro-batch, shape (N,) each. [F-38]"""
    model, training = job.model, job.training
    mla, indexer = model.mla, model.indexer
    assert mla is not None
    assert indexer is not None
    w, spans = training.compute_bytes, training.attended_spans
    chosen = chosen_keys(indexer, spans)
    before = sum(share * length / 2.0 for length, share in spans)  # keys before a query, on average
    key, value = float(mla.kv_lora_rank + mla.qk_rope_head_dim), float(mla.kv_lora_rank)
    heads = np.maximum(model.num_attention_heads / rows.tp, LEAST_HEADS)
    index = 2.0 * indexer.num_heads * indexer.head_dim
    one = np.ones(len(rows))
    # A query's keys lie anywhere, and each query reads its own.
    gathered, gathered_index = chosen * key * w, chosen * indexer.head_dim * w
    forward = (
        _Kernel(one * index * before, one * before * _FP32),
        _Kernel(0.0 * one, one * (2.0 * before * _FP32 + chosen * _INDEX)),  # two passes over the scores
        _Kernel(2.0 * heads * chosen * (key + value), gathered + heads * (key + value) * w),
        # The loss: attention's distribution over the chosen keys, and the indexer's.
        _Kernel(2.0 * heads * chosen * key, gathered + one * chosen * _FP32),
        _Kernel(one * index * chosen, one * (gathered_index + 2.0 * chosen * _FP32)),
    )
    # Scores and their gradients are made again; gradients of the shared key are added up in fp32.
    backward = (
        _Kernel(2.0 * heads * chosen * (3.0 * key + 2.0 * value), gathered + chosen * key * _FP32 + 2.0 * heads * (key + value) * w),
        _Kernel(one * 3.0 * index * chosen, one * (gathered_index + chosen * indexer.head_dim * _FP32)),
    )  # fmt: skip
    peak = job.calibration.peak_flops_per_s("bf16") * job.calibration.sustained_clock
    bandwidth = job.calibration.memory_bytes_per_s_effective.value
    tokens = rows.rank_tokens(training.seq_length)

    def seconds(kernels: tuple[_Kernel, ...]) -> Floats:
        each = [np.maximum(kernel.flops / peak, kernel.moved_bytes / bandwidth) for kernel in kernels]
        return np.asarray(tokens * sum(each) + len(kernels) * ELEMENTWISE_KERNEL_S.value)

    return seconds(forward), seconds(backward)


def sparse_bytes(model: Model, element_bytes: float, tokens: Floats, *, tp: Floats, sp: Floats) -> Floats:
    """Bytes that sparse attention saves beside its queries, shape of `tokens`. [M-57]

    Outputs of the heads before the values' matrix; on every tensor-parallel rank whole: the shared key, the chosen places with the loss's
    gradient, the indexer's query, key and weights, and the gathered inputs of its projections.

    Args:
        model: sizes.
        element_bytes: of an activation.
        tokens: of a micro-batch on a context-parallel rank.
        tp: tensor-parallel ranks.
        sp: ranks over which sequence parallelism splits the tokens: tp, or 1 without it.
    """
    mla, indexer = model.mla, model.indexer
    assert mla is not None
    assert indexer is not None
    outputs = element_bytes * model.num_attention_heads * mla.kv_lora_rank / tp
    shared = element_bytes * (mla.kv_lora_rank + mla.qk_rope_head_dim)
    places = indexer.top_k * (_INDEX + _FP32 + 1.0)
    scored = element_bytes * ((indexer.num_heads + 1.0) * indexer.head_dim + indexer.num_heads)
    # Without sequence parallelism the block's input and the latent are saved by the other projections already.
    inputs = np.where(sp > 1, element_bytes * (model.hidden_size + (mla.q_lora_rank or 0)), 0.0)
    return np.asarray(tokens * (outputs + shared + places + scored + inputs))


def index_score_bytes(model: Model, tokens: Floats, context: float) -> Floats:
    """Bytes of the index scores of one block of queries, which live for as long as keys are chosen, shape of `tokens`. [M-57]

    Args:
        model: sizes.
        tokens: of a micro-batch on a context-parallel rank.
        context: tokens of a whole sequence.
    """
    if model.indexer is None:
        return np.zeros_like(tokens)
    return np.asarray(np.minimum(tokens, QUERY_BLOCK) * context * _FP32)
