"""What a recurrent mixer does between its projections: convolution, chunked recurrence and gated norm, by kernel. [F-20]

Each kernel is a roofline: its operations over the peak of the unit that it runs on, or its bytes over the memory bandwidth that
streaming kernels reach, whichever takes longer. How close the kernels come to it was not measured, so their time is nominal. Counted in
mamba_ssm 2 (ops/triton/ssd_combined.py, csrc/selective_scan), flash-linear-attention 0.4 (ops/gated_delta_rule/chunk.py) and
causal-conv1d. Symbols: d all heads' width, N state, g·N all groups', Q chunk, H heads, w bytes of an element.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cost_models.constants import ELEMENTWISE_KERNEL_S
from cost_models.job import Job
from cost_models.layers.attention_core import LayerAttention
from cost_models.specs.recurrent import Recurrent
from cost_models.strategies.strategy import Strategies
from cost_models.terms import Tier

_FP32 = 4.0


@dataclass(frozen=True, slots=True)
class Kernel:
    """Operations and bytes of one kernel for one token of the whole model."""

    flops: float
    moved_bytes: float
    vector: bool = False
    """Whether its operations run outside of the matrix units."""


@dataclass(frozen=True, slots=True)
class CoreKernels:
    """The kernels of one mixer."""

    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]


@lru_cache(maxsize=256)
def core_kernels(r: Recurrent, element_bytes: float, *, fused_norm: bool) -> CoreKernels:
    """The kernels of a mixer, per token. [F-20]

    Args:
        r: the mixer.
        element_bytes: bytes of an activation.
        fused_norm: whether gate and norm are one kernel behind the recurrence (transformers), or the recurrence applies the gate and a
            norm follows (Megatron).
    """
    build = {
        "mamba": _selective_scan, "mamba2": _state_space_duality, "gated-delta-net": _delta_rule, "short-conv": _gated_convolution,
    }[r.kind]  # fmt: skip
    return build(r, element_bytes, fused_norm)


def _state_space_duality(r: Recurrent, w: float, fused_norm: bool) -> CoreKernels:  # noqa: FBT001 - one of four builders
    d, group, q, heads, c = r.inner_size, r.group_size, r.chunk_size, r.num_heads, r.conv_channels
    # A state is as wide as all channels times N, but there is one for each chunk only: shared out over the chunk's tokens.
    states = d * r.state_size / q  # elements of the chunks' states, for each token
    scores = r.num_groups * q * _FP32
    convolution = Kernel(2.0 * r.conv_kernel * c, 2 * c * w, vector=True)
    steps = Kernel(0.0, heads * (w + 2 * _FP32), vector=True)
    chunk_state = Kernel(2.0 * d * r.state_size, (d + group) * w + states * _FP32)
    passing = Kernel(0.0, states * (_FP32 + w), vector=True)
    products = Kernel(2.0 * q * group, 2 * group * w + scores)
    # The causal half of a chunk's square, and what the state before the chunk adds.
    scan = Kernel(q * d + 2.0 * d * r.state_size, (2 * d + group) * w + scores + states * w)
    norms = (
        3.0 if fused_norm else 4.0
    )  # output, gate and result; where the recurrence gates, it writes its output twice
    gate = Kernel(0.0, norms * d * w, vector=True)
    forward = (convolution, steps, chunk_state, passing, products, scan, gate)
    backward = (
        convolution, steps, chunk_state, passing, products,  # made again
        Kernel(0.0, 6.0 * d * w, vector=True),  # norm and gate
        Kernel(2.0 * d * r.state_size, (d + group) * w + states * _FP32),  # gradients of the states
        Kernel(0.0, states * (2 * w + 2 * _FP32), vector=True),
        Kernel(q * d + 2.0 * d * r.state_size, (3 * d + group) * w + scores + states * _FP32),  # of x and the steps
        Kernel(2.0 * d * r.state_size, d * w + states * _FP32 + group * _FP32),  # of B
        Kernel(2.0 * d * r.state_size, d * w + states * w + group * _FP32),  # of C
        Kernel(q * d, 2 * d * w + scores),  # of the products of B and C
        Kernel(2.0 * q * group, scores + 2 * group * w),
        Kernel(2.0 * q * group, scores + 2 * group * w),
        Kernel(q * d, 2 * d * w + scores),  # of the decays
        Kernel(4.0 * r.conv_kernel * c, 3 * c * w, vector=True),
    )  # fmt: skip
    return CoreKernels(forward, backward)


def _delta_rule(r: Recurrent, w: float, fused_norm: bool) -> CoreKernels:  # noqa: FBT001
    v, q, heads, c = float(r.inner_size), r.chunk_size, r.num_heads, r.conv_channels
    k = float(heads * r.state_size)  # keys and queries, repeated for the value heads that share them
    # One product of a token's key or query with the state of every head, in multiply-adds.
    products = float(heads * r.state_size * r.head_dim)
    states, square = products / q * w, heads * q * w
    convolution = Kernel(2.0 * r.conv_kernel * c, 2 * c * w, vector=True)
    layout = Kernel(0.0, 2 * c * w, vector=True)
    lengths = Kernel(0.0, (2 * r.group_size + 2 * k) * w, vector=True)
    gates = Kernel(0.0, heads * (2 * w + 3 * _FP32), vector=True)
    gram = Kernel(q * k, k * w + heads * q * _FP32)
    # The inverse of a chunk's unit triangle, two thirds of Q^3 operations for Q tokens.
    solve = Kernel(2.0 / 3.0 * heads * q * q, heads * q * _FP32 + square)
    representation = Kernel(q * (k + v), 2 * (k + v) * w + square)
    carry = Kernel(4.0 * products, (2 * k + 2 * v) * w + states)
    output = Kernel(2.0 * products + q * (k + v), (2 * k + 2 * v) * w + states)
    norm = (
        _norm_by_operators(v, w)
        if fused_norm
        else ((Kernel(0.0, 5 * v * w, vector=True),), (Kernel(0.0, 8 * v * w, vector=True),))
    )
    forward = (layout, convolution, lengths, gates, gram, solve, representation, carry, output, *norm[0])
    backward = (
        *norm[1],
        representation, carry,  # made again
        Kernel(q * (k + v), (2 * k + 2 * v) * w),  # of the new values inside a chunk
        Kernel(6.0 * products, (3 * k + 3 * v) * w + states),  # of the states
        Kernel(6.0 * products + q * (3 * k + v), (6 * k + 3 * v) * w + 2 * states),  # of query, key and decay
        Kernel(2.0 * q * (k + v), (3 * k + 3 * v) * w + square),  # of the inverse and what it multiplies
        gates, Kernel(0.0, 3 * (r.group_size + k) * w, vector=True),
        Kernel(4.0 * r.conv_kernel * c, 3 * c * w, vector=True), layout,
    )  # fmt: skip
    return CoreKernels(forward, backward)


def _norm_by_operators(d: float, w: float) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """The kernels of transformers' norm with a gate, forward and backward, for one token of a delta net's d channels.

    Both are operators of PyTorch in fp32 (modeling_qwen3_next.py, Qwen3NextRMSNormGated): casts of output and gate, square, mean, product
    with the inverse root, cast, weight, activation, product and cast; and what autograd makes of each.
    """
    forward = (w + 4, 8, 4, 8, 4 + w, 2 * w, w + 4, 8, 8 + w, 4 + w)
    backward = (w + 4, 12, 4 + w, 8 + w, 12, 4 + w, 2 * w, 4 * w, w + 4, 8, 16, 8, 8, 12, 4 + w)
    each = [tuple(Kernel(0.0, moved * d, vector=True) for moved in some) for some in (forward, backward)]
    return each[0], each[1]


def _selective_scan(r: Recurrent, w: float, _fused_norm: bool) -> CoreKernels:  # noqa: FBT001
    d, narrow, scan = float(r.inner_size), r.dt_rank + 2.0 * r.state_size, 9.0 * r.inner_size * r.state_size
    convolution = Kernel(2.0 * r.conv_kernel * d, 2 * d * w, vector=True)
    norms = Kernel(0.0, 2 * narrow * w * r.inner_norms, vector=True)
    # It reads x, step sizes and gate, and writes the output before and behind the gate.
    forward = (convolution, norms, Kernel(scan, (5 * d + 2 * r.state_size) * w, vector=True))
    backward = (
        Kernel(2.5 * scan, (8 * d + 6 * r.state_size) * w, vector=True),  # it runs the recurrence again
        norms, Kernel(4.0 * r.conv_kernel * d, 3 * d * w, vector=True), Kernel(0.0, 3 * d * w, vector=True),
    )  # fmt: skip
    return CoreKernels(forward, backward)


def _gated_convolution(r: Recurrent, w: float, _fused_norm: bool) -> CoreKernels:  # noqa: FBT001
    d = float(r.inner_size)
    product, copy = Kernel(0.0, 3 * d * w, vector=True), Kernel(0.0, 2 * d * w, vector=True)
    forward = (product, Kernel(2.0 * r.conv_kernel * d, 2 * d * w, vector=True), product, copy)
    products = Kernel(0.0, 5 * d * w, vector=True)
    joined = Kernel(0.0, 6 * d * w, vector=True)  # the gradients of three parts become one tensor
    return CoreKernels(
        forward, (copy, products, Kernel(4.0 * r.conv_kernel * d, 3 * d * w, vector=True), products, joined)
    )


def layer_core_s(job: Job, rows: Strategies) -> LayerAttention:
    """Seconds of a mixer's kernels in one layer, per micro-batch, shape (U,) each. [F-20]

    Tensor parallelism splits heads, and context parallelism trades a share of the sequence for a share of the heads, so that every rank
    has its part of both.
    """
    r = job.model.recurrent
    assert r is not None
    kernels = core_kernels(r, job.training.compute_bytes, fused_norm=job.has_hf_modules)
    matrix = job.calibration.peak_flops_per_s("fp16" if job.training.precision == "fp16" else "bf16")
    vector = job.cluster.gpu.peak_flops_per_s.get("fp32", matrix / 16.0)
    bandwidth = job.calibration.memory_bytes_per_s_effective.value
    shares = rows.rank_tokens(job.training.seq_length) / rows.tp

    def seconds(some: tuple[Kernel, ...]) -> float:
        return sum(max(each.flops / (vector if each.vector else matrix), each.moved_bytes / bandwidth) for each in some)

    forward, backward = (
        np.asarray(shares * seconds(some) + len(some) * ELEMENTWISE_KERNEL_S.value)
        for some in (kernels.forward, kernels.backward)
    )
    return LayerAttention(forward, backward, np.full(len(rows), np.int8(Tier.NOMINAL)))


def saved_elements(r: Recurrent, *, fused_norm: bool) -> float:
    """Elements of one token that a mixer saves for its backward, beside what it keeps in fp32. [M-50]

    Mamba-2's kernel saves what the projection made and its output, and makes everything between again; transformers leaves norm and
    output projection to it. A delta net's kernel saves its inputs, the others each operator's.
    """
    d, projected = r.inner_size, r.projected_size
    if r.kind == "mamba2":
        return projected + d * (1.0 if fused_norm and r.gated_norm != "none" else 3.0)
    if r.kind == "gated-delta-net":
        repeated = 2.0 * r.num_heads * r.state_size
        # In front of the convolution, behind it and the triangle of each chunk. Then Megatron's gate, output and what follows both;
        # transformers keeps of gate and output their fp32 copies alone, and behind them the norm before and after its weight and the result.
        return r.conv_channels + repeated + d + r.num_heads * (2.0 + r.chunk_size) + (3.0 if fused_norm else 4.0) * d
    if r.kind == "mamba":
        narrow = r.dt_rank + 2 * r.state_size
        return projected + 4.0 * d + narrow * (1.0 + r.inner_norms)
    return projected + 3.0 * d


def saved_fp32_elements(r: Recurrent, *, fused_norm: bool) -> float:
    """Elements of one token that a mixer saves in fp32: step sizes, decays and statistics of norms. [M-50]"""
    if r.kind == "gated-delta-net":
        # transformers' norm with a gate is made of PyTorch's operators (modeling_qwen3_next.py, Qwen3NextRMSNormGated): it keeps the
        # fp32 copies of output and gate, and the gate behind its activation.
        return 3.0 * r.num_heads + 2.0 * r.num_groups + (3.0 * r.inner_size if fused_norm else 0.0)
    if r.kind == "mamba":  # the state at the end of each run of 2,048 tokens, and its decay
        return 2.0 * r.inner_size * r.state_size / r.chunk_size
    return (0.0 if fused_norm else 1.0) * r.num_groups


def gradient_bytes(r: Recurrent, element_bytes: float) -> float:
    """Bytes of one token that a mixer's backward holds at once: the projections' gradients, and chunks' states in fp32. [M-50]"""
    whole = element_bytes * (r.projected_size + 2.0 * r.inner_size)
    if r.kind == "mamba2":
        states = r.inner_size * r.state_size / r.chunk_size
        return whole + element_bytes * r.conv_channels + states * (2 * _FP32 + element_bytes)
    if r.kind == "gated-delta-net":
        products = r.num_heads * r.state_size * r.head_dim
        return whole + element_bytes * (4.0 * r.num_heads * r.state_size + 2.0 * products / r.chunk_size)
    return whole
