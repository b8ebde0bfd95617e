"""The figures of a calibration: bus bandwidth over size for each group of ranks, and the efficiency of matrix products."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from app.service.web.figures.curves import Axis, Series, curves
from cost_models.calibration import CalibrationDocument, CollectiveFit, GemmSample, fit_collectives
from cost_models.hardware.bus import bus_factor
from cost_models.units import GB, GIB

_KIB, _MIB = 2.0**10, 2.0**20
_MOST_GROUPS = 8
"""Groups of ranks that are drawn, the largest first; a table lists all."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure with its heading."""

    title: str
    figure: Markup


def collectives_of(document: CalibrationDocument) -> Sequence[CollectiveFit]:
    """The curves of a document, fitted now where it holds samples alone."""
    return document.collective_fits or fit_collectives(document.collectives)


def bus_bytes_per_s(fit: CollectiveFit) -> list[float]:
    """Bus bandwidth at each size of a curve in bytes/s, by the definition of nccl-tests."""
    factor = float(bus_factor(fit.op, fit.ranks))  # type: ignore[arg-type]  # a number broadcasts
    return [factor * size / time for size, time in zip(fit.size_bytes, fit.time_s, strict=True)]


def collective_figures(document: CalibrationDocument) -> list[Drawn]:
    """One figure for every group of ranks that was measured alone, with a curve for each operation."""
    # Strided groups and groups at once share links with others; beside the plain curves they would look like slower hardware.
    plain = [
        fit for fit in collectives_of(document) if fit.ranks > 1 and fit.stride == 1 and fit.concurrent_groups == 1
    ]
    groups = sorted({(fit.ranks, fit.ranks_per_node) for fit in plain}, reverse=True)
    return [_collectives(plain, ranks, per_node) for ranks, per_node in groups[:_MOST_GROUPS]]


def _collectives(fits: Sequence[CollectiveFit], ranks: int, per_node: int) -> Drawn:
    chosen = sorted((f for f in fits if (f.ranks, f.ranks_per_node) == (ranks, per_node)), key=lambda f: f.op)
    series = [
        Series(
            label=fit.op.replace("_", " "),
            kind=fit.op.replace("_", "-"),
            points=tuple((size, rate / GB) for size, rate in zip(fit.size_bytes, bus_bytes_per_s(fit), strict=True)),
        )
        for fit in chosen
    ]
    nodes = ranks // per_node
    where = "one node" if nodes == 1 else f"{nodes} nodes"
    title = f"Collectives of {ranks} ranks on {where}"
    best = ", ".join(f"{each.label} {max(y for _, y in each.points):,.0f} GB/s" for each in series)
    figure = curves(
        series,
        name=f"collectives-{ranks}-{per_node}",
        title=title,
        description=f"Bus bandwidth over the size of the message. Highest: {best}.",
        across=Axis("bytes of the whole array", size_text, base=2.0),
        up=Axis("bus bandwidth, GB/s", lambda value: f"{value:,.4g}"),
    )
    return Drawn(title, figure)


_LAYOUTS = {"forward": "forward", "dgrad": "input gradient", "wgrad": "weight gradient"}


def gemm_figures(document: CalibrationDocument) -> list[Drawn]:
    """The share of the card's peak, each format's own, that every measured product reached; no figure without products."""
    peaks = document.device.peak_flops_per_s
    groups: dict[tuple[str, str], list[GemmSample]] = {}
    for sample in document.gemm:
        if sample.dtype in peaks:
            groups.setdefault((sample.dtype, sample.layout), []).append(sample)
    if not groups:
        return []
    counts = Counter(sample.dtype for samples in groups.values() for sample in samples)
    # The format that was measured most is told apart by the direction of the product; of the others few shapes are measured.
    usual = counts.most_common(1)[0][0]
    series = [
        Series(
            label=f"{dtype} {_LAYOUTS[layout]}",
            kind=f"gemm-{layout}" if dtype == usual else f"gemm-{dtype}",
            points=tuple((product_flops(each), 100.0 * gemm_share(each, peaks[dtype])) for each in samples),
            is_cloud=True,
        )
        for (dtype, layout), samples in sorted(groups.items(), key=lambda group: (group[0][0] != usual, group[0]))
    ]
    told = ", ".join(f"{each.label} {max(y for _, y in each.points):.0f} %" for each in series)
    figure = curves(
        series,
        name="gemm",
        title="Matrix products",
        description=f"Share of the card's dense peak that each of {counts.total()} products reached, over its operations. "
        f"Best: {told}.",
        across=Axis("operations of the product", lambda value: f"{value:.0e}".replace("e+", "e")),
        up=Axis("share of the peak, %", lambda value: f"{value:,.4g}"),
    )
    return [Drawn("Matrix products", figure)]


def product_flops(sample: GemmSample) -> float:
    """Operations of a product."""
    return 2.0 * sample.batch * sample.m * sample.n * sample.k


def gemm_share(sample: GemmSample, peak_flops_per_s: float) -> float:
    """Share of the peak that a product reached."""
    return product_flops(sample) / sample.time_s / peak_flops_per_s


def size_text(size_bytes: float) -> str:
    """A size in whole binary units, such as 16 MiB."""
    for unit, name in ((GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.0f} {name}"
    return f"{size_bytes:.0f} B"
