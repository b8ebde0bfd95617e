"""Seconds of the kernels that attention is made of, from a GPU's peak and clocks: flash kernels and batched products. [F-2]

What the attention of a whole layer takes on calibrated hardware is in `attention`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cost_models.constants import (
    BMM_EFFICIENCY,
    BMM_HEAD_HALF,
    BMM_UNALIGNED_8,
    BMM_UNALIGNED_16,
    ELEMENTWISE_KERNEL_S,
    KERNEL_FLOOR_S,
)
from cost_models.hardware.efficiency import carried_shares
from cost_models.hardware.flash_constants import (
    FLASH_BACKWARD_FLOPS,
    FLASH_CURVES,
    FLASH_HEAD_MULTIPLE,
    FLASH_INSTRUCTION_SHARE,
    FLASH_NARROW_HEAD,
    FLASH_NARROW_HEAD_BLACKWELL,
    FLASH_REFERENCE_FLOPS_PER_S,
    FLASH_WIDE_HEAD,
    FP32_BATCHED,
)
from cost_models.specs.cluster import Generation
from cost_models.specs.training import AttentionKernel

Floats = NDArray[np.float64]
Direction = Literal["forward", "backward"]
_FORWARD_KERNELS, _BACKWARD_KERNELS = 1.0, 3.0
"""Kernels launched: one in forward; in backward the row sums, the gradients, and the cast of the query gradient."""


def visible_pairs(q_length: Floats, kv_length: Floats, window: Floats | float | None, *, causal: bool = True) -> Floats:
    """Query-key pairs that a causal mask leaves, for an evenly balanced share of q_length queries over kv_length keys.

    With w = min(window, kv_length), query i sees min(i, w) keys: kv w - w^2/2 pairs in all, of which this rank has q/kv. Without the
    mask, windows are blocks that do not overlap, and every query sees w keys.
    """
    reach = kv_length if window is None else np.minimum(window, kv_length)
    if not causal:
        return q_length * reach
    return q_length * (reach - reach * reach / (2.0 * kv_length))


def flash_kernel_s(
    count: Floats, q: Floats, kv: Floats, qk: Floats, v: Floats, *,
    window: Floats | float | None, kernel: AttentionKernel, direction: Direction, generation: Generation, peak: float,
    clocks: tuple[float, float], pieces: Floats | float = 1.0, causal: bool = True,
    launched: float = 1.0,
) -> Floats:  # fmt: skip
    """Seconds of one direction for `count` heads, on a GPU of this dense peak. [F-2]

        t = 2 count pairs (d_qk + d_v) (2.5 in backward) / (peak carried(share / (1 + T / keys)))

    Args:
        count: sequences times heads.
        q: queries of a sequence on this rank.
        kv: keys of a sequence.
        qk: width of a query-key head.
        v: width of a value head.
        window: tokens that a query can see; None is full causal attention.
        kernel: which generation of kernel.
        direction: forward or backward.
        generation: generation of the GPU.
        peak: dense bf16 operations per second.
        clocks: sustained clock, and that of what the multiply units wait for, over the data sheet's.
        pieces: kernels over equal runs of keys, one after another, as in a ring.
        causal: whether a query sees only the keys before it.
        launched: share of the launches that these sequences are charged with, where others lie in the same call.
    """
    backward = direction == "backward"
    keys = kv / pieces if window is None else np.minimum(window, kv / pieces)
    flops = 2.0 * count * visible_pairs(q, kv, window, causal=causal) * (_padded(qk) + _padded(v))
    flops = flops * (FLASH_BACKWARD_FLOPS.value if backward else 1.0)
    # Prologue and masked tiles are paid once per row of tiles, so they weigh more the fewer keys a row has.
    share, short = flash_curve(generation, kernel, np.maximum(qk, v), backward=backward)
    speed = peak * _sustained_share(share / (1.0 + short / keys), generation, kernel, peak=peak, clocks=clocks)
    launches = _BACKWARD_KERNELS if backward else _FORWARD_KERNELS
    return flops / speed + launches * KERNEL_FLOOR_S.value * launched


def flash_curve(
    generation: Generation, kernel: AttentionKernel, width: Floats, *, backward: bool
) -> tuple[Floats, Floats]:
    """Share of the measured GPU's dense peak over long sequences, and tokens by which short ones lose, shape of `width`. [F-2]

    Measured widths are interpolated in their logarithm and clamped at both ends. Where only one is known, narrower and wider heads
    take a common factor.
    """
    curves = FLASH_CURVES[generation, kernel][backward]
    known = sorted(curves)
    share, short = (
        np.interp(np.log2(width), np.log2(known), [curves[each][part].value for each in known]) for part in (0, 1)
    )
    if len(known) > 1:
        return share, short
    narrow = FLASH_NARROW_HEAD_BLACKWELL if generation == "blackwell" else FLASH_NARROW_HEAD
    factor = np.where(width <= 64, narrow[backward].value, 1.0)
    return share * np.where(width > 128, FLASH_WIDE_HEAD[backward].value, factor), short


def _sustained_share(
    share: Floats, generation: Generation, kernel: AttentionKernel, *, peak: float, clocks: tuple[float, float]
) -> Floats:
    """Sustained share of this peak: the measured GPU's, carried like that of a matrix product. [F-2]

    A kernel's instruction bounds both: what mma.sync cannot issue on the measured GPU, it cannot issue on another one either.
    """
    measured = FLASH_REFERENCE_FLOPS_PER_S.get(generation)
    if measured is None:
        return share * clocks[0]
    most = FLASH_INSTRUCTION_SHARE.get((generation, kernel), 1.0)
    carried = carried_shares(share / most, ratio=peak / measured, clock=clocks[0], waiting_clock=clocks[1])
    return most * carried


def batched_product_s(
    scores: Floats, width: Floats, kv: Floats, *, speed: float, memory_bytes_per_s: float, element_bytes: float = 2.0
) -> Floats:
    """Seconds of one batched product between scores and heads of `width`, the launch left out. [F-2]

        max(2 S d / (speed eff), S element / memory bandwidth),  eff = 0.475 d / (d + 64), in fp32 0.86 d / (d + 32)

    The efficiency is lower where a size is not a multiple of 16 or 8. `speed` is the sustained peak in operations per second.
    """
    most, half = FP32_BATCHED if element_bytes > 2 else (BMM_EFFICIENCY, BMM_HEAD_HALF)
    efficiency = most.value * width / (width + half.value) * _alignment(width, kv)
    return np.maximum(2.0 * scores * width / (speed * efficiency), element_bytes * scores / memory_bytes_per_s)


def composed_s(
    product_s: Floats,
    scores: Floats,
    *,
    direction: Direction,
    stream: float,
    dropout: float,
    passes: float | None = None,
) -> Floats:
    """Seconds of one direction of attention whose products take `product_s` each, shape of `scores`. [F-2]

    Args:
        product_s: seconds of one batched product.
        scores: number of scores.
        direction: forward or backward.
        stream: scores that stream by in a second.
        dropout: probability; at 0 there is no mask to read or write.
        passes: passes over the scores, where a chain of operators needs others than a fused softmax.
    """
    products, usual = (2.0, 4.0) if direction == "forward" else (4.0, 6.0)
    passes = usual if passes is None else passes
    extra, kernels = (5.0, 2.0) if dropout > 0 else (0.0, 1.0)
    seconds = products * (product_s + KERNEL_FLOOR_S.value) + (passes + extra) * scores / stream
    return seconds + kernels * ELEMENTWISE_KERNEL_S.value


def _padded(width: Floats) -> Floats:
    return np.ceil(width / FLASH_HEAD_MULTIPLE.value) * FLASH_HEAD_MULTIPLE.value


def _alignment(*sizes: Floats) -> Floats:
    """Share of the speed that is left where a size is not a multiple of 16, or of 8; the worst size counts."""
    speed = np.ones(sizes[0].shape)
    for size in sizes:
        own = np.where(np.fmod(size, 8.0) != 0, BMM_UNALIGNED_8.value, 1.0)
        speed = np.minimum(speed, np.where((own == 1) & (np.fmod(size, 16.0) != 0), BMM_UNALIGNED_16.value, own))
    return speed
