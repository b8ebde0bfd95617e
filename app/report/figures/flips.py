"""For each uncertain fact a bar over the factors that were tried, cut where another plan becomes the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from markupsafe import Markup

from app.report.figures.svg import element, figure

WIDTH, ROW, BAR, NAME = 480.0, 40.0, 16.0, 16.0
_TICKS = (0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)


@dataclass(frozen=True, slots=True)
class Bar:
    """One fact."""

    name: str
    segments: tuple[tuple[float, float, int], ...]
    """Smallest and largest factor, and the rank of the best plan between them, from left to right."""


def flips_figure(bars: Sequence[Bar], *, name: str, description: str) -> Markup:
    """The bars over one logarithmic axis, on which 100 % is what is assumed."""
    # One axis for all facts, however far each was tried, so that their thresholds can be compared by eye.
    low = min(bar.segments[0][0] for bar in bars)
    high = max(bar.segments[-1][1] for bar in bars)

    def across(factor: float) -> float:
        return 16 + (WIDTH - 32) * log(factor / low) / log(high / low)

    bottom = len(bars) * ROW
    shapes: list[Markup] = []
    for row, bar in enumerate(bars):
        top = row * ROW + NAME
        shapes.append(element("text", bar.name, x=across(bar.segments[0][0]), y=top - 4, class_="quiet"))
        for start, end, rank in bar.segments:
            x, width = across(start), across(end) - across(start)
            kind = "flip-same" if rank == 1 else "flip-other"
            shapes.append(
                element("rect", x=x, y=top, width=width, height=BAR, class_=kind, data_fact=bar.name, data_rank=rank,
                        data_from=f"{start:.4g}", data_to=f"{end:.4g}")
            )  # fmt: skip
            # The line of what is assumed would run through a label, which therefore stands in the wider part beside it.
            parts = [(start, min(end, 1.0)), (max(start, 1.0), end)]
            left, right = max(((across(a), across(b)) for a, b in parts if b > a), key=lambda part: part[1] - part[0])
            # A narrower part has no room for its plan, which the sentences beside the figure name.
            if right - left > 40:
                shapes.append(element("text", f"plan {rank}", x=(left + right) / 2, y=top + 12, text_anchor="middle"))
    shapes.append(element("line", x1=across(1.0), x2=across(1.0), y1=4, y2=bottom + 2, class_="flip-line"))
    shapes += [
        element("text", f"{tick:.0%}", x=across(tick), y=bottom + 16, text_anchor="middle", class_="quiet")
        for tick in _TICKS
        if low <= tick <= high
    ]
    return figure(
        shapes,
        name=name,
        title="The best plan, where one fact differs",
        description=description,
        width=WIDTH,
        height=bottom + 22,
    )
