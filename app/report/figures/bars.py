"""Bars that lie in rows of a table: stacked parts, whiskers and marks on an axis that all rows of a figure share.

Places are percentages of the drawing's width, so that a bar stretches with its column while its height, its lines and the
patterns of its parts keep their size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from markupsafe import Markup

from app.report.figures.svg import Value, element, number


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a stacked bar."""

    kind: str
    """Decides the colour (class `kind-...`) and is told as `data-kind`."""
    size: float
    label: str
    """What is shown where the pointer rests."""
    tier: str | None = None
    """How the number came about; lies over the colour as a pattern."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across a bar, such as a limit."""

    kind: str
    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Whisker:
    """A range beside a value."""

    low: float
    high: float
    label: str


def ticks(until: float, *, start: float = 0.0, most: int = 5) -> list[float]:
    """Round values between two ends: multiples of 1, 2 or 5 times a power of ten, at most one more than `most`."""
    width = until - start
    power = 10.0 ** floor(log10(width / most))
    step = next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if width <= power * factor * most * (1.0 + 1e-9))
    return [step * count for count in range(ceil(start / step - 1e-9), floor(until / step + 1e-9) + 1)]


def bar(
    parts: Iterable[Part],
    *,
    until: float,
    whisker: Whisker | None = None,
    marks: Sequence[Mark] = (),
    height: int = 20,
    **data: Value | None,
) -> Markup:
    """A stacked bar on an axis from 0 to `until`, which the text beside it repeats.

    Args:
        parts: from 0 on, one after the other.
        until: value at the right end, in the unit of the sizes.
        whisker: a range over the bar.
        marks: lines across the whole height.
        height: height in CSS pixels.
        data: further attributes, such as `data_stage`.
    """
    shapes, at = [], 0.0
    for part in parts:
        shown: dict[str, Value] = {
            "x": _place(at, 0.0, until),
            "width": _width(part.size, 0.0, until),
        }
        title = element("title", part.label)
        told: dict[str, Value | None] = {
            "data_kind": part.kind,
            "data_value": f"{part.size:.6g}",
            "data_tier": part.tier,
        }
        shapes.append(element("rect", title, class_=f"kind-{part.kind}", **told, **shown))
        # A pattern besides the colour: the origin must be told apart in black and white as well.
        if part.tier is not None:
            shapes.append(element("rect", title, fill=f"url(#tier-{part.tier})", **shown))
        at += part.size
    if whisker is not None:
        shapes.append(_whisker(whisker, until=until, height=height))
    for mark in marks:
        x = _place(mark.at, 0.0, until)
        line = element(
            "line", element("title", mark.label), x1=x, x2=x, y1=0, y2=height, class_=f"mark-{mark.kind}",
            data_mark=mark.kind, data_value=f"{mark.at:.6g}",
        )  # fmt: skip
        shapes.append(line)
    # Marks and whiskers stand out above and below the bar, or they would be lost on its colours.
    kind = "bar stack marked" if marks or whisker else "bar stack"
    # Hidden from screen readers, because the row that holds it says the same in text.
    return element("svg", *shapes, class_=kind, width="100%", height=height, aria_hidden="true", **data)


def length(kind: str, share: float, *, tier: str | None = None) -> Markup:
    """A bar of one part that is `share` of its column long, beside its number in a table."""
    width = f"{number(100.0 * share)}%"
    # Heights are the stylesheet's: a page has hundreds of these.
    shapes = [element("rect", class_=f"kind-{kind}", width=width)]
    if tier is not None:
        shapes.append(element("rect", fill=f"url(#tier-{tier})", width=width))
    return element("svg", *shapes, class_="length", aria_hidden="true")


def interval(
    low: float, value: float, high: float, *, start: float, until: float, label: str, **data: Value | None
) -> Markup:
    """A range as a bar that begins where the range does, with a line at the value; the axis need not begin at 0."""
    x = _place(value, start, until)
    return element(
        "svg",
        element("rect", element("title", label), class_="kind-range", x=_place(low, start, until),
                width=_width(high - low, start, until), y=3, height=10),
        element("line", x1=x, x2=x, y1=0, y2=16, class_="median"),
        class_="bar", width="100%", height=16, aria_hidden="true",
        data_low=f"{low:.6g}", data_value=f"{value:.6g}", data_high=f"{high:.6g}", **data,
    )  # fmt: skip


def axis(values: Sequence[float], labels: Sequence[str], *, until: float, start: float = 0.0) -> Markup:
    """The axis under bars: a label at each value, those at the ends inside the drawing."""
    shapes = []
    for value, label in zip(values, labels, strict=True):
        share = (value - start) / (until - start)
        # A label centred on an end would hang out of the drawing.
        anchor = "start" if share < 0.04 else "end" if share > 0.96 else "middle"
        x = _place(value, start, until)
        shapes.append(element("line", x1=x, x2=x, y1=0, y2=4, class_="axis"))
        shapes.append(element("text", label, x=x, y=15, text_anchor=anchor))
    return element("svg", *shapes, class_="bar axis", width="100%", height=18, aria_hidden="true")


def _whisker(whisker: Whisker, *, until: float, height: int) -> Markup:
    low, high = _place(whisker.low, 0.0, until), _place(whisker.high, 0.0, until)
    middle = height // 2
    return element(
        "g",
        element("title", whisker.label),
        element("line", x1=low, x2=high, y1=middle, y2=middle),
        element("line", x1=low, x2=low, y1=middle - 4, y2=middle + 4),
        element("line", x1=high, x2=high, y1=middle - 4, y2=middle + 4),
        class_="whisker",
        data_low=f"{whisker.low:.6g}",
        data_high=f"{whisker.high:.6g}",
    )


def _place(value: float, start: float, until: float) -> str:
    return f"{number(100.0 * (value - start) / (until - start))}%"


def _width(size: float, start: float, until: float) -> str:
    return f"{number(100.0 * size / (until - start), digits=3)}%"
