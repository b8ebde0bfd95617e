"""Seconds of matrix products of any shape from an efficiency surface over (log m, log n, log k). [F-1]

What is carried across shapes is the share of dense peak, never time. A surface is a grid: public tables are one already, and a
profile's scattered shapes bend the table by the ratio of the nearest ones. Which kernel the library chooses is not known here;
below the table's smallest sizes the number of waves on the device stands in for it. Array suffixes: M, N, K the grid's axes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cost_models.constants import (
    GEMM_EDGE_TILE,
    GEMM_K_HALF,
    GEMM_TILE,
    GEMM_UNALIGNED,
    GROUPED_GEMM_EFFICIENCY,
    GROUPED_STREAM,
    KERNEL_FLOOR_S,
)
from cost_models.estimate import Estimate
from cost_models.terms import Tier

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Kind = Literal["forward", "dgrad", "wgrad"]
Shape = tuple[float, float, float]
Box = tuple[Shape, Shape]

_SAME_SHAPE_LOG2 = 0.02
"""Largest difference in log2 of each size (1.4 %) at which a shape counts as the measured one."""
_MOST_LAUNCH_SHARE = 0.5
"""Share of a measured product's time that is taken for its launch gap at most."""
_NEAREST = 4
_DISTANCES_AT_ONCE = 1 << 16
"""Distances between grid and measured shapes that are held at a time, 512 KiB: they stay in a core's cache."""
_EVERYWHERE: Box = ((-math.inf,) * 3, (math.inf,) * 3)
_MAX_AXIS = 32
"""Values kept on one axis when a profile's shapes are merged into a grid."""


@dataclass(frozen=True, eq=False)
class GemmSurface:
    """Share of the bf16 dense peak over a grid of shapes, with the launch gap taken out."""

    log2_m: Floats
    log2_n: Floats
    log2_k: Floats
    share_MNK: Floats
    sampled_MNK: NDArray[np.bool_]
    """Whether a node of the grid is a measured shape."""
    num_sms: int
    sampled_tier: Tier
    inside_tier: Tier
    outside_tier: Tier
    kind_ratio: Mapping[str, float] = field(default_factory=dict)
    """Measured share of a gradient layout over the forward one."""
    precision_ratio: Mapping[str, float] = field(default_factory=dict)
    """Measured share of its own peak over bf16's share, by precision."""
    grouped_ratio: float = GROUPED_GEMM_EFFICIENCY.value
    """Share of several products in one kernel over that of one product by itself, waves counted together."""
    boxes: Mapping[str, Box] = field(default_factory=dict)
    """Smallest and largest measured log2 sizes by precision; shapes outside of them are extrapolated."""

    @property
    def edge(self) -> Shape:
        """Smallest m, n and k of the grid."""
        return float(2 ** self.log2_m[0]), float(2 ** self.log2_n[0]), float(2 ** self.log2_k[0])


def gemm_s(
    m: Floats, n: Floats, k: Floats, *,
    surface: GemmSurface, peak_flops_per_s: float, memory_bytes_per_s: float, input_bytes: float, output_bytes: float,
    kind: Kind = "forward", batch: Floats | float = 1.0, precision: str = "bf16",
) -> Estimate:  # fmt: skip
    """Seconds of `batch` products (m, k) x (k, n) issued as one kernel, and their tier; arrays are broadcast together. [F-1]

        t = max(2 m' n' k / (peak * share(m', n', k)), bytes / bytes_per_s) + kernel floor

    m' and n' are rounded up to the edge tile where the table reaches; below it the share is scaled by wave occupancy.

    Args:
        m: rows as the kernel sees them; (m, n, k) is forward (T, n, k), data gradient (T, k, n), weight gradient (n, k, T).
        n: columns of the result.
        k: summed dimension.
        surface: share of the peak at bf16.
        peak_flops_per_s: operations per second that a share of 1 means at this precision, its own factor included.
        memory_bytes_per_s: data-sheet bandwidth; it is a bound, so no efficiency applies.
        input_bytes: bytes of one input element.
        output_bytes: bytes of one element of the result.
        kind: which of the three passes; it decides which dimensions are contiguous.
        batch: independent products in the kernel; more than one pays the grouped-kernel efficiency.
        precision: whose measured shapes tell what is extrapolated.
    """
    m, n, k, batch = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (m, n, k, batch)))
    shape = {"forward": (m, n, k), "dgrad": (m, k, n), "wgrad": (m, n, k)}[kind]
    forward = (shape[2], shape[1], shape[0]) if kind == "wgrad" else shape
    passes = gemm_passes_s(
        *forward, surface=surface, peak_flops_per_s=peak_flops_per_s, memory_bytes_per_s=memory_bytes_per_s,
        input_bytes=input_bytes, output_bytes=output_bytes, batch=batch, precision=precision,
    )  # fmt: skip
    index = ("forward", "dgrad", "wgrad").index(kind)
    return Estimate(passes.seconds[index], passes.tier[index])


