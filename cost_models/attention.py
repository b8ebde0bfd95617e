"""Seconds of the attention core, forward and backward: fused (flash) kernels by generation, and the unfused chain.  [F-2]

Flash kernels are bound by the multiply units; what they reach depends on which instruction a kernel generation uses on
which GPU, so the kernel matters as much as the GPU. Projections are matrix products of their own and not part of this.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from cost_models.constants import (
    BMM_EFFICIENCY,
    BMM_HEAD_HALF,
    BMM_UNALIGNED_8,
    BMM_UNALIGNED_16,
    ELEMENTWISE_KERNEL_S,
    KERNEL_FLOOR_S,
    SUSTAINED_CLOCK,
)
from cost_models.efficiency import carried_share
from cost_models.estimate import Estimate
from cost_models.flash_constants import (
    FLASH_BACKWARD_FLOPS,
    FLASH_EFFICIENCY,
    FLASH_HEAD_MULTIPLE,
    FLASH_INSTRUCTION_SHARE,
    FLASH_NARROW_HEAD,
    FLASH_REFERENCE_FLOPS_PER_S,
    FLASH_SHORT_SEQUENCE,
    FLASH_WIDE_HEAD,
)
from cost_models.specs.cluster import Generation
from cost_models.specs.training import AttentionKernel
from cost_models.terms import Tier

if TYPE_CHECKING:
    from cost_models.calibration import Calibration, CalibrationDocument

Floats = NDArray[np.float64]
Direction = Literal["forward", "backward"]
_FORWARD_KERNELS, _BACKWARD_KERNELS = 1.0, 3.0
"""Launches: one, and row sums, the gradients, the cast of the query gradient."""


@dataclass(frozen=True, slots=True)
class AttentionTime:
    """Seconds of one layer's attention core."""

    forward: Estimate
    backward: Estimate


def visible_pairs(q_length: Floats, kv_length: Floats, window: Floats | float | None) -> Floats:
    """Query-key pairs a causal mask leaves, for an evenly balanced share of q_length queries over kv_length keys.

    With w = min(window, kv_length), query i sees min(i, w) keys: kv w - w^2/2 pairs in all, of which q/kv are ours.
    """
    reach = kv_length if window is None else np.minimum(window, kv_length)
    return q_length * (reach - reach * reach / (2.0 * kv_length))


def flash_attention_s(
    *, sequences: Floats | float, heads: Floats | float, q_length: Floats | float, kv_length: Floats | float,
    d_qk: Floats | float, d_v: Floats | float, window: Floats | float | None, calibration: Calibration,
    kernel: AttentionKernel,
) -> AttentionTime:  # fmt: skip
    """Seconds of fused causal attention on one GPU, arrays broadcast together.

        t = 2 sequences heads pairs (d_qk + d_v) / (peak eff clock) (1 + 512 / reach)                          [F-2]

    backward 2.5 times the operations at its own efficiency.

    Args:
        sequences: sequences in the micro-batch.
        heads: query heads on this rank; sharing key heads among them (GQA) doesn't change the operations.
        q_length: queries of a sequence on this rank, seq_length / cp.
        kv_length: keys each sequence has over all ranks, seq_length.
        d_qk: width of a query-key head, padded to a multiple of 32.
        d_v: width of a value head, likewise (narrower under MLA).
        window: tokens a query can see; None is full causal attention.
        calibration: GPU, clock, and samples if it has any.
        kernel: which generation of kernel.
    """
    count, q, kv, qk, v = np.broadcast_arrays(
        np.multiply(sequences, heads), *(np.asarray(x, dtype=np.float64) for x in (q_length, kv_length, d_qk, d_v))
    )
    gpu = calibration.cluster.gpu
    peak, clocks = calibration.peak_flops_per_s("bf16"), (calibration.sustained_clock, calibration.waiting_clock)

    def priced(direction: Direction) -> Estimate:
        seconds = _flash_s(
            count, q, kv, qk, v, window=window, kernel=kernel, direction=direction, generation=gpu.generation, peak=peak,
            clocks=clocks,
        )  # fmt: skip
        ratio = calibration.attention_ratio.get((kernel, direction))
        if ratio is None:
            return Estimate(seconds, np.full(seconds.shape, np.int8(Tier.NOMINAL)))
        return Estimate(seconds * ratio, np.full(seconds.shape, np.int8(Tier.INTERPOLATED)))

    return AttentionTime(priced("forward"), priced("backward"))


