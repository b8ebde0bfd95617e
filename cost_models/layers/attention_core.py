"""Seconds of one layer's attention core for the job at hand: which kernel, which heads, how long the sequences really are. [F-2]

Where the job states the mean length of documents packed into a sequence, attention spans one document only. fp32 has no
fused kernel and falls back to writing its scores. Prices per call are in `hardware.attention`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from cost_models.constants import RING_MERGE_BYTES
from cost_models.estimate import Estimate
from cost_models.frameworks import Setting, sdpa_kernel
from cost_models.hardware.attention import AttentionTime, flash_attention_s, math_attention_s
from cost_models.job import Job
from cost_models.layers.flops import attention_head_dims
from cost_models.layers.sparse_core import sparse_core_s
from cost_models.specs.model import LayerKind
from cost_models.specs.training import AttentionKernel
from cost_models.strategies.fields import CpComm
from cost_models.strategies.strategy import Bools, Codes, Floats, Strategies
from cost_models.terms import Tier


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """Seconds per micro-batch on one rank, shape (N,), and their tier."""

    forward_s: Floats
    backward_s: Floats
    tier: Codes

    def with_more(self, other: LayerAttention) -> LayerAttention:
        """The seconds of both, with the worse tier."""
        tier = np.maximum(self.tier, other.tier).astype(np.int8)
        return LayerAttention(self.forward_s + other.forward_s, self.backward_s + other.backward_s, tier)


def running_kernel(job: Job) -> AttentionKernel:
    """The kernel that runs: the one the job names, or the one that PyTorch's scaled_dot_product_attention picks. [F-2]"""
    training = job.training
    if training.attention_kernel != "sdpa":
        return training.attention_kernel
    setting = Setting(
        training.framework, training.software_date, job.cluster.gpu.generation, training.precision,
        version=training.framework_version,
    )  # fmt: skip
    return cast("AttentionKernel", sdpa_kernel(setting))


def layer_attention_s(job: Job, kind: LayerKind, rows: Strategies) -> LayerAttention:
    """Seconds of the attention core of one layer of this kind, per micro-batch. [F-2]"""
    if not kind.attends:
        nothing = np.zeros(len(rows))
        return LayerAttention(nothing, nothing, np.zeros(len(rows), np.int8))
    if job.model.indexer is not None:
        forward_s, backward_s = sparse_core_s(job, rows)
        return LayerAttention(forward_s, backward_s, np.full(len(rows), np.int8(Tier.NOMINAL)))
    ring = (rows.cp > 1) & ((rows.cp_comm == CpComm.P2P) | (rows.cp_comm == CpComm.A2A_P2P))
    parts = [_span_s(job, kind, rows, ring, length, share) for length, share in job.training.attended_spans]
    time = parts[0]
    for part in parts[1:]:  # documents of all lengths lie in one call
        time = AttentionTime(_added(time.forward, part.forward), _added(time.backward, part.backward))
    # One tier stands for both directions, because they are one term of the step.
    tier = np.maximum(time.forward.tier, time.backward.tier)
    merge = _merge_s(job, rows, ring) if ring.any() else np.float64(0.0)
    forward, backward = time.forward.seconds + merge, time.backward.seconds + merge
    shape = np.shape(rows.tp)
    return LayerAttention(
        np.broadcast_to(forward, shape),
        np.broadcast_to(backward, shape),
        np.broadcast_to(tier, shape).astype(np.int8),
    )


def _added(one: Estimate, other: Estimate) -> Estimate:
    """Seconds of both, as well known as the worse."""
    return Estimate(one.seconds + other.seconds, np.maximum(one.tier, other.tier))


def _span_s(job: Job, kind: LayerKind, rows: Strategies, ring: Bools, document: float, share: float) -> AttentionTime:
    """Seconds of the documents of one length, which hold this share of a micro-batch's tokens. [F-2] [F-31]"""
    training, model = job.training, job.model
    # Packed documents are priced as that many shorter sequences of the same tokens.
    sequences = share * rows.micro_batch_size * training.seq_length / document
    heads, steps = model.num_attention_heads / rows.tp, rows.cp
    if rows.uses("cp_a2a_size"):
        # Ranks that trade heads leave a ring of fewer ranks, each with fewer heads of more tokens.
        heads, steps = heads / rows.cp_a2a_size, rows.cp / rows.cp_a2a_size
    d_qk, d_v = attention_head_dims(model)
    if training.attention == "flash" and training.precision != "fp32":
        return flash_attention_s(
            sequences=sequences, heads=heads, q_length=document / steps, kv_length=document, d_qk=float(d_qk),
            d_v=float(d_v), window=kind.window, calibration=job.calibration, kernel=running_kernel(job),
            # Each of the ring's steps is a kernel over its share of the keys.
            pieces=np.where(ring, steps, 1.0), launched=share / training.attended_share, causal=model.causal,
        )  # fmt: skip
    precision = training.precision if training.precision in ("fp16", "fp32") else "bf16"
    return math_attention_s(
        sequences=sequences, heads=heads, q_length=document / steps, kv_length=document,
        # One product is as wide as the keys and the other as the values; with the mean of both their sum is
        # right.
        d=(d_qk + d_v) / 2.0, dropout=training.dropout, calibration=job.calibration, precision=precision,
        composed=not job.framework.fused_elementwise,
    )  # fmt: skip


def _merge_s(job: Job, rows: Strategies, ring: Bools) -> Floats:
    """Seconds in which partial outputs are merged in fp32 between the ring's steps, in each pass. [C-11]"""
    tokens = rows.rank_tokens(job.training.seq_length)
    outputs = tokens * job.model.num_attention_heads * attention_head_dims(job.model)[1] / rows.tp
    steps = np.where(ring, rows.cp / rows.cp_a2a_size - 1.0, 0.0)
    return np.asarray(steps * outputs * RING_MERGE_BYTES.value / job.calibration.memory_bytes_per_s_effective.value)
