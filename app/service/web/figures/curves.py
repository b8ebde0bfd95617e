"""Curves and clouds of points over a logarithmic axis, with a legend: what a calibration has measured, size by size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from app.report.figures.svg import element, figure

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _LEGEND = 760.0, 300.0, 52.0, 24.0, 40.0, 190.0


@dataclass(frozen=True, slots=True)
class Series:
    """One curve or one cloud."""

    label: str
    kind: str
    """Names its colour in the stylesheet (`series-<kind>`)."""
    points: tuple[tuple[float, float], ...]
    is_cloud: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: what it shows and how its values are written."""

    label: str
    write: Callable[[float], str]
    base: float = 10.0
    """Ticks of the logarithmic axis stand at powers of this."""


def curves(series: Sequence[Series], *, name: str, title: str, description: str, across: Axis, up: Axis) -> Markup:
    """The figure. `across` is logarithmic; `up` is linear and begins at zero.

    Every point carries its two numbers (`data-x`, `data-y`) in the units of the series.
    """
    xs = [x for each in series for x, _ in each.points]
    top = _round_up(max(y for each in series for _, y in each.points))
    low, high = math.log(min(xs)), math.log(max(xs))
    right, base = _WIDTH - _LEGEND, _HEIGHT - _BOTTOM

    # Times span five decades of sizes; rates, which a reader compares by height, begin at zero.
    def place(x: float, y: float) -> tuple[float, float]:
        along = (math.log(x) - low) / (high - low) if high > low else 0.5
        return _LEFT + along * (right - _LEFT), base - y / top * (base - _TOP)

    shapes = [*_axes(across, up, low=math.exp(low), high=math.exp(high), top=top, place=place)]
    for number, each in enumerate(series):
        shapes.append(_drawn(each, place))
        shapes.append(_entry(each, right + 16, _TOP + 18 * number))
    return figure(shapes, name=name, title=title, description=description, width=_WIDTH, height=_HEIGHT)


Place = Callable[[float, float], tuple[float, float]]


def _drawn(series: Series, place: Place) -> Markup:
    placed = [(x, y, *place(x, y)) for x, y in series.points]
    dots = [
        element("circle", cx=cx, cy=cy, r=2.5 if series.is_cloud else 2.0, data_x=repr(x), data_y=repr(y))
        for x, y, cx, cy in placed
    ]
    line = [] if series.is_cloud else [
        element("polyline", points=" ".join(f"{cx:.1f},{cy:.1f}" for _, _, cx, cy in placed), fill="none")
    ]  # fmt: skip
    kind = "measured-cloud" if series.is_cloud else "measured-curve"
    return element("g", *line, *dots, class_=f"{kind} series-{series.kind}", data_series=series.label)


def _entry(series: Series, x: float, y: float) -> Markup:
    mark = (
        element("circle", cx=x + 8, cy=y - 4, r=3.5)
        if series.is_cloud
        else element("polyline", points=f"{x:.0f},{y - 4:.0f} {x + 16:.0f},{y - 4:.0f}", fill="none")
    )
    kind = "measured-cloud" if series.is_cloud else "measured-curve"
    return element(
        "g", element("g", mark, class_=f"{kind} series-{series.kind}"), element("text", series.label, x=x + 22, y=y)
    )


def _axes(across: Axis, up: Axis, *, low: float, high: float, top: float, place: Place) -> list[Markup]:
    right, base = _WIDTH - _LEGEND, _HEIGHT - _BOTTOM
    shapes = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = base - share * (base - _TOP)
        shapes.append(element("path", d=f"M{_LEFT:.0f} {y:.1f}H{right:.0f}", class_="axis"))
        shapes.append(element("text", up.write(top * share), x=_LEFT - 6, y=y + 4, text_anchor="end", class_="quiet"))
    first, last = math.ceil(math.log(low, across.base) - 1e-9), math.floor(math.log(high, across.base) + 1e-9)
    step = max(1, math.ceil((last - first + 1) / 7))  # labels of more than seven ticks would touch
    for power in range(first, last + 1, step):
        x, _ = place(across.base**power, 0.0)
        label = across.write(across.base**power)
        shapes.append(element("text", label, x=x, y=base + 16, text_anchor="middle", class_="quiet"))
    middle = (_LEFT + right) / 2
    shapes.append(element("text", across.label, x=middle, y=base + 34, text_anchor="middle", class_="quiet"))
    shapes.append(element("text", up.label, x=4, y=12, class_="quiet"))
    return shapes


def _round_up(value: float) -> float:
    """The next larger of 1, 2, 4, 6 and 8 times a power of ten, whose quarters are short numbers."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * power for step in (1.0, 2.0, 4.0, 6.0, 8.0, 10.0) if step * power >= value)
