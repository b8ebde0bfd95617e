"""Bytes that a layer's memory-bound kernels move: norms, rotary, activation, residual, dropout, casts.

Time is bytes over achieved memory bandwidth. What scales with the hidden size is replicated over tensor-parallel ranks
unless sequence parallelism splits it; what scales with heads or the MLP width is always split. `fused` builds (Megatron,
compiled) read and write each tensor once per fused kernel, eager ones once per operator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.job import Job
from cost_models.specs.model import LayerKind
from cost_models.strategy import Floats

RMSNORM_COMPOSITE_BYTES = 30.0
"""Bytes per element of an RMSNorm written as separate operators with an fp32 round trip (PyTorch before 2.9): cast, square,
mean, rsqrt, two products, cast back. [F-3]"""
ROTARY_EAGER_BYTES = 20.0
"""Bytes per rotated element of an eager rotary embedding: cast to fp32, complex product, cast back. [F-3]"""
FUSED_NORM_TORCH_DATE = "2025-10"
"""PyTorch 2.9 made torch.nn.RMSNorm a fused kernel."""
FP8_CAST_BYTES = 3.0
"""Bytes per activation element of a cast to fp8: read two, write one."""


@dataclass(frozen=True, slots=True)
class ElementBytes:
    """Bytes per token of one layer, forward and backward."""

    hidden_forward: float
    """Divided by tp only with sequence parallelism."""
    hidden_backward: float
    sharded_forward: float
    """Divided by tp."""
    sharded_backward: float
    routed_forward: float = 0.0
    """Per routed copy of a token (MoE), divided by etp."""
    routed_backward: float = 0.0


def is_fused(job: Job) -> bool:
    """Whether norm, activation and bias-dropout-add run as fused kernels."""
    return job.training.compile or job.runtime.fused_elementwise


def element_bytes(job: Job, kind: LayerKind) -> ElementBytes:
    """Bytes of one layer of this kind. [F-3]"""
    return _fused(job, kind) if is_fused(job) else _eager(job, kind)


def _mlp_width(job: Job, kind: LayerKind) -> tuple[float, float]:
    """Width of the dense (or shared-expert) activation, and of one routed copy's."""
    model = job.model
    if not kind.is_moe or model.moe is None:
        return float(model.intermediate_size), 0.0
    shared = model.moe.num_shared_experts * model.moe.shared_expert_intermediate_size
    return float(shared), float(model.moe.expert_intermediate_size)


def _rotary_elements(job: Job) -> float:
    model = job.model
    if model.position_embedding != "rope":
        return 0.0
    if model.mla is not None:
        return float((model.num_attention_heads + 1) * model.mla.qk_rope_head_dim)
    return float(model.q_size + model.kv_size)


def _fused(job: Job, kind: LayerKind) -> ElementBytes:
    model, e = job.model, job.training.compute_bytes
    h, norms, adds = model.hidden_size, model.norms_per_layer, 1 if model.parallel_block else 2
    mask = 1.0 if job.training.dropout > 0 else 0.0
    width, expert_width = _mlp_width(job, kind)
    read_write = (3.0 if model.gated_mlp else 2.0) * e
    backward = (5.0 if model.gated_mlp else 3.0) * e
    rotary = _rotary_elements(job) * 2 * e
    cast = FP8_CAST_BYTES if job.training.precision in ("fp8", "nvfp4") else 0.0
    qk_norm = (model.q_size + model.kv_size) * 2 * e if model.qk_norm != "none" else 0.0
    return ElementBytes(
        hidden_forward=h * (norms * 2 * e + adds * (3 * e + mask) + 2 * cast),
        hidden_backward=h * (norms * 8 * e + adds * (2 * e + mask) + 2 * cast),
        sharded_forward=rotary + qk_norm + width * (read_write + cast) + model.q_size * cast,
        sharded_backward=rotary + 2 * qk_norm + width * (backward + cast) + model.q_size * cast,
        routed_forward=expert_width * (read_write + cast) + (4 * e + 2 * e) * h,
        routed_backward=expert_width * (backward + cast) + (4 * e + 4 * e) * h,
    )


def _eager(job: Job, kind: LayerKind) -> ElementBytes:
    model, e = job.model, job.training.compute_bytes
    h, norms, adds = model.hidden_size, model.norms_per_layer, 1 if model.parallel_block else 2
    has_fused_norm = model.norm == "layernorm" or job.training.software_date >= FUSED_NORM_TORCH_DATE
    norm_forward, norm_backward = (2 * e, 4 * e) if has_fused_norm else (RMSNORM_COMPOSITE_BYTES, RMSNORM_COMPOSITE_BYTES)
    width, expert_width = _mlp_width(job, kind)
    activation, activation_backward = (5 * e, 9 * e) if model.gated_mlp else (2 * e, 3 * e)
    rotary = _rotary_elements(job) * ROTARY_EAGER_BYTES * e / 2
    dropout = 2 * (2 * e + 1) if job.training.dropout > 0 else 0.0
    cast = FP8_CAST_BYTES if job.training.precision in ("fp8", "nvfp4") else 0.0
    qk_norm = (model.q_size + model.kv_size) * norm_forward if model.qk_norm != "none" else 0.0
    return ElementBytes(
        hidden_forward=h * (norms * norm_forward + adds * 3 * e + dropout + 2 * cast),
        hidden_backward=h * (norms * norm_backward + adds * 3 * e + dropout + 2 * cast),
        sharded_forward=rotary + qk_norm + width * (activation + cast),
        sharded_backward=rotary + 2 * qk_norm + width * (activation_backward + cast),
        routed_forward=expert_width * (activation + cast) + 6 * e * h,
        routed_backward=expert_width * (activation_backward + cast) + 8 * e * h,
    )


def elementwise_s(
    job: Job, kind: LayerKind, *, tokens: Floats, tp: Floats, sequence_parallel: np.ndarray
) -> tuple[Floats, Floats]:
    """Seconds of one layer's memory-bound kernels, forward and backward, shape of `tokens`.

    `tokens` are those of one micro-batch on a context-parallel rank.
    """
    per = element_bytes(job, kind)
    hidden_split = np.where(sequence_parallel, tp, 1.0)
    top_k = float(job.model.moe.top_k) if kind.is_moe and job.model.moe is not None else 0.0
    routed = top_k / tp  # routed copies per token of this rank: the sequence is split over tp before dispatch
    rate = job.calibration.memory_bytes_per_s_effective.value
    forward = per.hidden_forward / hidden_split + per.sharded_forward / tp + routed * per.routed_forward
    backward = per.hidden_backward / hidden_split + per.sharded_backward / tp + routed * per.routed_backward
    return tokens * forward / rate, tokens * backward / rate
