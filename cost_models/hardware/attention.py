"""Seconds of the attention core, forward and backward: fused (flash) kernels by generation, and the unfused chain. [F-2]

Flash kernels are bound by the multiply units. What they reach depends on the instruction that a kernel generation uses on a
GPU, so the kernel matters as much as the GPU. Projections are matrix products of their own and not part of this.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.estimate import Estimate
from cost_models.hardware.attention_kernels import Direction, batched_product_s, composed_s, flash_kernel_s
from cost_models.hardware.calibrated import Calibration
from cost_models.hardware.flash_constants import FP32_CHAIN_BYTES
from cost_models.specs.training import AttentionKernel
from cost_models.terms import Tier

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AttentionTime:
    """Seconds of one layer's attention core, with tiers."""

    forward: Estimate
    backward: Estimate


def flash_attention_s(
    *, sequences: Floats | float, heads: Floats | float, q_length: Floats | float, kv_length: Floats | float,
    d_qk: Floats | float, d_v: Floats | float, window: Floats | float | None, calibration: Calibration,
    kernel: AttentionKernel, pieces: Floats | float = 1.0, causal: bool = True,
    launched: float = 1.0,
) -> AttentionTime:  # fmt: skip
    """Seconds of fused causal attention on one GPU; arrays are broadcast together. [F-2]

        t = 2 sequences heads pairs (d_qk + d_v) / (peak carried(share / (1 + T / keys)))

    Share and T depend on kernel, generation, head width and direction. The backward does 2.5 times the operations. Where a profile
    called the kernel, its measured over modelled seconds at these keys and this width are a factor.

    Args:
        sequences: sequences in the micro-batch.
        heads: query heads on this rank; sharing key heads among them (GQA) does not change the operations.
        q_length: queries of a sequence on this rank, seq_length / cp.
        kv_length: keys of a sequence over all ranks, seq_length.
        d_qk: width of a query-key head, padded to a multiple of 32.
        d_v: width of a value head, padded likewise (narrower under MLA).
        window: tokens that a query can see; None is full causal attention.
        calibration: GPU, clock, and samples if it has any.
        kernel: which generation of kernel.
        pieces: kernels over equal runs of keys, one after another, as in a ring.
        causal: whether a query sees only the keys before it, as it does not in encoders of images.
        launched: share of the launches that these sequences are charged with, where others lie in the same call.
    """
    count, q, kv, qk, v, runs = np.broadcast_arrays(
        np.multiply(sequences, heads),
        *(np.asarray(x, dtype=np.float64) for x in (q_length, kv_length, d_qk, d_v, pieces)),
    )
    gpu = calibration.cluster.gpu
    peak, clocks = calibration.peak_flops_per_s("bf16"), (calibration.sustained_clock, calibration.waiting_clock)

    keys = kv / runs if window is None else np.minimum(window, kv / runs)

    def priced(direction: Direction) -> Estimate:
        seconds = flash_kernel_s(
            count, q, kv, qk, v, window=window, kernel=kernel, direction=direction, generation=gpu.generation, peak=peak,
            clocks=clocks, pieces=runs, causal=causal, launched=launched,
        )  # fmt: skip
        measured = calibration.attention_ratios.get((kernel, direction))
        if measured is None:
            return Estimate(seconds, np.full(seconds.shape, np.int8(Tier.NOMINAL)))
        return Estimate(
            seconds * measured.at(np.maximum(qk, v), keys), np.full(seconds.shape, np.int8(Tier.INTERPOLATED))
        )

    return AttentionTime(priced("forward"), priced("backward"))


def math_attention_s(
    *, sequences: Floats | float, heads: Floats | float, q_length: Floats | float, kv_length: Floats | float,
    d: Floats | float, dropout: float, calibration: Calibration, precision: str = "bf16", composed: bool = False,
) -> AttentionTime:  # fmt: skip
    """Seconds of attention that writes its scores: two batched products and a fused scale-mask-softmax-dropout. [F-2]

        forward  2 bmm + (4 + 5 dropout) S / bandwidth,  backward 4 bmm + (6 + 5 dropout) S / bandwidth

    S = sequences heads q kv scores of 2 bytes; 4-byte scores take twice the traffic. The causal mask saves nothing. Where a
    calibration measured the products, they take its ratio. Where PyTorch composes the chain of operators and a calibration
    measured that, all of it takes that ratio.

    Args:
        sequences: sequences in the micro-batch.
        heads: query heads on this rank.
        q_length: queries of a sequence on this rank.
        kv_length: keys of a sequence over all ranks.
        d: head width.
        dropout: probability; at 0 there is no mask to read or write.
        calibration: GPU, clock and bandwidth.
        precision: precision of the products.
        composed: PyTorch's chain of operators runs, not a fused softmax.
    """
    count, q, kv, width = np.broadcast_arrays(
        np.multiply(sequences, heads), *(np.asarray(x, dtype=np.float64) for x in (q_length, kv_length, d))
    )
    scores = count * q * kv
    element = 2.0 if precision == "fp32" else 1.0
    peak = calibration.peak_flops_per_s("bf16" if precision not in {"fp16", "fp32"} else precision)
    # Plain fp32 units stay below the power limit, at the data sheet's clock.
    clock = 1.0 if precision == "fp32" else calibration.sustained_clock
    product_s = batched_product_s(
        scores, width, kv, speed=peak * clock, element_bytes=2.0 * element,
        memory_bytes_per_s=calibration.cluster.gpu.memory_bytes_per_s,
    )  # fmt: skip
    products, tier = calibration.products, Tier.NOMINAL
    # A ratio of the whole chain contains that of its products, so only one of the two applies.
    measured = products.composed_ratio if composed and precision != "fp32" else {}
    if not measured and len(products.log2_widths_W) and precision != "fp32":
        product_s, tier = product_s * products.batched_ratio(width), Tier.EXTRAPOLATED
    stream = calibration.memory_bytes_per_s_effective.value / element

    def priced(direction: Direction) -> Estimate:
        chain = FP32_CHAIN_BYTES[direction].value / element if composed and precision == "fp32" else None
        seconds = composed_s(product_s, scores, direction=direction, stream=stream, dropout=dropout, passes=chain)
        known = Tier.INTERPOLATED if direction in measured else tier
        return Estimate(seconds * measured.get(direction, 1.0), np.full(scores.shape, np.int8(known)))

    return AttentionTime(priced("forward"), priced("backward"))
