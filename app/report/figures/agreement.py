"""Predicted against measured: a point for each measurement on two equal axes, and the line on which both agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from app.report.figures.axes import Axis, fitted
from app.report.figures.svg import element, figure

_WIDTH, _HEIGHT = 360.0, 352.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 346.0, 24.0, 308.0
_ROOM_X, _ROOM_Y = 15.0, 12.0
"""Room that a label needs, so that none is written over another."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One quantity as it was predicted and as it was measured."""

    label: str
    """Written beside its point."""
    told: str
    """What is shown where the pointer rests."""
    predicted: float
    measured: float
    low: float | None = None
    high: float | None = None
    """The predicted range."""
    corrected: float | None = None
    """The prediction with what was learnt before it was measured."""


def agreement(pairs: Sequence[Pair], *, unit: str, name: str, title: str, description: str) -> Markup:
    """The pairs with their ranges; a point right of the line was predicted too large.

    Args:
        pairs: at least one, all positive.
        unit: of both axes, such as "s".
        name: unique on the page.
        title: what is shown.
        description: what a reader who does not see it must know.
    """
    across, upwards = _axes(pairs)
    shapes = [
        *_grid(across, upwards, unit),
        *(shape for pair in pairs for shape in _range(pair, across, upwards)),
        *(_point(pair, across, upwards) for pair in pairs),
        *_labels(pairs, across, upwards),
    ]
    return figure(shapes, name=name, title=title, description=description, width=_WIDTH, height=_HEIGHT)


def _axes(pairs: Sequence[Pair]) -> tuple[Axis, Axis]:
    # One scale for both, or the line on which they agree would not be the diagonal.
    values = [
        value
        for pair in pairs
        for value in (pair.predicted, pair.measured, pair.low, pair.high, pair.corrected)
        if value is not None
    ]
    low, high = min(values), max(values)
    return fitted(low, high, start=_LEFT, end=_RIGHT), fitted(low, high, start=_BOTTOM, end=_TOP)


def _grid(across: Axis, upwards: Axis, unit: str) -> Iterator[Markup]:
    for tick in across.ticks(5):
        x, y = across.place(tick), upwards.place(tick)
        yield element("line", x1=x, x2=x, y1=_TOP, y2=_BOTTOM, class_="grid")
        yield element("line", x1=_LEFT, x2=_RIGHT, y1=y, y2=y, class_="grid")
        yield element("text", f"{tick:g}", x=x, y=_BOTTOM + 16, text_anchor="middle", class_="tick")
        yield element("text", f"{tick:g}", x=_LEFT - 6, y=y + 4, text_anchor="end", class_="tick")
    yield element("line", x1=_LEFT, y1=_BOTTOM, x2=_RIGHT, y2=_TOP, class_="agree")
    scale = ", logarithmic" if across.log else ""
    yield element("text", f"predicted {unit}{scale}", x=_RIGHT, y=_BOTTOM + 36, text_anchor="end", class_="axis-name")
    yield element("text", f"measured {unit}", x=4, y=13, class_="axis-name")


def _range(pair: Pair, across: Axis, upwards: Axis) -> Iterator[Markup]:
    if pair.low is not None and pair.high is not None:
        # At the height of what was measured: the line of agreement crosses it where the range holds that.
        y, low, high = upwards.place(pair.measured), across.place(pair.low), across.place(pair.high)
        yield element("line", x1=low, x2=high, y1=y, y2=y, class_="reach")
        for x in (low, high):
            yield element("line", x1=x, x2=x, y1=y - 3, y2=y + 3, class_="reach")


def _point(pair: Pair, across: Axis, upwards: Axis) -> Markup:
    y = upwards.place(pair.measured)
    shapes = [element("title", pair.told), element("circle", cx=across.place(pair.predicted), cy=y, r=5, class_="ring")]
    if pair.corrected is not None:
        # Inside the ring where nothing was learnt yet.
        shapes.append(element("circle", cx=across.place(pair.corrected), cy=y, r=3.5, class_="mark"))
    return element(
        "g", *shapes, class_="pair-of", data_label=pair.label, data_predicted=f"{pair.predicted:.6g}",
        data_measured=f"{pair.measured:.6g}", data_corrected=None if pair.corrected is None else f"{pair.corrected:.6g}",
    )  # fmt: skip


def _labels(pairs: Sequence[Pair], across: Axis, upwards: Axis) -> Iterator[Markup]:
    """The labels, on the side of a point that is away from the line, where there is room."""
    taken: list[tuple[float, float]] = []
    for pair in pairs:
        x, y = across.place(pair.predicted), upwards.place(pair.measured)
        is_right = pair.predicted >= pair.measured
        x, y = (x + 8.0, y + 13.0) if is_right else (x - 8.0, y - 7.0)
        if all(abs(x - other_x) > _ROOM_X or abs(y - other_y) > _ROOM_Y for other_x, other_y in taken):
            taken.append((x, y))
            yield element("text", pair.label, x=x, y=y, text_anchor="start" if is_right else "end", class_="rank")
