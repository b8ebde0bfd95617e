"""The curves of a calibration as a page that needs no other file, or as an image drawn by matplotlib."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.cli.rendering.profile_tables import bus_gb_per_s, headline, product_tflops, size_text, tables
from cost_models.calibration import CalibrationDocument
from cost_models.errors import MeasurementError
from cost_models.units import TERA

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 320, 56, 40
_COLOURS = ("#1b6ca8", "#c8553d", "#3d7a4a", "#8a5a9e", "#a67c00", "#5c6670")


@dataclass(frozen=True, slots=True)
class Line:
    """One curve or cloud of a plot."""

    label: str
    points: tuple[tuple[float, float], ...]
    is_cloud: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """One pair of axes; the horizontal one is logarithmic."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]


def plots_of(document: CalibrationDocument) -> list[Plot]:
    """Bus bandwidth of every operation for the largest groups, and throughput of every product."""
    result = []
    groups = sorted({(f.ranks_per_node, f.ranks) for f in document.collective_fits}, key=lambda g: (-g[1], -g[0]))
    for per_node, ranks in groups[:4]:
        chosen = [
            f
            for f in document.collective_fits
            if (f.ranks_per_node, f.ranks, f.concurrent_groups) == (per_node, ranks, 1) and f.stride == 1
        ]
        lines = tuple(
            Line(f.op, tuple((size, bus_gb_per_s(f, i)) for i, size in enumerate(f.size_bytes))) for f in chosen
        )
        if lines:
            title = f"Collectives of {ranks} ranks, {per_node} a node"
            result.append(Plot(title, "bytes", "bus bandwidth, GB/s", lines))
    kinds = sorted({(s.layout, s.dtype) for s in document.gemm if s.batch == 1})
    lines = tuple(
        Line(
            f"{layout} {dtype}",
            tuple(
                (2.0 * s.m * s.n * s.k / TERA, product_tflops(s))
                for s in document.gemm
                if (s.layout, s.dtype) == (layout, dtype) and s.batch == 1
            ),
            is_cloud=True,
        )
        for layout, dtype in kinds
    )
    if lines:
        result.append(Plot("Matrix products", "10^12 operations in the product", "TFLOP/s", lines))
    return result


def write_html(document: CalibrationDocument, path: Path) -> None:
    """Writes a page with the tables and plots; no script, nothing loaded."""
    from rich.console import Console

    console = Console(record=True, width=150, file=Path("/dev/null").open("w", encoding="utf-8"))  # noqa: SIM115 - closed below
    try:
        for table in tables(document):
            console.print(table)
        text = html.escape(console.export_text())
    finally:
        console.file.close()
    head = "".join(f"<p>{html.escape(line)}</p>" for line in headline(document))
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in document.notes)
    drawings = "".join(f"<h2>{html.escape(plot.title)}</h2>{svg(plot)}" for plot in plots_of(document))
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(document.name)}</title>'
        "<style>body{font:15px system-ui,sans-serif;margin:2rem;max-width:72rem}pre{overflow-x:auto;font-size:12px}"
        f"svg{{max-width:100%}}</style><h1>{html.escape(document.name)}</h1>{head}{drawings}"
        f"<h2>Tables</h2><pre>{text}</pre><ul>{notes}</ul></html>\n",
        encoding="utf-8",
    )


def svg(plot: Plot) -> str:
    """The plot as scalable graphics with a legend."""
    points = [point for line in plot.lines for point in line.points]
    low, high = (math.log2(edge(x for x, _ in points)) for edge in (min, max))
    top = max(y for _, y in points) * 1.05
    right = _WIDTH - 150

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log2(x) - low) / max(high - low, 1e-9)
        return _LEFT + across * (right - _LEFT), _HEIGHT - _BOTTOM - y / top * (_HEIGHT - _BOTTOM - 10)

    parts = [_axes(plot, right, top, low, high)]
    for number, line in enumerate(plot.lines):
        colour = _COLOURS[number % len(_COLOURS)]
        placed = [place(x, y) for x, y in line.points]
        if line.is_cloud:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in placed]
        else:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        label = html.escape(line.label)
        parts.append(f'<text x="{right + 12}" y="{24 + 18 * number}" fill="{colour}" font-size="13">{label}</text>')
    title = html.escape(plot.title)
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}">{"".join(parts)}</svg>'


def _axes(plot: Plot, right: float, top: float, low: float, high: float) -> str:
    base = _HEIGHT - _BOTTOM
    lines = [f'<path d="M{_LEFT},10 V{base} H{right}" fill="none" stroke="#888"/>']
    for share in (0.0, 0.5, 1.0):
        y = base - share / 1.05 * (base - 10)
        lines.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.0f}" text-anchor="end" font-size="12">{top / 1.05 * share:.0f}</text>'
        )
    for value, label in _ticks(plot, 2.0**low, 2.0**high):
        x = _LEFT + (math.log2(value) - low) / max(high - low, 1e-9) * (right - _LEFT)
        lines.append(f'<text x="{x:.0f}" y="{base + 16}" text-anchor="middle" font-size="12">{label}</text>')
    middle = (_LEFT + right) / 2
    lines.append(f'<text x="{middle:.0f}" y="{base + 34}" text-anchor="middle" font-size="12">{plot.x_label}</text>')
    lines.append(f'<text x="{_LEFT + 6}" y="20" font-size="12">{plot.y_label}</text>')
    return "".join(lines)


def _ticks(plot: Plot, low: float, high: float) -> list[tuple[float, str]]:
    """Positions on the logarithmic axis with their labels: whole KiB, MiB and GiB, or powers of ten."""
    if plot.x_label == "bytes":
        return [(2.0**power, size_text(2.0**power)) for power in range(0, 60, 5) if low * 0.99 <= 2.0**power <= high]
    return [(10.0**power, f"{10.0**power:g}") for power in range(-6, 9) if low <= 10.0**power <= high]


def write_png(document: CalibrationDocument, path: Path) -> None:
    """Writes the plots as an image.

    Raises:
        MeasurementError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise MeasurementError(
            "an image needs matplotlib, which is not installed",
            hint="Run pip install matplotlib, or use --html, which needs nothing.",
        ) from error
    plots = plots_of(document)
    figure = Figure(figsize=(9, 4 * max(len(plots), 1)), layout="constrained")
    axes: Sequence[Any] = figure.subplots(max(len(plots), 1), 1, squeeze=False)[:, 0]
    for axis, plot in zip(axes, plots, strict=False):
        for line in plot.lines:
            x, y = zip(*sorted(line.points), strict=True)
            axis.plot(x, y, ".", label=line.label) if line.is_cloud else axis.plot(x, y, label=line.label)
        axis.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label, xscale="log")
        axis.legend()
    figure.savefig(path, dpi=110)