def gemm_passes_s(
    m: Floats, n: Floats, k: Floats, *,
    surface: GemmSurface, peak_flops_per_s: float, memory_bytes_per_s: float, input_bytes: float, output_bytes: float,
    batch: Floats, precision: str = "bf16",
) -> Estimate:  # fmt: skip
    """Seconds of forward, data gradient and weight gradient of the same products, shape (3, ...): `gemm_s` of each. [F-1]

    The three share their operands, so that the contiguous dimensions are n and k of the forward in all of them.
    """
    kinds: tuple[Kind, ...] = ("forward", "dgrad", "wgrad")
    each_m, each_n, each_k = np.array([m, m, k]), np.array([n, k, n]), np.array([k, n, m])
    ratio = np.array([surface.kind_ratio.get(kind, 1.0) for kind in kinds]).reshape(3, *[1] * np.ndim(m))
    edge = surface.edge
    wide_m, wide_n = _padded(each_m, edge[0]), _padded(each_n, edge[1])
    logs = np.log2(wide_m), np.log2(wide_n), np.log2(each_k)
    share = _trilinear(surface, logs) * _below_edge(surface, each_m, each_n, each_k, batch)
    # Rows of 8 two-byte elements are 16 bytes, the widest load of a thread; other widths fall back to narrower loads.
    ragged = (np.fmod(n, 8.0) != 0) | (np.fmod(k, 8.0) != 0)
    share = share * ratio * np.where(ragged, GEMM_UNALIGNED.value, 1.0)
    share = share * np.where(batch > 1, surface.grouped_ratio, 1.0)
    compute_s = 2.0 * batch * wide_m * wide_n * each_k / (peak_flops_per_s * share)
    moved = batch * ((each_m + each_n) * each_k * input_bytes + each_m * each_n * output_bytes)
    # Operands stream in while products run, so only the slower of the two counts (the roofline); the launch gap comes
    # on top.
    stream = memory_bytes_per_s * np.where(batch > 1, GROUPED_STREAM.value, 1.0)
    seconds = np.maximum(compute_s, moved / stream) + KERNEL_FLOOR_S.value
    return Estimate(seconds, _tiers(surface, logs, precision))


def net_share(shape: Shape, time_s: float, *, peak_flops_per_s: float) -> float:
    """Share of peak of one measured product, 0...1, once its launch gap is taken out."""
    return 2.0 * shape[0] * shape[1] * shape[2] / (without_launch_s(time_s) * peak_flops_per_s)


def without_launch_s(time_s: float) -> float:
    """Seconds of one measured product without its launch gap."""
    # For products as short as a launch gap the difference would be noise, hence at most half is taken out.
    return max(time_s - KERNEL_FLOOR_S.value, (1.0 - _MOST_LAUNCH_SHARE) * time_s)


def _padded(size: Floats, edge: float) -> Floats:
    """Rows or columns rounded up to whole edge tiles, where the table reaches."""
    tile = GEMM_EDGE_TILE.value
    return np.where(size >= edge, np.ceil(size / tile) * tile, size)


def _below_edge(surface: GemmSurface, m: Floats, n: Floats, k: Floats, batch: Floats) -> Floats:
    """Wave occupancy of the shape over that of the nearest shape that the grid holds; 1 inside the grid."""
    low_m, low_n, low_k = surface.edge
    if not (np.any(m < low_m) or np.any(n < low_n) or np.any(k < low_k)):
        return np.float64(1.0)  # type: ignore[return-value]  # broadcasts as an array of ones would
    edge_m, edge_n, edge_k = np.maximum(m, low_m), np.maximum(n, low_n), np.maximum(k, low_k)
    here = _occupancy(m, n, batch, surface.num_sms) * k / (k + GEMM_K_HALF.value)
    there = _occupancy(edge_m, edge_n, np.float64(1.0), surface.num_sms) * edge_k / (edge_k + GEMM_K_HALF.value)
    return np.minimum(here / there, 1.0)


