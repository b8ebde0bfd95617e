"""Seconds of a layer's memory-bound kernels: norms, rotary, activation, residual, dropout and casts, from bytes and kernels. [F-3]

Time is bytes over achieved memory bandwidth plus the ramp of each kernel. What scales with the hidden size is replicated over
tensor-parallel ranks unless sequence parallelism splits it; what scales with heads or the MLP width is always split. Whether
a part is one fused kernel or a chain of operators depends on the software build and its date, part by part (`Build`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from cost_models.constants import ELEMENTWISE_KERNEL_S, PERMUTED_ROW_RATIO, ROUTING_KERNELS, ROUTING_LOGIT_S, Constant
from cost_models.job import Job
from cost_models.layers.casts import cast_traffic, casts_shards
from cost_models.layers.copies import Copies, gradient_sums, layout_copies
from cost_models.layers.hf_modules import (
    CHAIN_SHARE,
    QUICK_GELU_BYTES,
    RMSNORM_BYTES,
    RMSNORM_KERNELS,
    ROTARY_BYTES,
    ROTARY_FP32_BYTES,
    runs_chains,
    runs_liger,
)
from cost_models.specs.model import LayerKind
from cost_models.strategies.fields import MoeDispatcher
from cost_models.strategies.strategy import Bools, Floats, Strategies

FUSED_ROUTING_BYTES: Final = Constant(
    91.0, "B", 60.0, 200.0,
    "per token and expert, both passes, of Transformer Engine's fused kernels: scores with top-k 13 and 13, scores of the loss 13 and 12, "
    "loss 4, their gradients' sum 12, positions of the rows 24 (common/fused_router, common/permutation; counted, not measured)",
)  # fmt: skip
FUSED_ROUTING_KERNELS: Final[Mapping[str, float]] = {"forward": 7.0, "backward": 4.0}
"""Two kinds of scores, loss and the count of tokens, three for positions; their gradients."""
RMSNORM_COMPOSITE_BYTES = 30.0
"""Bytes per element of an RMSNorm written as separate operators with a detour through fp32: cast, square, mean,
rsqrt, two products, cast back. [F-3]"""
ROTARY_COMPOSITE_BYTES = 20.0
"""Bytes per rotated element of a rotary embedding made of separate operators: cast to fp32, complex product, cast
back. [F-3]"""
HALVES_SHARE: Final = Constant(
    0.42, "1", 0.34, 0.5,
    "rate of the chain of operators that turns halves of (batch, sequence, heads, width) over that of streaming kernels: 50 bytes an element "
    "in 28 to 29 ps (traced steps of Llama 1.3B, 3B and 8B on an H200, PyTorch 2.11, nothing beside them; data/measured_h200, "
    "autocast_kernels)",
)  # fmt: skip
_NOTHING: Final = (0.0, 0.0, 0.0)
"""Bytes of both passes and kernels of what a layer does not have."""
TORCH_FUSED_RMSNORM_SINCE = "2025-10"
"""torch.nn.RMSNorm is a single kernel from PyTorch 2.9 on."""
MEGATRON_FUSED_SWIGLU_SINCE = "2023-10"
"""Megatron Core's fusions/fused_bias_swiglu.py appeared then; before, SwiGLU was a chunk, a SiLU and a product."""
MEGATRON_FUSED_RMSNORM_SINCE = "2024-01"
"""From then on, RMSNorm of Transformer Engine or Apex is the default of a Megatron build."""
MEGATRON_FUSED_ROTARY_SINCE = "2024-01"
"""From then on, the fused rotary embedding is the default, and --no-rope-fusion names the exception."""


@dataclass(frozen=True, slots=True)
class Build:
    """Which parts of a layer are single kernels."""

    norm: bool
    activation: bool
    rotary: bool
    residual: bool
    """Bias, dropout and residual addition are one kernel."""
    hf_chain: bool = False
    """Norms and rotary embedding are the operators of transformers' modules."""


@dataclass(frozen=True, slots=True)
class PassTraffic:
    """Traffic of one layer's pass: bytes per token, and the number of kernels."""

    hidden_bytes: float
    """Bytes that only sequence parallelism divides by tp."""
    sharded_bytes: float
    """Bytes that tp always divides."""
    routed_bytes: float
    """Bytes per routed copy of a token, in mixture layers, beside those of its row."""
    kernels: float
    gathered_bytes: float = 0.0
    """Bytes of rows that are whole on every rank, which nothing divides."""


