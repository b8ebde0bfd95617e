"""What a document's special products say beside the plain ones: batched products, accumulating ones, attention with scores.

Each is turned into the one number that the cost models use in place of a constant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cost_models.calibration.document import CalibrationDocument
from cost_models.calibration.samples import GemmSample
from cost_models.constants import SUSTAINED_CLOCK
from cost_models.hardware.attention_kernels import Direction, batched_product_s, composed_s
from cost_models.hardware.gemm import without_launch_s
from cost_models.specs.cluster import Gpu
from cost_models.units import MIB

Floats = NDArray[np.float64]
HEAD_WIDTHS = 256
"""A batched product with a side up to this long is one of attention's; a longer one is of experts (`scale.py` of
the profiler)."""
COPIED_BYTES = 8.0
"""Bytes per element that PyTorch's out-of-place addmm copies of the buffer before it adds: read 4, write 4. Source:
aten/src/ATen/native/cuda/Blas.cpp, where addmm_out_cuda_impl copies `self` into a new result."""
_HALF = frozenset({"bf16", "fp16"})


@dataclass(frozen=True, eq=False)
class Products:
    """What a document measured of special products; empty where it measured none."""

    accumulation_s: float | None = None
    """Seconds per parameter that a weight gradient takes longer where its kernel adds it into an fp32 buffer. [F-9]"""
    log2_widths_W: Floats = field(default_factory=lambda: np.zeros(0))
    """Head widths of the measured batched products, in log2."""
    batched_ratio_W: Floats = field(default_factory=lambda: np.zeros(0))
    """Measured over modelled seconds of a batched product of attention, by head width. [F-2]"""
    composed_ratio: Mapping[Direction, float] = field(default_factory=dict)
    """Measured over modelled seconds of attention as PyTorch's chain of operators. [F-2]"""

    def batched_ratio(self, width: Floats) -> Floats:
        """Measured over modelled seconds of attention's products of this head width; 1 where nothing was measured."""
        if not len(self.log2_widths_W):
            return np.ones(np.shape(width))
        return np.asarray(np.interp(np.log2(width), self.log2_widths_W, self.batched_ratio_W))


def is_grouped(sample: GemmSample) -> bool:
    """Whether the products of a kernel are experts' rather than attention's."""
    return sample.batch > 1 and min(sample.n, sample.k) > HEAD_WIDTHS


def products_of(document: CalibrationDocument | None) -> Products:
    """The special products that a document measured; empty where there is no document."""
    if document is None:
        return Products()
    device = document.device
    speed = device.half_flops_per_s * SUSTAINED_CLOCK[device.generation].value
    by_width: dict[int, list[float]] = defaultdict(list)
    for s in document.gemm:
        if s.batch > 1 and s.dtype in _HALF and not is_grouped(s):
            width, length = sorted((s.n, s.k))
            modelled = batched_product_s(
                *(np.array([float(x)]) for x in (s.batch * s.m * length, width, length)),
                speed=speed, memory_bytes_per_s=device.memory_bytes_per_s,
            )  # fmt: skip
            # The model leaves the launch out, and so must the sample.
            by_width[width].append(without_launch_s(s.time_s) / float(modelled[0]))
    widths = sorted(by_width)
    return Products(
        accumulation_s=_accumulation_s(document),
        log2_widths_W=np.log2(np.array(widths, np.float64)),
        batched_ratio_W=np.array([median(by_width[width]) for width in widths]),
        composed_ratio=_composed(document, speed),
    )


def _accumulation_s(document: CalibrationDocument) -> float | None:
    """Seconds per parameter by which an accumulating product is longer than the plain weight gradient of its shape. [F-9]

    The copy that PyTorch's out-of-place call makes is taken off: training frameworks add in place.
    """
    plain: dict[tuple[int, ...], list[float]] = defaultdict(list)
    added: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for s in document.gemm:
        if s.layout == "wgrad" and s.batch == 1 and s.dtype in _HALF:
            (added if s.output_dtype == "fp32" else plain)[s.m, s.n, s.k].append(s.time_s)
    longer = [
        (median(times) - median(plain[shape])) / (shape[0] * shape[1])
        for shape, times in added.items()
        if shape in plain
    ]
    if not longer:
        return None
    # Without a measured copy rate the data sheet's bound takes off too little rather than too much.
    copy = rate_of(document, "copy", gpu=None) or document.device.memory_bytes_per_s
    return max(median(longer) - COPIED_BYTES / copy, 0.0)


def _composed(document: CalibrationDocument, speed: float) -> dict[Direction, float]:
    """Measured over modelled seconds of attention that writes its scores, by direction. [F-2]"""
    ratios: dict[Direction, list[float]] = defaultdict(list)
    stream = rate_of(document, "elementwise", gpu=None) or rate_of(document, "copy", gpu=None)
    if stream is None:
        return {}
    for s in document.math_attention:
        if s.dtype not in _HALF:
            continue
        count, q, kv, width = (np.array([float(x)]) for x in (s.sequences * s.heads, s.q_length, s.kv_length, s.d))
        product = batched_product_s(
            count * q * kv, width, kv, speed=speed, memory_bytes_per_s=document.device.memory_bytes_per_s
        )
        modelled = composed_s(product, count * q * kv, direction=s.direction, stream=stream, dropout=0.0)
        ratios[s.direction].append(s.time_s / float(modelled[0]))
    return {direction: median(values) for direction, values in ratios.items()}


LAYER_BYTES: Final = 256 * MIB
"""What a kernel of a layer moves at most, about. Kernels that move ten times as much stream 6 % faster (H200, 0.2 and 3.2 GB;
data/measured_h200/whole_node_x2). [F-3]"""


def rate_of(document: CalibrationDocument, *kinds: str, gpu: Gpu | None) -> float | None:
    """Bytes per second of these kinds of memory sample together, their bytes over their seconds; None without samples.

    Samples of more than `LAYER_BYTES` count only where there are no smaller ones.

    Args:
        document: what was measured.
        kinds: kinds of samples.
        gpu: GPU that the rate is wanted for, scaled by the data sheets where it is another one; None for the measured GPU.
    """
    samples = [s for s in document.memory_bandwidth if s.kind in kinds]
    if not samples:
        return None
    samples = [s for s in samples if s.size_bytes <= LAYER_BYTES] or samples
    scale = 1.0 if gpu is None else gpu.memory_bytes_per_s / document.device.memory_bytes_per_s
    return scale * sum(s.size_bytes for s in samples) / sum(s.size_bytes / s.bytes_per_s for s in samples)