def _occupancy(m: Floats, n: Floats, batch: Floats | np.float64, num_sms: int) -> Floats:
    """Useful share of the multiply units over the waves of output tiles, all products of a kernel together."""
    tile = GEMM_TILE.value
    # A last wave that fills the device only in part takes as long as a full one.
    waves = np.ceil(batch * np.ceil(m / tile) * np.ceil(n / tile) / num_sms)
    return batch * m * n / (waves * (num_sms * tile * tile))


def _located(log_size: Floats, axis: Floats) -> tuple[Ints, Floats, int]:
    """Lower grid index of each size, fraction of the way to the next node, and the step to it (0 on an axis of one value)."""
    if len(axis) == 1:
        return np.zeros(log_size.shape, dtype=np.int64), np.zeros(log_size.shape), 0
    index = np.clip(np.searchsorted(axis, log_size, side="right") - 1, 0, len(axis) - 2)
    width = np.diff(axis)
    return index, np.clip((log_size - axis[index]) / width[index], 0.0, 1.0), 1


def _trilinear(surface: GemmSurface, logs: Sequence[Floats]) -> Floats:
    """Share of peak at these shapes, clamped at the grid's faces."""
    table = surface.share_MNK.ravel()
    _, num_n, num_k = surface.share_MNK.shape
    i, x, di = _located(logs[0], surface.log2_m)
    j, y, dj = _located(logs[1], surface.log2_n)
    l, z, dl = _located(logs[2], surface.log2_k)  # noqa: E741  # third index of a grid
    corner = (i * num_n + j) * num_k + l
    di, dj = di * num_n * num_k, dj * num_k

    def along_k(at: Ints) -> Floats:
        low = table[at]
        return low + z * (table[at + dl] - low)

    def along_nk(at: Ints) -> Floats:
        low = along_k(at)
        return low + y * (along_k(at + dj) - low)

    low = along_nk(corner)
    return low + x * (along_nk(corner + di) - low)


def _tiers(surface: GemmSurface, logs: Sequence[Floats], precision: str) -> NDArray[np.int8]:
    """Tier of each shape: sampled, inside the measured range, or outside of it."""
    axes = (surface.log2_m, surface.log2_n, surface.log2_k)
    smallest, largest = surface.boxes.get(precision, _EVERYWHERE)
    inside = np.ones(logs[0].shape, dtype=bool)
    for log_size, axis, low, high in zip(logs, axes, smallest, largest, strict=True):
        inside &= (log_size >= max(axis[0], low) - _SAME_SHAPE_LOG2) & (
            log_size <= min(axis[-1], high) + _SAME_SHAPE_LOG2
        )
    tier = np.where(inside, np.int8(surface.inside_tier), np.int8(surface.outside_tier))
    # Tables whose nodes are known no better than the shapes between them need no search for the nearest node.
    if surface.sampled_tier == surface.inside_tier:
        return tier
    nearest, close = [], inside
    for log_size, axis in zip(logs, axes, strict=True):
        index, fraction, step = _located(log_size, axis)
        index = index + step * (fraction > 0.5)
        close = close & (np.abs(axis[index] - log_size) <= _SAME_SHAPE_LOG2)
        nearest.append(index)
    return np.where(close & surface.sampled_MNK[tuple(nearest)], np.int8(surface.sampled_tier), tier)


# --- building surfaces ------------------------------------------------------------------------------------------------


def nominal_surface(share: float, *, num_sms: int) -> GemmSurface:
    """A surface of one constant share for large shapes, falling with occupancy below them; nothing of it is measured."""
    one = np.array([13.0])  # 8192: large enough to fill any device
    return GemmSurface(
        one, one, one, np.full((1, 1, 1), share), np.zeros((1, 1, 1), dtype=bool), num_sms,
        Tier.NOMINAL, Tier.NOMINAL, Tier.NOMINAL,
    )  # fmt: skip


def table_surface(shares: Mapping[Shape, float], *, num_sms: int, inside: Tier, outside: Tier) -> GemmSurface | None:
    """The surface of shapes that form a full grid; None where they do not."""
    axes = [np.array(sorted({shape[axis] for shape in shares})) for axis in range(3)]
    if len(shares) != np.prod([len(axis) for axis in axes]):
        return None
    grid = [[[shares[float(a), float(b), float(c)] for c in axes[2]] for b in axes[1]] for a in axes[0]]
    share_MNK = np.array(grid)
    log2_m, log2_n, log2_k = (np.log2(axis) for axis in axes)
    return GemmSurface(
        log2_m, log2_n, log2_k, share_MNK, np.ones(share_MNK.shape, dtype=bool), num_sms, inside, inside, outside
    )


