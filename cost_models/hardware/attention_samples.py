"""What a profile's calls of fused attention say beside the model: measured over modelled seconds, by keys and head width. [F-2]

A GPU at its power limit runs short sequences in bursts and long ones at what it sustains, so that one ratio for all lengths would
price the long ones, where attention decides a step, with the bursts of the short ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Self

import numpy as np

from cost_models.calibration.document import CalibrationDocument
from cost_models.calibration.samples import AttentionSample
from cost_models.constants import SUSTAINED_CLOCK
from cost_models.hardware.attention_kernels import Direction, Floats, flash_kernel_s
from cost_models.specs.training import AttentionKernel

_HALF = ("bf16", "fp16")


@dataclass(frozen=True, slots=True)
class AttentionRatios:
    """Measured over modelled seconds of one kernel in one direction."""

    log2_widths: tuple[float, ...]
    curves: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...]
    """For each width the logarithms of its keys, ascending, and the ratio at each of them."""

    @classmethod
    def of(cls, points: Iterable[tuple[float, float, float]]) -> Self:
        """From (width, keys, ratio); of several ratios at one place the median counts."""
        found: dict[float, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
        for width, keys, ratio in points:
            found[width][keys].append(ratio)
        curves = []
        for _, by_keys in sorted(found.items()):
            places = sorted(by_keys)
            curves.append((tuple(float(np.log2(keys)) for keys in places), tuple(median(by_keys[k]) for k in places)))
        return cls(tuple(float(np.log2(width)) for width in sorted(found)), tuple(curves))

    def at(self, width: Floats, keys: Floats) -> Floats:
        """The ratio, linear in the logarithm of keys and of width and clamped at the ends of both, shape of both broadcast."""
        log2_keys, log2_width = np.broadcast_arrays(np.log2(keys), np.log2(width))
        at_widths = np.stack([np.interp(log2_keys, places, ratios) for places, ratios in self.curves])
        place = np.interp(log2_width, self.log2_widths, np.arange(len(self.log2_widths)))
        lower = np.floor(place).astype(np.intp)
        upper = np.minimum(lower + 1, len(self.curves) - 1)
        low, high = (np.take_along_axis(at_widths, each[None], axis=0)[0] for each in (lower, upper))
        ratios: Floats = low + (place - lower) * (high - low)
        return ratios


def attention_ratios(document: CalibrationDocument) -> Mapping[tuple[AttentionKernel, Direction], AttentionRatios]:
    """The ratios of a document's samples on its own GPU, by (kernel, direction); bf16 and fp16 alike."""
    points: dict[tuple[AttentionKernel, Direction], list[tuple[float, float, float]]] = defaultdict(list)
    for sample in document.attention:
        if sample.dtype in _HALF:
            keys = sample.kv_length if sample.window is None else min(sample.window, sample.kv_length)
            point = float(max(sample.d_qk, sample.d_v)), float(keys), sample.time_s / _modelled_s(document, sample)
            points[sample.kernel, sample.direction].append(point)
    return {key: AttentionRatios.of(values) for key, values in points.items()}


def _modelled_s(document: CalibrationDocument, s: AttentionSample) -> float:
    """Modelled at the measured GPU's own peak and clock, so that the ratio carries over to another GPU's model."""
    clock = SUSTAINED_CLOCK[document.device.generation].value
    sizes = (np.array([float(x)]) for x in (s.sequences * s.heads, s.q_length, s.kv_length, s.d_qk, s.d_v))
    modelled_s = flash_kernel_s(
        *sizes, window=s.window, kernel=s.kernel, direction=s.direction, generation=document.device.generation,
        peak=document.device.half_flops_per_s, clocks=(clock, clock),
    )  # fmt: skip
    return float(modelled_s[0])