def build_of(job: Job) -> Build:
    """Which kernels this job's software fuses."""
    t, date = job.training, job.training.software_date
    if t.compile or (job.framework.fused_elementwise and t.transformer_impl == "transformer-engine"):
        return Build(norm=True, activation=True, rotary=True, residual=True)
    # LayerNorm is a single kernel in PyTorch and Apex; RMSNorm, SwiGLU and rotary became one later, part by part.
    if runs_liger(job):
        return Build(norm=True, activation=True, rotary=True, residual=False)
    layernorm, gated = job.model.norm == "layernorm", job.model.gated_mlp
    if job.framework.fused_elementwise and not job.has_core_modules:
        return Build(
            norm=layernorm or date >= MEGATRON_FUSED_RMSNORM_SINCE,
            activation=not gated or date >= MEGATRON_FUSED_SWIGLU_SINCE,
            rotary=date >= MEGATRON_FUSED_ROTARY_SINCE,
            residual=True,
        )
    if runs_chains(job):
        return Build(norm=layernorm, activation=False, rotary=False, residual=False, hf_chain=True)
    return Build(norm=layernorm or date >= TORCH_FUSED_RMSNORM_SINCE, activation=False, rotary=False, residual=False)


def layer_traffic(job: Job, kind: LayerKind) -> tuple[PassTraffic, PassTraffic]:
    """Forward and backward traffic of one layer of this kind. [F-3]"""
    model, e, build = job.model, job.training.compute_bytes, build_of(job)
    h, norms = float(model.hidden_size), float(model.norms_of(kind))
    adds = 1.0 if model.parallel_block else float(kind.num_blocks)
    norm, norm_back, norm_kernels = _norm(build, e)
    add, add_back, add_kernels = _residual(build, e, dropout=job.training.dropout > 0)
    act, act_back, act_kernels = _activation(build, e, gated=model.gated_mlp)
    if model.quick_gelu and build.hf_chain:
        act, act_back, act_kernels = *QUICK_GELU_BYTES, 3.0
    act_kernels = act_kernels if kind.has_mlp else 0.0
    if model.layer_scales:  # a product; backward, two products and the sum over rows
        add, add_back, add_kernels = add + 2 * e, add_back + 6 * e, add_kernels + 2.0
    rotary, rotary_back, rotary_kernels = _rotary(job, build, e) if kind.attends else _NOTHING
    qk = (model.q_size + model.kv_size) if model.qk_norm != "none" and kind.attends else 0.0
    qk_kernels = 2 * norm_kernels if qk else 0.0
    gated, gated_back, gate_kernels = _attention_gate(job, e) if kind.attends else _NOTHING
    width, expert_width = _mlp_widths(job, kind)
    cast, cast_back = cast_traffic(job, kind, width=width, expert_width=expert_width)
    shards = casts_shards(job)
    experts = 1.0 if expert_width else 0.0
    routing = (
        FUSED_ROUTING_KERNELS if job.fuses_routing else {name: count.value for name, count in ROUTING_KERNELS.items()}
    )
    copies, copies_back = layout_copies(job, e) if kind.attends else (Copies(0.0, 0.0), Copies(0.0, 0.0))
    sums = gradient_sums(job, kind, e)
    biases = sum(
        (model.qkv_bias * kind.attends, model.attention_out_bias * kind.attends, 2 * model.mlp_bias * kind.has_mlp)
    )
    forward = PassTraffic(
        hidden_bytes=h * (norms * norm + adds * add) + shards * cast.hidden,
        sharded_bytes=rotary + qk * norm + width * act + gated + copies.moved_bytes + cast.sharded,
        routed_bytes=experts * (expert_width * act + cast.routed),
        kernels=norms * norm_kernels + adds * add_kernels + act_kernels + rotary_kernels + qk_kernels
        + gate_kernels + routing["forward"] * experts + copies.kernels,
        gathered_bytes=(1 - shards) * cast.hidden,
    )  # fmt: skip
    backward = PassTraffic(
        hidden_bytes=h * (norms * norm_back + adds * add_back) + shards * cast_back.hidden,
        sharded_bytes=rotary_back + qk * (norm_back if build.hf_chain else 2 * norm) + width * act_back + gated_back + _bias_bytes(job, kind, e)
        + cast_back.sharded
        + copies_back.moved_bytes,
        gathered_bytes=h * sums.moved_bytes + (1 - shards) * cast_back.hidden,
        routed_bytes=experts * (expert_width * act_back + cast_back.routed),
        kernels=2 * norms * norm_kernels + adds * add_kernels + 1.5 * act_kernels + rotary_kernels + 2 * qk_kernels
        + 1.5 * gate_kernels + biases + routing["backward"] * experts + copies_back.kernels + sums.kernels,
    )  # fmt: skip
    return forward, backward