def bent_surface(
    base: GemmSurface, shares: Mapping[Shape, float], *, sampled: Tier, inside: Tier, outside: Tier
) -> GemmSurface:
    """A base surface times the ratio of measured to base share at the nearest measured shapes. [F-1]

    The grid's axes are those of both, so that every measured shape is a node and comes back exactly. Where an axis would have more
    than 32 values, shapes are snapped to the values that are kept.
    """
    # Distances are taken in log sizes, since efficiency changes with ratios of sizes.
    measured = np.log2(np.array(list(shares)))
    axes = [
        _merged_axis(axis, measured[:, column]) for column, axis in enumerate((base.log2_m, base.log2_n, base.log2_k))
    ]
    node = [np.argmin(np.abs(axis[:, None] - measured[:, column]), axis=0) for column, axis in enumerate(axes)]
    nodes = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    # Bending by ratios keeps the table's wave and tile edges between the samples, which interpolating the samples
    # alone would lose.
    log_ratio = np.log(np.array(list(shares.values())) / _share_at(base, measured))
    snapped = np.stack([axis[index] for axis, index in zip(axes, node, strict=True)], axis=1)
    share = _share_at(base, nodes) * np.exp(_inverse_distance(nodes, snapped, log_ratio))
    size = tuple(len(axis) for axis in axes)
    at_sample = np.zeros(size, dtype=bool)
    at_sample[tuple(node)] = True
    return GemmSurface(
        axes[0], axes[1], axes[2], share.reshape(size), at_sample, base.num_sms, sampled, inside, outside
    )


def median_ratio(surface: GemmSurface, shares: Mapping[Shape, float]) -> float:
    """Median of measured share over the surface's share at the same shapes."""
    model = _share_at(surface, np.log2(np.array(list(shares))))
    return median(float(own / there) for own, there in zip(shares.values(), model, strict=True))


def grouped_ratio(surface: GemmSurface, shares: Sequence[tuple[Shape, float, float]]) -> float:
    """Median of measured share over the surface's, for kernels of several products: (shape, products, share) of each."""
    ratios = []
    for shape, batch, own in shares:
        there = _share_at(surface, np.log2(np.array([shape])), batch=batch)
        ratios.append(own / float(there[0]))
    return median(ratios)


def _share_at(surface: GemmSurface, log_shape: Floats, *, batch: float = 1.0) -> Floats:
    """Share of peak at these shapes of `batch` products, shape (N,)."""
    logs = list(log_shape.T)
    m, n, k = (np.exp2(x) for x in logs)
    return _trilinear(surface, logs) * _below_edge(surface, m, n, k, np.full(len(m), batch))


def _merged_axis(base: Floats, extra: Floats) -> Floats:
    """Sorted values of both, close ones merged, thinned evenly to the limit with the ends kept."""
    values = np.unique(np.round(np.concatenate([base, extra]), 6))
    if len(values) > _MAX_AXIS:
        values = values[np.unique(np.linspace(0, len(values) - 1, _MAX_AXIS).round().astype(int))]
    return values


def _inverse_distance(at: Floats, known: Floats, value: Floats) -> Floats:
    """Mean of the values at the nearest known points, weighted by 1/distance in log space, shape (N,)."""
    # Some points at a time: all distances at once would be 2 GB for a calibration of 8,000 shapes, and as slow as that memory.
    step = max(_DISTANCES_AT_ONCE // len(known), 1)
    parts = [_inverse_distance_of_some(at[start : start + step], known, value) for start in range(0, len(at), step)]
    return np.concatenate(parts)


def _inverse_distance_of_some(at: Floats, known: Floats, value: Floats) -> Floats:
    distance = sum(np.abs(at[:, axis, None] - known[None, :, axis]) for axis in range(3))
    near = np.argpartition(distance, min(_NEAREST, len(known)) - 1, axis=1)[:, :_NEAREST]
    weight = 1.0 / np.maximum(np.take_along_axis(distance, near, axis=1), 1e-9)
    return np.asarray((weight * value[near]).sum(axis=1) / weight.sum(axis=1))


def median_shares(rows: Iterable[tuple[Shape, float]], *, peak_flops_per_s: float) -> dict[Shape, float]:
    """Net share of peak of each shape, the median of its repeats."""
    repeats: dict[Shape, list[float]] = defaultdict(list)
    for shape, time_s in rows:
        repeats[shape].append(net_share(shape, time_s, peak_flops_per_s=peak_flops_per_s))
    return {shape: median(values) for shape, values in repeats.items()}
