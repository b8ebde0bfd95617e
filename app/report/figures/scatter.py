"""Plans as points: time to the right, memory upwards, the number of GPUs by size and colour; each point is a link."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from app.report.figures.axes import Axis, fitted, from_zero_or_fitted
from app.report.figures.svg import element, figure, number
from cost_models.units import GIB

SHADES = 7
"""Colours for numbers of GPUs; further numbers share one with their neighbours and differ in size."""
_WIDTH, _HEIGHT = 520.0, 380.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 508.0, 46.0, 338.0
_SMALLEST, _LARGEST = 4.0, 5.5
_APART = 10.0
"""Distance in units of the drawing below which a point lies on another."""
_PER_LINE = 12
"""Numbers of GPUs that one line of the legend has room for."""


@dataclass(frozen=True, slots=True)
class Point:
    """One plan."""

    step_time_s: float
    device_bytes: float
    gpus: int
    cost: str
    """In the words of the page, with its unit."""
    href: str
    rank: int | None
    """Its rank where it is listed."""
    split: str
    """Its degrees in short."""
    place: int
    """Its place among all plans, the fastest first."""


def scatter(points: Sequence[Point], *, name: str, title: str, description: str, capacity_bytes: float) -> Markup:
    """The points with their axes, a line at the card's memory, and a legend of the numbers of GPUs.

    Args:
        points: at least one.
        name: unique on the page.
        title: what is shown.
        description: what a reader who does not see it must know.
        capacity_bytes: memory of one GPU; 0 draws no line.
    """
    across, upwards = _axes(points, capacity_bytes)
    counts = sorted({point.gpus for point in points})
    shapes = [
        *_grid(across, upwards),
        *_limit(upwards, capacity_bytes / GIB),
        *_legend(counts),
        # The largest first, so that small points lie on top; listed plans above all others.
        *(
            _group([point for point in points if point.gpus == gpus and point.rank is None], across, upwards, counts)
            for gpus in reversed(counts)
        ),
        *(_group([point], across, upwards, counts) for point in points if point.rank is not None),
        *_ranks(points, across, upwards),
    ]
    # A group and not an image: an image's content is hidden from those who do not see it, and these points are links.
    return figure(shapes, name=name, title=title, description=description, width=_WIDTH, height=_HEIGHT, role="group")


def distinct(points: Sequence[Point], *, capacity_bytes: float) -> list[Point]:
    """The points without those that would lie on another of as many GPUs; listed plans all stay."""
    across, upwards = _axes(points, capacity_bytes)
    kept: list[Point] = []
    places: list[tuple[float, float, int]] = []
    for point in sorted(points, key=lambda point: point.rank is None):
        x, y = across.place(point.step_time_s), upwards.place(point.device_bytes / GIB)
        hidden = any(point.gpus == gpus and math.hypot(x - own_x, y - own_y) < _APART for own_x, own_y, gpus in places)
        if point.rank is not None or not hidden:
            kept.append(point)
            places.append((x, y, point.gpus))
    chosen = {id(point) for point in kept}
    return [point for point in points if id(point) in chosen]


def _axes(points: Sequence[Point], capacity_bytes: float) -> tuple[Axis, Axis]:
    times = [point.step_time_s for point in points]
    across = fitted(min(times), max(times), start=_LEFT, end=_RIGHT)
    # From 0 where it can be: how much a plan saves of the whole is the question. Points in a strip would hide each other, so
    # that the axis is cut there, which its name says.
    memory = [point.device_bytes / GIB for point in points]
    upwards = from_zero_or_fitted(min(memory), max(*memory, capacity_bytes / GIB), start=_BOTTOM, end=_TOP)
    return across, upwards


def _grid(across: Axis, upwards: Axis) -> Iterator[Markup]:
    for tick in across.ticks():
        at = across.place(tick)
        yield element("line", x1=at, x2=at, y1=_TOP, y2=_BOTTOM, class_="grid")
        yield element("text", f"{tick:g}", x=at, y=_BOTTOM + 15, text_anchor="middle", class_="tick")
    for tick in upwards.ticks():
        at = upwards.place(tick)
        yield element("line", x1=_LEFT, x2=_RIGHT, y1=at, y2=at, class_="grid")
        yield element("text", f"{tick:g}", x=_LEFT - 6, y=at + 4, text_anchor="end", class_="tick")
    scale = ", logarithmic" if across.log else ""
    yield element("text", f"seconds a step{scale}", x=_RIGHT, y=_BOTTOM + 33, text_anchor="end", class_="axis-name")
    cut = f", from {number(upwards.low, digits=0)} upwards" if upwards.low > 0.0 else ""
    yield element(
        "text", f"GiB on the fullest GPU{cut}", x=4, y=_TOP - 8, class_="axis-name",
        data_low=f"{upwards.low:.6g}", data_high=f"{upwards.high:.6g}",
    )  # fmt: skip


def _limit(upwards: Axis, capacity: float) -> Iterator[Markup]:
    if capacity:
        at = upwards.place(capacity)
        yield element("line", x1=_LEFT, x2=_RIGHT, y1=at, y2=at, class_="limit", data_limit_gib=f"{capacity:.1f}")
        yield element(
            "text", f"memory of the GPU, {capacity:.1f} GiB", x=_RIGHT, y=at - 5, text_anchor="end", class_="limit-name"
        )


def _legend(counts: Sequence[int]) -> Iterator[Markup]:
    shown = counts if len(counts) <= _PER_LINE else _spread(counts, _PER_LINE)
    yield element("text", "GPUs", x=4, y=16, class_="axis-name")
    for place, gpus in enumerate(shown):
        x = _LEFT + 4 + place * 38.0
        yield element("circle", cx=x, cy=12, r=_radius(gpus, counts), class_=f"plan-dot gpus-{shade(gpus, counts)}")
        yield element("text", f"{gpus:,}", x=x + 8, y=16, class_="tick")


def _spread(counts: Sequence[int], most: int) -> list[int]:
    """So many of the numbers, evenly, with the first and the last."""
    places = {round(each * (len(counts) - 1) / (most - 1)) for each in range(most)}
    return [counts[place] for place in sorted(places)]


def shade(gpus: int, counts: Sequence[int]) -> int:
    """The colour of a number of GPUs, from 0 for the fewest to SHADES - 1 for the most."""
    # By place and not by value: 8, 16 and 1,024 GPUs are to be told apart, whatever lies between them.
    if len(counts) == 1:
        return SHADES - 1
    return round(counts.index(gpus) * (SHADES - 1) / (len(counts) - 1))


def _radius(gpus: int, counts: Sequence[int]) -> float:
    share = counts.index(gpus) / (len(counts) - 1) if len(counts) > 1 else 0.5
    return _SMALLEST + share * (_LARGEST - _SMALLEST)


def _group(points: Sequence[Point], across: Axis, upwards: Axis, counts: Sequence[int]) -> Markup:
    """Points on equally many GPUs, all listed or none."""
    if not points:
        return Markup()
    gpus, is_listed = points[0].gpus, points[0].rank is not None
    radius = _radius(gpus, counts) + (1.5 if is_listed else 0.0)
    return element(
        "g",
        *(_point(point, across, upwards, radius) for point in points),
        class_=f"plan-dot gpus-{shade(gpus, counts)}{' listed' if is_listed else ''}",
        data_gpus=gpus,
    )


def _point(point: Point, across: Axis, upwards: Axis, radius: float) -> Markup:
    listed = f"Plan {point.rank}: " if point.rank is not None else ""
    told = f"{listed}{point.step_time_s:.4g} s, {point.device_bytes / GIB:.1f} GiB, {point.gpus:,} GPUs, {point.cost}, {point.split}"
    circle = element(
        "circle",
        element("title", told),
        cx=number(across.place(point.step_time_s), digits=1),
        cy=number(upwards.place(point.device_bytes / GIB), digits=1),
        r=number(radius, digits=1),
        data_s=f"{point.step_time_s:.5g}",
        data_gib=f"{point.device_bytes / GIB:.5g}",
    )
    # Hundreds of stops on the way through the page help nobody; the table under the figure has the same links.
    return element("a", circle, href=point.href, data_rank=point.rank, tabindex=None if listed else -1)


def _ranks(points: Iterable[Point], across: Axis, upwards: Axis) -> Iterator[Markup]:
    """The ranks of listed plans beside their points, the best first, where there is room."""
    taken: list[tuple[float, float]] = []
    for point in sorted((each for each in points if each.rank is not None), key=lambda each: each.rank or 0):
        # To the left of its point: the fastest lies at the left edge, and slower plans to its right.
        x, y = across.place(point.step_time_s) - 9.0, upwards.place(point.device_bytes / GIB) + 4.0
        if all(abs(x - other_x) > 16.0 or abs(y - other_y) > 11.0 for other_x, other_y in taken):
            taken.append((x, y))
            yield element("text", str(point.rank), x=x, y=y, text_anchor="end", class_="rank")
