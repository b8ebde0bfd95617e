"""Seconds of the model's ends: token embedding on the first stage; final norm, output projection and loss on the last.

All are per micro-batch, forward and backward together, and never recomputed. The vocabulary is padded and split over tp.
Modules of multi-token prediction repeat the head and the loss; their embedding, norms and projection count with the head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.constants import (
    EAGER_LOSS_BYTES,
    EMBEDDING_PASSES,
    FINAL_NORM_PASSES,
    LOSS_BYTES_PER_LOGIT,
    LOSS_CHUNKS,
    LOSS_REDUCTIONS,
    TE_LOSS_LOGITS_PER_SM_S,
)
from cost_models.estimate import FREE
from cost_models.frameworks import memory_traits
from cost_models.hardware.groups import groups, world_key
from cost_models.job import Job
from cost_models.layers.costs import matmul_s
from cost_models.layers.hf_modules import liger_chunks
from cost_models.layers.mtp import mtp_s
from cost_models.layers.parameters import padded_vocab_size
from cost_models.layers.shapes import Gemm
from cost_models.specs.training import CrossEntropy, Training
from cost_models.strategies.kept_columns import Columns, kept_columns
from cost_models.strategies.strategy import Codes, Floats, Strategies
from cost_models.strategies.tensors import Distinct, combinations_of

ENDS_AXES = ("tp", "cp", "micro_batch_size", "sequence_parallel")
"""The axes that the ends' seconds depend on."""


@dataclass(frozen=True, eq=False)
class EndCosts:
    """Seconds per micro-batch over the distinct combinations of ENDS_AXES, shape (U,) each."""

    cases: Distinct
    embedding: Floats
    embedding_comm: Floats
    """Tensor-parallel collectives around the embedding."""
    head: Floats
    """Output projection and final norm, with multi-token prediction's projections, norms and embeddings."""
    loss: Floats
    """Cross entropy with its reductions over tensor-parallel ranks."""
    head_comm: Floats
    """Tensor-parallel collectives around the output projection."""
    head_tier: Codes
    mtp: Floats
    """The part of `head` that multi-token prediction's modules are, without their output projections."""
    mtp_comm: Floats
    """The part of `head_comm` that their collectives are."""


def end_costs(job: Job, strategies: Strategies, *, worlds: Floats | None = None) -> EndCosts:
    """The table of embedding, head and loss of a batch; `worlds` as in `layer_costs`. [F-5] [F-6] [F-7]"""
    cases = combinations_of(
        strategies, ENDS_AXES, also=world_key(strategies, job.cluster) if worlds is None else worlds
    )
    assert cases.also is not None
    return EndCosts(
        cases, *kept_columns(job, "ends", cases.rows, ENDS_AXES, lambda rows, _: _columns(job, rows), also=[cases.also])
    )


def running_loss(training: Training) -> CrossEntropy:
    """The loss that runs: where it is chunked, PyTorch's own on one piece of the sequence after the other, compiled or not. [F-7]"""
    if training.cross_entropy == "chunked":
        return "compiled" if training.compile else "unfused"
    return training.cross_entropy


def bytes_per_logit(job: Job, kind: CrossEntropy) -> float:
    """Bytes that a loss of this kind, as `running_loss` says it, moves per logit, forward and backward. [F-7]"""
    # Transformers' models compute the loss in their own forward, which is compiled with them.
    traced = job.has_hf_modules and job.training.compile
    eager = kind == "unfused" and memory_traits(job.training).loss_family != "vocab-parallel" and not traced
    return (EAGER_LOSS_BYTES if eager else LOSS_BYTES_PER_LOGIT[kind]).value


def _columns(job: Job, rows: Strategies) -> Columns:
    """The arrays of `EndCosts` for these combinations, in the order of its fields."""
    model, training = job.model, job.training
    e, h, rate = training.compute_bytes, float(model.hidden_size), job.calibration.memory_bytes_per_s_effective.value
    tokens = rows.rank_tokens(training.seq_length)
    vocab = padded_vocab_size(model, training.framework, rows.tp) / rows.tp
    # A classification head is whole on every rank.
    outputs = vocab if model.classes is None else np.full(len(rows), float(model.classes))
    heads = 1.0 + job.mtp_num_layers
    copies = np.full(len(rows), heads)
    # Frameworks keep the output projection out of their low-precision recipes.
    precision = "bf16" if training.precision in ("fp8", "nvfp4") else training.precision
    chunks: Floats | float = 1.0
    kind = running_loss(training)
    if training.cross_entropy == "chunked":  # head and loss run on one piece of the sequence after the other
        chunks = LOSS_CHUNKS.value
    accumulated: Floats | float = 0.0
    if kind == "linear" and job.has_hf_modules:
        chunks = liger_chunks(tokens=tokens, vocab=outputs, hidden=h)
        # Every piece's product is added to the weight's gradient, which reads it; what it writes is the product's own.
        accumulated = chunks * outputs * h * e / rate
    head = Gemm("lm_head", tokens / chunks, outputs, np.full(len(rows), h), np.ones(len(rows)), copies * chunks, "head")
    matmul = matmul_s(job, [head], precision=precision)
    placements = groups(rows, job.cluster)
    price, size = job.calibration.collective_s, tokens * h * e
    several, split = (rows.tp > 1).any(), rows.sequence_parallel.any()
    gather = price("all_gather", size, placement=placements.tp) if several and split else FREE
    scatter = price("reduce_scatter", size, placement=placements.tp) if several and split else FREE
    reduce = price("all_reduce", size, placement=placements.tp) if several else FREE
    small = price("all_reduce", tokens * 4.0, placement=placements.tp) if several else FREE
    norm = FINAL_NORM_PASSES.value * tokens * h * e / np.where(rows.sequence_parallel, rows.tp, 1.0) / rate
    logits = tokens * outputs * heads
    loss = bytes_per_logit(job, kind) * logits / rate
    # Transformer Engine's loss kernel is bound by memory on Hopper, and by the multiprocessors on Blackwell, where
    # each has more than twice the bandwidth; the slower bound counts.
    if training.cross_entropy == "te":
        loss = np.maximum(loss, logits / (TE_LOSS_LOGITS_PER_SM_S.value * job.cluster.gpu.num_sms))
    # The embedding's gradient is written as a whole table, however few of its rows the micro-batch touched.
    trains_embedding = job.training.adapter is None and "embedding" not in job.training.frozen
    gradient = vocab * h * 4.0 * trains_embedding
    # The head's input is gathered in forward and again for the weight gradient; its gradient is scattered. Without
    # sequence parallelism only the input's gradient is reduced.
    head_comm = np.where(rows.sequence_parallel, 2.0 * gather.seconds + scatter.seconds, reduce.seconds)
    modules = mtp_s(job, rows, tokens=tokens, vocab=vocab, placements=placements)
    return (
        (EMBEDDING_PASSES.value * tokens * h * e + gradient) / rate,
        np.where(rows.sequence_parallel, scatter.seconds + gather.seconds, reduce.seconds),
        matmul.forward_s + matmul.dgrad_s + matmul.wgrad_s + accumulated + norm + modules.work,
        loss + heads * LOSS_REDUCTIONS.value * small.seconds,
        heads * head_comm + modules.comm,
        matmul.tier,
        modules.work,
        modules.comm,
    )