def _flash_s(
    count: Floats, q: Floats, kv: Floats, qk: Floats, v: Floats, *,
    window: Floats | float | None, kernel: AttentionKernel, direction: Direction, generation: Generation, peak: float,
    clocks: tuple[float, float],
) -> Floats:  # fmt: skip
    """Seconds of one direction for `count` heads on a GPU of this dense peak; sustained clock and that of waits."""
    backward = direction == "backward"
    reach = kv if window is None else np.minimum(window, kv)
    flops = 2.0 * count * visible_pairs(q, kv, window) * (_padded(qk) + _padded(v))
    flops = flops * (FLASH_BACKWARD_FLOPS.value if backward else 1.0) * (1.0 + FLASH_SHORT_SEQUENCE.value / reach)
    narrow = np.where(np.maximum(qk, v) <= 64, FLASH_NARROW_HEAD[backward].value, 1.0)
    narrow = np.where(np.maximum(qk, v) > 128, FLASH_WIDE_HEAD[backward].value, narrow)
    speed = peak * _flash_share(generation, kernel, backward=backward, peak=peak, clocks=clocks)
    launches = _BACKWARD_KERNELS if backward else _FORWARD_KERNELS
    return flops / (speed * narrow) + launches * KERNEL_FLOOR_S.value


def _flash_share(
    generation: Generation, kernel: AttentionKernel, *, backward: bool, peak: float, clocks: tuple[float, float]
) -> float:
    """Sustained share of the peak: the published one, carried to another peak like that of a matrix product.     [F-2]

    A kernel's instruction bounds both: what mma.sync cannot issue on the measured GPU, it cannot elsewhere.
    """
    share, measured = FLASH_EFFICIENCY[generation, kernel][backward].value, FLASH_REFERENCE_FLOPS_PER_S.get(generation)
    if measured is None:
        return share * clocks[0]
    most = FLASH_INSTRUCTION_SHARE.get((generation, kernel), 1.0)
    return most * carried_share(share / most, ratio=peak / measured, clock=clocks[0], waiting_clock=clocks[1])


def math_attention_s(
    *, sequences: Floats | float, heads: Floats | float, q_length: Floats | float, kv_length: Floats | float,
    d: Floats | float, dropout: float, calibration: Calibration, precision: str = "bf16", composed: bool = False,
) -> AttentionTime:  # fmt: skip
    """Seconds of attention that writes its scores: two batched products and a fused scale-mask-softmax-dropout.

        forward  2 bmm + (4 + 5 dropout) S / bandwidth,  backward 4 bmm + (6 + 5 dropout) S / bandwidth         [F-2]

    for S = sequences heads q kv scores of 2 bytes (twice the traffic at 4). The mask saves nothing. Where a calibration
    measured the products, they take its ratio; where PyTorch composes the chain of operators and a calibration measured
    that, all of it takes that ratio.

    Args:
        sequences: sequences in the micro-batch.
        heads: query heads on this rank.
        q_length: queries of a sequence on this rank.
        kv_length: keys each sequence has over all ranks.
        d: head width.
        dropout: probability; 0 has no mask to read or write.
        calibration: GPU, clock and bandwidth.
        precision: of the products.
        composed: PyTorch's chain of operators runs, not a fused softmax.
    """
    count, q, kv, width = np.broadcast_arrays(
        np.multiply(sequences, heads), *(np.asarray(x, dtype=np.float64) for x in (q_length, kv_length, d))
    )
    scores = count * q * kv
    element = 2.0 if precision == "fp32" else 1.0
    peak = calibration.peak_flops_per_s("bf16" if precision not in {"fp16", "fp32"} else precision)
    product_s = batched_product_s(
        scores, width, kv, speed=peak * calibration.sustained_clock, element_bytes=2.0 * element,
        memory_bytes_per_s=calibration.cluster.gpu.memory_bytes_per_s,
    )  # fmt: skip
    products, tier = calibration.products, Tier.NOMINAL
    measured = products.composed_ratio if composed and precision != "fp32" else {}
    if not measured and len(products.log2_widths_W) and precision != "fp32":
        product_s, tier = product_s * products.batched_ratio(width), Tier.EXTRAPOLATED
    stream = calibration.memory_bytes_per_s_effective.value / element

    def priced(direction: Direction) -> Estimate:
        seconds = composed_s(product_s, scores, direction=direction, stream=stream, dropout=dropout)
        known = Tier.INTERPOLATED if direction in measured else tier
        return Estimate(seconds * measured.get(direction, 1.0), np.full(scores.shape, np.int8(known)))

    return AttentionTime(priced("forward"), priced("backward"))


