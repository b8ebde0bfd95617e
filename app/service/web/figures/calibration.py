"""The figures of a calibration: bus bandwidth over size for each group of ranks, and the efficiency of matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from app.service.web.figures.curves import Axis, Series, curves
from cost_models.calibration import CalibrationDocument, CollectiveFit, GemmSample, fit_collectives
from cost_models.hardware.link_tables import bus_factor
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


def gemm_figures(document: CalibrationDocument) -> list[Drawn]:
    """One figure for every number format: the share of the card's peak that each measured product reached."""
    peaks = document.device.peak_flops_per_s
    formats = sorted({sample.dtype for sample in document.gemm if sample.dtype in peaks})
    return [_gemms(document, dtype, peaks[dtype]) for dtype in formats]


def gemm_share(sample: GemmSample, peak_flops_per_s: float) -> float:
    """Share of the peak that a product reached."""
    return 2.0 * sample.batch * sample.m * sample.n * sample.k / sample.time_s / peak_flops_per_s


def _gemms(document: CalibrationDocument, dtype: str, peak_flops_per_s: float) -> Drawn:
    samples = [sample for sample in document.gemm if sample.dtype == dtype]
    series = []
    for layout, label in (("forward", "forward"), ("dgrad", "input gradient"), ("wgrad", "weight gradient")):
        points = tuple(
            (2.0 * s.batch * s.m * s.n * s.k, 100.0 * gemm_share(s, peak_flops_per_s))
            for s in samples
            if s.layout == layout
        )
        if points:
            series.append(Series(label, f"gemm-{layout}", points, is_cloud=True))
    best = max(y for each in series for _, y in each.points)
    title = f"Matrix products in {dtype}"
    figure = curves(
        series,
        name=f"gemm-{dtype}",
        title=title,
        description=f"Share of the card's dense peak of {peak_flops_per_s / 1e12:,.0f} TFLOP/s that each of {len(samples)} products "
        f"reached, over its operations; the best reached {best:.0f} %.",
        across=Axis("operations of the product", lambda value: f"{value:.0e}".replace("e+", "e")),
        up=Axis("share of the peak, %", lambda value: f"{value:,.4g}"),
    )
    return Drawn(title, figure)


def size_text(size_bytes: float) -> str:
    """A size in whole binary units, such as 16 MiB."""
    for unit, name in ((GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.0f} {name}"
    return f"{size_bytes:.0f} B"
