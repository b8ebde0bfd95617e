"""What changes with one thing: small panels under each other that share the axis of what is varied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from app.report.figures.axes import Axis, from_zero
from app.report.figures.svg import element, figure

_WIDTH = 360.0
_LEFT, _RIGHT = 46.0, 340.0
_PANEL, _ABOVE, _UNDER = 130.0, 38.0, 14.0
"""Height of a panel, and what of it is left free above the plot for its title and under it."""
_BOTTOM = 38.0


@dataclass(frozen=True, slots=True)
class Panel:
    """One quantity."""

    name: str
    title: str
    """With its unit."""
    values: tuple[float | None, ...]
    """One for each variant; None where no plan exists."""
    told: tuple[str, ...]
    """The values as they are written beside their points."""
    limit: float | None = None
    """A value that must not be exceeded."""


def curves(
    variants: Sequence[str],
    panels: Sequence[Panel],
    *,
    asked: int,
    told: Sequence[str],
    axis: str,
    name: str,
    title: str,
    description: str,
) -> Markup:
    """The panels; a variant without a plan is a cross on the base line, and the curve has a gap there.

    Args:
        variants: what is varied, in words, in order.
        panels: the quantities.
        asked: place of the variant that was asked for.
        told: what each variant comes to in words, or why it has no plan.
        axis: name of what is varied, with its unit.
        name: unique on the page.
        title: what is shown.
        description: what a reader who does not see it must know.
    """
    height = len(panels) * _PANEL + _BOTTOM
    places = _places(len(variants))
    shapes: list[Markup] = []
    for index, panel in enumerate(panels):
        shapes += _panel(panel, places, top=index * _PANEL, asked=asked, told=told, variants=variants)
    for place, (x, variant) in enumerate(zip(places, variants, strict=True)):
        kind = "variant tick asked" if place == asked else "variant tick"
        shapes.append(element("text", variant, x=x, y=height - _BOTTOM + 8, text_anchor="middle", class_=kind))
    shapes.append(element("text", axis, x=_RIGHT, y=height - 8, text_anchor="end", class_="axis-name"))
    return figure(shapes, name=name, title=title, description=description, width=_WIDTH, height=height)


def _places(count: int) -> list[float]:
    """Coordinates of the variants; these double from one to the next, so that equal steps are a logarithmic axis."""
    inset = 24.0
    step = (_RIGHT - _LEFT - 2 * inset) / (count - 1) if count > 1 else 0.0
    return [_LEFT + inset + step * place for place in range(count)]


def _panel(
    panel: Panel,
    places: Sequence[float],
    *,
    top: float,
    asked: int,
    told: Sequence[str],
    variants: Sequence[str],
) -> Iterator[Markup]:
    # From 0, so that a curve that looks flat is flat; the numbers beside the points tell the rest.
    known = [value for value in panel.values if value is not None]
    base = top + _PANEL - _UNDER
    upwards = from_zero(max([*known, panel.limit or 0.0]), start=base, end=top + _ABOVE)
    yield element("text", panel.title, x=4, y=top + 14, class_="panel-name")
    for tick in upwards.ticks(3):
        at = upwards.place(tick)
        yield element("line", x1=_LEFT, x2=_RIGHT, y1=at, y2=at, class_="grid")
        yield element("text", f"{tick:,g}", x=_LEFT - 6, y=at + 4, text_anchor="end", class_="tick")
    if panel.limit is not None:
        at = upwards.place(panel.limit)
        yield element(
            "line", x1=_LEFT, x2=_RIGHT, y1=at, y2=at, class_="limit", data_limit=f"{panel.limit:.6g}", data_kind=panel.name
        )  # fmt: skip
    yield from _line(panel, places, upwards)
    for place, (x, value) in enumerate(zip(places, panel.values, strict=True)):
        if value is None:
            yield _cross(x, base - 6.0, variants[place], told[place])
            continue
        at = upwards.place(value)
        kind = "mark asked" if place == asked else "mark"
        yield element(
            "circle", element("title", f"{variants[place]}: {told[place]}"), cx=x, cy=at, r=4 if place == asked else 3, class_=kind,
            data_variant=variants[place], data_kind=panel.name, data_value=f"{value:.6g}",
        )  # fmt: skip
        # Written above the point, or under it where the panel's top would cut it off or the limit strike it through.
        below = at - 16 <= top + 14 or _meets(at, None if panel.limit is None else upwards.place(panel.limit))
        yield element(
            "text", panel.told[place], x=x, y=at + 16 if below else at - 8, text_anchor="middle", class_="value",
            data_below="" if below else None,
        )  # fmt: skip


def _meets(at: float, limit: float | None) -> bool:
    """Whether a line at `limit` crosses what is written above a point at `at`, here or on a chart's somewhat shorter scale."""
    return limit is not None and 4.0 < at - limit < 28.0


def _line(panel: Panel, places: Sequence[float], upwards: Axis) -> Iterator[Markup]:
    """The pieces of the curve between neighbouring variants that both have a plan."""
    points = list(zip(places, panel.values, strict=True))
    # No line leads across a gap: what lies between two variants around one without a plan is not known.
    for (x1, first), (x2, second) in pairwise(points):
        if first is not None and second is not None:
            yield element("line", x1=x1, y1=upwards.place(first), x2=x2, y2=upwards.place(second), class_="curve")


def _cross(x: float, y: float, variant: str, told: str) -> Markup:
    strokes = f"M{x - 4:g} {y - 4:g}l8 8m0 -8l-8 8"
    return element("path", element("title", f"{variant}: {told}"), d=strokes, class_="no-plan", data_variant=variant)
