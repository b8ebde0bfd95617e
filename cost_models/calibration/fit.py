"""From samples to fits: medians, monotone curves, leave-one-out residuals. Pure functions of the samples.

A larger message cannot really be faster. Points far above both neighbours are interrupted measurements and are replaced; where
time still falls with size, the difference is noise and is pooled. Nothing else is smoothed: a clean curve comes back as it was
measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from cost_models.calibration.document import CollectiveFit, GemmFit
from cost_models.calibration.samples import CollectiveSample, GemmSample

Floats = NDArray[np.float64]
RESIDUAL_QUANTILE = 0.8
"""Quantile of the errors that is a half-width, so that residuals are half-widths of 80 % intervals."""

_INTERRUPTED = 1.5


def fit_collectives(samples: Sequence[CollectiveSample]) -> tuple[CollectiveFit, ...]:
    """One curve for each (operation, ranks, ranks per node, stride, concurrent groups)."""
    repeats: dict[tuple[str, int, int, int, int], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for s in samples:
        key = (s.op, s.ranks, s.ranks_per_node, s.stride, s.concurrent_groups)
        repeats[key][s.size_bytes].append(s.time_s)
    fits = []
    for (op, ranks, per_node, stride, concurrent), by_size in sorted(repeats.items()):
        size = np.array(sorted(by_size))
        raw = np.array([median(by_size[x]) for x in size])
        clean = _rising(_without_interruptions(size, raw))
        fits.append(
            CollectiveFit.model_validate(
                {
                    "op": op, "ranks": ranks, "ranks_per_node": per_node, "stride": stride,
                    "concurrent_groups": concurrent, "size_bytes": tuple(size), "time_s": tuple(clean),
                    "residual_fraction": round(_curve_residual(size, clean), 4),
                }
            )
        )  # fmt: skip
    return tuple(fits)


def _without_interruptions(size: Floats, time_s: Floats) -> Floats:
    """Seconds in which inner points above 1.5 times both neighbours are replaced by the neighbours' log-log interpolation."""
    clean = time_s.copy()
    for i in range(1, len(size) - 1):
        # The left neighbour is the cleaned one, so that two interrupted points in a row do not vouch for each other.
        if time_s[i] > _INTERRUPTED * max(clean[i - 1], time_s[i + 1]):
            share = np.log(size[i] / size[i - 1]) / np.log(size[i + 1] / size[i - 1])
            clean[i] = clean[i - 1] ** (1.0 - share) * time_s[i + 1] ** share
    return clean


def _rising(time_s: Floats) -> Floats:
    """The nearest sequence that never falls, in squared log distance (pooling adjacent violators)."""
    blocks: list[tuple[float, int]] = []
    for value in np.log(time_s):
        mean, count = float(value), 1
        while blocks and blocks[-1][0] > mean:
            before, held = blocks.pop()
            mean, count = (before * held + mean * count) / (held + count), held + count
        blocks.append((mean, count))
    pooled = np.exp([mean for mean, count in blocks for _ in range(count)])
    # Points that no neighbour contradicts come back unchanged to the last bit, which exp(log(x)) would not guarantee.
    alone = np.array([count == 1 for _mean, count in blocks for _ in range(count)])
    return np.maximum.accumulate(np.where(alone, time_s, pooled))


def _curve_residual(size: Floats, time_s: Floats) -> float:
    """80th percentile of |prediction / measurement - 1|, where each inner point is predicted from its two neighbours."""
    if len(size) < 3:
        return 0.0
    x, y = np.log2(size), np.log2(time_s)
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    predicted = y[:-2] + share * (y[2:] - y[:-2])
    return float(np.quantile(np.abs(np.exp2(predicted - y[1:-1]) - 1.0), RESIDUAL_QUANTILE))


def fit_gemms(samples: Sequence[GemmSample], *, peak_flops_per_s: float, dtype: str = "bf16") -> GemmFit | None:
    """Ranges of the measured shapes, and the error of predicting each shape from its neighbours; None without plain products.

    Args:
        samples: products of any kind; those of this type, alone in their kernel and in the forward layout count.
        peak_flops_per_s: dense peak of the type.
        dtype: type of the operands.
    """
    chosen = [s for s in samples if s.dtype == dtype and s.batch == 1 and s.layout == "forward"]
    if not chosen:
        return None
    shape = np.array([(s.m, s.n, s.k) for s in chosen], dtype=np.float64)
    share = 2.0 * shape.prod(axis=1) / np.array([s.time_s for s in chosen]) / peak_flops_per_s
    low, high = shape.min(axis=0), shape.max(axis=0)
    return GemmFit(
        dtype=dtype,
        residual_fraction=round(_shape_residual(np.log2(shape), np.log2(share)), 4),
        m_range=(int(low[0]), int(high[0])),
        n_range=(int(low[1]), int(high[1])),
        k_range=(int(low[2]), int(high[2])),
    )


def _shape_residual(log_shape: Floats, log_share: Floats) -> float:
    """80th percentile of |prediction / measurement - 1|, each shape predicted from the four nearest others by inverse
    distance.
    """
    # With fewer shapes a prediction has no four neighbours, and an error of 0 here means that none is known.
    if len(log_shape) < 5:
        return 0.0
    distance = np.abs(log_shape[:, None, :] - log_shape[None, :, :]).sum(axis=2)
    np.fill_diagonal(distance, np.inf)
    near = np.argsort(distance, axis=1)[:, :4]
    weight = 1.0 / np.maximum(np.take_along_axis(distance, near, axis=1), 1e-6)
    predicted = (weight * log_share[near]).sum(axis=1) / weight.sum(axis=1)
    return float(np.quantile(np.abs(np.exp2(predicted - log_share) - 1.0), RESIDUAL_QUANTILE))