def _norm(build: Build, e: float) -> tuple[float, float, float]:
    """Bytes per element of one norm in forward and in backward, and the number of kernels in forward.

    The backward of a fused norm reads input and gradient twice, for its own and for its weight's gradient. In a fused build it
    also carries the residual's gradient.
    """
    if not build.norm and build.hf_chain:
        return *RMSNORM_BYTES, RMSNORM_KERNELS[0]
    if not build.norm:
        return RMSNORM_COMPOSITE_BYTES, RMSNORM_COMPOSITE_BYTES, 6.0
    return 2 * e, (8 * e if build.residual else 5 * e), 1.0


def _residual(build: Build, e: float, *, dropout: bool) -> tuple[float, float, float]:
    """Bytes per element of one residual addition in forward and in backward, and the number of kernels in forward."""
    mask = 1.0 if dropout else 0.0
    if build.residual:
        return 3 * e + mask, 2 * e + mask, 1.0
    return 3 * e + dropout * (2 * e + mask), 3 * e + dropout * (2 * e + mask), 1.0 + mask


def _activation(build: Build, e: float, *, gated: bool) -> tuple[float, float, float]:
    """Bytes per activated element in forward and in backward, and the number of kernels in forward."""
    if build.activation:
        return (3 * e, 5 * e, 1.0) if gated else (2 * e, 3 * e, 1.0)
    return (5 * e, 9 * e, 2.0) if gated else (2 * e, 3 * e, 1.0)


def _attention_gate(job: Job, e: float) -> tuple[float, float, float]:
    """Bytes per token in forward and in backward, and kernels in forward, of a sigmoid and a product as wide as the
    queries.
    """
    if not job.model.attention_gate:
        return 0.0, 0.0, 0.0
    product, product_back, kernels = _activation(build_of(job), e, gated=True)
    return job.model.q_size * product, job.model.q_size * product_back, kernels


def _rotary(job: Job, build: Build, e: float) -> tuple[float, float, float]:
    """Bytes per token in forward and in backward, and the number of kernels in one pass, of the rotary embedding."""
    model = job.model
    if model.position_embedding != "rope":
        return 0.0, 0.0, 0.0
    elements = float(model.q_size + model.kv_size)
    # Latent attention rotates a part of each query head and one key part that all heads share, priced as a chain of
    # operators.
    if model.mla is not None:
        elements = float((model.num_attention_heads + 1) * model.mla.qk_rope_head_dim)
        build = replace(build, rotary=False, hf_chain=False)
    if build.rotary:
        return elements * 2 * e, elements * 2 * e, 2.0
    if turns_halves(job) and not build.hf_chain and model.mla is None:
        elements /= HALVES_SHARE.value
        build = replace(build, hf_chain=True)
    if build.hf_chain and model.packed_rows:
        return elements * ROTARY_FP32_BYTES[0], elements * ROTARY_FP32_BYTES[1], 12.0
    forward, backward = ROTARY_BYTES if build.hf_chain else (ROTARY_COMPOSITE_BYTES, ROTARY_COMPOSITE_BYTES)
    return elements * forward * e / 2, elements * backward * e / 2, 8.0


def turns_halves(job: Job) -> bool:
    """Whether rotary positions turn the halves of a head, eagerly a chain of operators, where nothing fuses them. [F-3]"""
    if job.model.rotary_interleaved is not None:
        return not job.model.rotary_interleaved
    return job.framework.turns_halves_with_qk_norm and job.model.qk_norm != "none"


def _bias_bytes(job: Job, kind: LayerKind, e: float) -> float:
    """Bytes per token to reduce bias gradients over the tokens: the gradient of each biased output is read once."""
    model = job.model
    widths = model.qkv_bias * (model.q_size + 2 * model.kv_size) + model.attention_out_bias * model.hidden_size
    widths *= kind.attends
    widths += (
        kind.has_mlp * model.mlp_bias * (model.intermediate_size * (2 if model.gated_mlp else 1) + model.hidden_size)
    )
    return e * widths


def _mlp_widths(job: Job, kind: LayerKind) -> tuple[float, float]:
    """Width of the dense (or shared-expert) activation, and that of one routed copy; 0 in a dense layer."""
    moe = job.model.moe
    if not kind.has_mlp:
        return 0.0, 0.0
    if not kind.is_moe or moe is None:
        return float(job.model.intermediate_size), 0.0
    return float(moe.num_shared_experts * moe.shared_expert_intermediate_size), float(moe.expert_intermediate_size)


