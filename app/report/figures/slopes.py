"""How an order changed: the same things in two columns, each joined to itself by a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from app.report.figures.svg import element, figure

_WIDTH = 430.0
_LEFT, _RIGHT = 212.0, 326.0
"""Where the lines begin and end; labels stand outside of them."""
_ABOVE, _ROW, _UNDER = 34.0, 24.0, 6.0


@dataclass(frozen=True, slots=True)
class Slope:
    """One thing in both orders."""

    before: int
    """Its place, from 1."""
    after: int
    label: str
    value: str
    """What is known of it afterwards, written beside its second place."""
    told: str
    is_measured: bool


def slopes(entries: Sequence[Slope], *, before: str, after: str, name: str, title: str, description: str) -> Markup:
    """The two columns; places keep their numbers, but those that no entry has take no room.

    Args:
        entries: at least one; no two share a place of one column.
        before: heading of the first column.
        after: heading of the second column.
        name: unique on the page.
        title: what is shown.
        description: what a reader who does not see it must know.
    """
    # Rows, and not places: the figure may leave out what lies between.
    left = {entry.before: row for row, entry in enumerate(sorted(entries, key=lambda entry: entry.before))}
    right = {entry.after: row for row, entry in enumerate(sorted(entries, key=lambda entry: entry.after))}
    shapes = [
        element("text", before, x=_LEFT - 8, y=14, text_anchor="end", class_="axis-name"),
        element("text", after, x=_WIDTH - 2, y=14, text_anchor="end", class_="axis-name"),
        *(shape for entry in entries for shape in _entry(entry, _y(left[entry.before]), _y(right[entry.after]))),
    ]
    height = _ABOVE + len(entries) * _ROW + _UNDER
    return figure(shapes, name=name, title=title, description=description, width=_WIDTH, height=height)


def _y(row: int) -> float:
    return _ABOVE + row * _ROW + _ROW / 2


def _entry(entry: Slope, start: float, end: float) -> Iterator[Markup]:
    # Against the others that are shown: what only moves up because another one is gone stays level.
    change = "up" if end < start else "down" if end > start else "same"
    first = " first" if entry.after == 1 else ""
    yield element(
        "g",
        element("title", entry.told),
        element("line", x1=_LEFT, y1=start, x2=_RIGHT, y2=end, class_=f"slope {change}{first}"),
        element("circle", cx=_LEFT, cy=start, r=3, class_="ring"),
        # What was measured is a full point, what is only predicted a ring.
        element("circle", cx=_RIGHT, cy=end, r=4, class_="mark" if entry.is_measured else "ring"),
        data_before=entry.before,
        data_after=entry.after,
    )
    yield element("text", f"{entry.label}", x=_LEFT - 10, y=start + 4, text_anchor="end", class_="slope-label")
    yield element("text", entry.value, x=_RIGHT + 10, y=end + 4, class_="slope-label")