def batched_product_s(
    scores: Floats, width: Floats, kv: Floats, *, speed: float, memory_bytes_per_s: float, element_bytes: float = 2.0
) -> Floats:
    """Seconds of one batched product between scores and heads of `width`, launch left out.                     [F-2]

        max(2 S d / (speed eff), S element / memory bandwidth),  eff = 0.475 d / (d + 64)

    lower where a size is no multiple of 16 or 8. `speed` is the sustained peak in operations a second.
    """
    efficiency = BMM_EFFICIENCY.value * width / (width + BMM_HEAD_HALF.value) * _alignment(width, kv)
    return np.maximum(2.0 * scores * width / (speed * efficiency), element_bytes * scores / memory_bytes_per_s)


def composed_s(product_s: Floats, scores: Floats, *, direction: Direction, stream: float, dropout: float) -> Floats:
    """Seconds of one direction of attention whose products take `product_s` each, shape of `scores`.            [F-2]"""
    products, passes = (2.0, 4.0) if direction == "forward" else (4.0, 6.0)
    extra, kernels = (5.0, 2.0) if dropout > 0 else (0.0, 1.0)
    seconds = products * (product_s + KERNEL_FLOOR_S.value) + (passes + extra) * scores / stream
    return seconds + kernels * ELEMENTWISE_KERNEL_S.value


def _padded(width: Floats) -> Floats:
    return np.ceil(width / FLASH_HEAD_MULTIPLE.value) * FLASH_HEAD_MULTIPLE.value


def _alignment(*sizes: Floats) -> Floats:
    """Speed left over where a size is no multiple of 16, or of 8; the worst size counts."""
    speed = np.ones(sizes[0].shape)
    for size in sizes:
        own = np.where(np.fmod(size, 8.0) != 0, BMM_UNALIGNED_8.value, 1.0)
        speed = np.minimum(speed, np.where((own == 1) & (np.fmod(size, 16.0) != 0), BMM_UNALIGNED_16.value, own))
    return speed


def attention_ratios(document: CalibrationDocument) -> dict[tuple[str, str], float]:
    """Measured over modelled seconds of a document's samples on its own GPU, the median by (kernel, direction)."""
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    clock = SUSTAINED_CLOCK[document.device.generation].value
    for s in document.attention:
        if s.dtype not in ("bf16", "fp16"):
            continue
        sizes = (np.array([float(x)]) for x in (s.sequences * s.heads, s.q_length, s.kv_length, s.d_qk, s.d_v))
        modelled_s = _flash_s(
            *sizes, window=s.window, kernel=s.kernel, direction=s.direction, generation=document.device.generation,
            peak=document.device.half_flops_per_s, clocks=(clock, clock),
        )  # fmt: skip
        ratios[s.kernel, s.direction].append(float(s.time_s / modelled_s[0]))
    return {key: median(values) for key, values in ratios.items()}