_OPERATOR_PASSES: Final = (
    (1.0, 1.0, 1.0, 1.0, 1.5, 2.5),
    (1.0, 1.5, 1.0, 1.5, 1.0, 3.5),
)
"""Passes over a routed row, one operator after the other (torchtitan/models/moe, 0.2). Forward: rows by token, a row of zeros behind
them, rows by slot of the padded groups, back from the slots, zeros and back to the tokens, and the weighted sum, whose cast to fp32 reads
2 bytes and writes the 4 that the product reads. Backward: rows by slot, the row of zeros cut off (zeros and a copy), rows by token, the
two selections (zeros and a sum over slots; a sum over tokens), and the weighted sum: 4 bytes of its gradient written, of its input read,
and of the gradient read again and cast to 2."""


def row_passes(job: Job, kind: LayerKind, rows: Strategies) -> tuple[Floats, Floats]:
    """Times that a routed copy's row, as wide as the hidden size, is read and written in forward and backward, shape (U,). [F-3]

    Rows are taken apart before the exchange and put together behind it. Without the flex dispatcher, ranks sort what arrives by
    their own experts and sort it back, unless they hold one; the flex dispatcher's sends need the sorting alone. Weighting
    outside of the experts' activation is a pass of its own. Where PyTorch's operators do this, every one of them is a pass, or a share
    of one where it only reads or writes, and ranks that hold all experts do the same.
    """
    moe = job.model.moe
    if not kind.is_moe or moe is None:
        return np.zeros(len(rows)), np.zeros(len(rows))
    shared = rows.ep * rows.etp > 1
    sorts = shared & (rows.moe_dispatcher != MoeDispatcher.FLEX) & (moe.num_experts > rows.ep)
    moves = np.where(sorts, 4.0, 2.0)
    if operators_move_rows(job):
        return np.full(len(rows), sum(_OPERATOR_PASSES[0])), np.full(len(rows), sum(_OPERATOR_PASSES[1]))
    weighs = 0.0 if job.framework.weighs_inside_experts else 1.0
    return moves + weighs, moves + 2.0 * weighs


def operators_move_rows(job: Job) -> bool:
    """Whether PyTorch's operators move and weigh experts' rows, one after the other. [F-3] [M-5]"""
    return job.framework.operators_move_rows and not job.training.compile


def elementwise_s(
    job: Job,
    kind: LayerKind,
    *,
    tokens: Floats,
    tp: Floats,
    sequence_parallel: Bools,
    passes: tuple[Floats, Floats] | None = None,
) -> tuple[Floats, Floats]:
    """Seconds of one layer's memory-bound kernels in forward and in backward, shape of `tokens`. [F-3]

    Args:
        job: model, software and prices.
        kind: kind of layer.
        tokens: tokens of one micro-batch on a context-parallel rank.
        tp: tensor-parallel ranks.
        sequence_parallel: whether they split what is as wide as the hidden size.
        passes: `row_passes` of these strategies; None where the layer has no experts.
    """
    moe = job.model.moe
    row_bytes = PERMUTED_ROW_RATIO.value * 2 * job.training.compute_bytes * job.model.hidden_size
    routed = (job.routed_copies if kind.is_moe else 0.0) / tp  # the sequence is split before dispatch
    # Without sequence parallelism every tensor-parallel rank repeats the hidden-wide work on all tokens.
    hidden_split = np.where(sequence_parallel, tp, 1.0)
    rate = job.calibration.memory_bytes_per_s_effective.value * (CHAIN_SHARE.value if runs_chains(job) else 1.0)

    logits = tokens / tp * moe.num_experts if kind.is_moe and moe is not None else np.zeros_like(tokens)
    logit_s = FUSED_ROUTING_BYTES.value / rate if job.fuses_routing else ROUTING_LOGIT_S.value

    def seconds(traffic: PassTraffic, routing: float, moved: Floats | float) -> Floats:
        per_token = traffic.hidden_bytes / hidden_split + traffic.sharded_bytes / tp
        per_token = per_token + routed * (traffic.routed_bytes + moved * row_bytes)
        per_token = per_token + traffic.gathered_bytes
        kernels = traffic.kernels * ELEMENTWISE_KERNEL_S.value
        return np.asarray(tokens * per_token / rate + kernels + routing * logits * logit_s)

    forward, backward = layer_traffic(job, kind)
    moved, moved_back = passes or (0.0, 0.0)
    return seconds(forward, 2 / 3, moved), seconds(backward, 1 / 3, moved_back)
