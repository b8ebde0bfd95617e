"""Time by size of several ways to do one thing, on two logarithmic axes, with measured points."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from app.report.figures.axes import Axis, fitted
from app.report.figures.svg import element, figure

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BASE = 760.0, 420.0, 78.0, 560.0, 24.0, 376.0
COLOURS = 10
"""Classes `way-0` to `way-9` of the stylesheet."""


@dataclass(frozen=True, slots=True)
class Times:
    """One curve, or with `is_measured` a cloud of points."""

    label: str
    points: tuple[tuple[float, float], ...]
    """Size and seconds."""
    is_measured: bool = False
    is_chosen: bool = False
    """Whether it is the one that is taken, drawn in a colour of its own."""
    is_dashed: bool = False


def times(
    curves: Sequence[Times],
    *,
    name: str,
    title: str,
    description: str,
    size_words: Callable[[float], str],
    time_words: Callable[[float], str],
) -> Markup:
    """The figure; every point carries its two numbers (`data-x`, `data-y`), bytes and seconds.

    Args:
        curves: what is drawn, first at the top of the legend.
        name: unique on the page.
        title: what is shown.
        description: what a reader who does not see it must know.
        size_words: how a size is written.
        time_words: how a time is written.
    """
    xs, ys = ([point[place] for curve in curves for point in curve.points] for place in (0, 1))
    # Sizes span seven decades and times five: on linear axes one would see the last two points.
    across = fitted(min(xs), max(xs), start=_LEFT, end=_RIGHT)
    upwards = fitted(min(ys), max(ys), start=_BASE, end=_TOP)
    shapes = [*_grid(across, upwards, size_words, time_words)]
    for number, curve in enumerate(curves):
        shapes.append(_drawn(curve, across, upwards, kind=_kind(curve, number)))
        shapes.append(_entry(curve, _TOP + 10 + 20 * number, kind=_kind(curve, number)))
    return figure(shapes, name=name, title=title, description=description, width=_WIDTH, height=_HEIGHT)


def _kind(curve: Times, number: int) -> str:
    if curve.is_measured:
        return "way measured"
    if curve.is_chosen:
        return "way chosen"
    return f"way way-{number % COLOURS}{' dashed' if curve.is_dashed else ''}"


def _grid(
    across: Axis, upwards: Axis, size_words: Callable[[float], str], time_words: Callable[[float], str]
) -> Iterator[Markup]:
    # Powers of 16 in bytes, since nobody sends powers of ten, and powers of ten in seconds.
    for size in _powers(16.0, across, first=1024.0):
        at = across.place(size)
        yield element("line", x1=at, x2=at, y1=_TOP, y2=_BASE, class_="grid")
        yield element("text", size_words(size), x=at, y=_BASE + 16, text_anchor="middle", class_="tick")
    for tick in _powers(10.0, upwards, first=1e-7):
        at = upwards.place(tick)
        yield element("line", x1=_LEFT, x2=_RIGHT, y1=at, y2=at, class_="grid")
        yield element("text", time_words(tick), x=_LEFT - 6, y=at + 4, text_anchor="end", class_="tick")
    yield element("text", "microseconds", x=4, y=12, class_="axis-name")
    yield element("text", "bytes", x=_RIGHT, y=_BASE + 34, text_anchor="end", class_="axis-name")


def _powers(base: float, axis: Axis, *, first: float) -> Iterator[float]:
    """The products of `first` and powers of a base that lie on an axis."""
    value = first
    while value <= axis.high:
        if value >= axis.low:
            yield value
        value *= base


def _drawn(curve: Times, across: Axis, upwards: Axis, *, kind: str) -> Markup:
    placed = [(x, y, across.place(x), upwards.place(y)) for x, y in curve.points]
    if curve.is_measured:
        dots = [element("circle", cx=cx, cy=cy, r=3.0, data_x=repr(x), data_y=repr(y)) for x, y, cx, cy in placed]
        return element("g", *dots, class_=kind, data_series=curve.label)
    line = element("polyline", points=" ".join(f"{cx:.1f},{cy:.1f}" for _, _, cx, cy in placed), fill="none")
    ends = [element("circle", cx=cx, cy=cy, r=1.5, data_x=repr(x), data_y=repr(y)) for x, y, cx, cy in placed]
    return element("g", line, *ends, class_=kind, data_series=curve.label)


def _entry(curve: Times, y: float, *, kind: str) -> Markup:
    x = _RIGHT + 18
    mark = (
        element("circle", cx=x + 9, cy=y - 4, r=3.5)
        if curve.is_measured
        else element("line", x1=x, x2=x + 18, y1=y - 4, y2=y - 4)
    )
    return element("g", element("g", mark, class_=kind), element("text", curve.label, x=x + 24, y=y))
