"""The schedule of a pipeline as a figure: a row for each stage, a bar for each task, panels with one scale of seconds.

Bars are thick lines of one path for each stage, kind and shade, some fourteen characters each, so that thousands of them stay
small. A path's data attributes, and those of its panel, tell what it shows, to the stylesheet as well: x = `data-x` + `data-per-second` * (seconds -
`data-from`); a row's group has its stage. Exposed communication has no place of its own in a pass: it is a strip whose part of a bar's height is its part of
the bar's time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log10

from markupsafe import Markup

from app.report.figures.svg import element, figure, number

WIDTH = 1040.0
"""Width of a figure that fills a page's column."""
SHADES = 4
"""Shades that tell neighbouring virtual stages apart; more than these repeat."""
KINDS = {
    "forward": "forward",
    "repeated": "repeated forward",
    "backward": "backward",
    "weight-gradient": "weight gradient",
    "exposed": "exposed communication, by its share of a bar's height",
    "idle": "bubble and sends",
    "dp_comm": "data-parallel communication",
    "tied_embedding_comm": "tied embedding",
    "offload": "host memory",
    "optimizer": "optimizer",
    "jitter": "waiting for the slowest rank",
}
"""Kinds of bars as the legend names them, in its order; the last ones are terms of time that follow the last backward."""

_LEFT, _RIGHT, _GAP, _LEGEND = 64.0, 20.0, 16.0, 20.0
_LINE, _AFTER_TITLE = 16.0, 12.0
"""Height of a line of titles, and what a title leaves free behind it."""
_HEIGHTS = ((4, 34.0), (8, 26.0), (16, 22.0))
"""Height of a row where there are at most so many; more rows are lower."""
_LOWEST = 18.0
_BETWEEN = 5.0
"""What rows leave free between each other."""
_SWATCH = 12.0
_LETTER = 6.6
"""Width of an average character at the figure's size of text; no font is at hand to measure it with."""
_LEAST_TICK = 64.0
"""Least distance of two ticks, so that their numbers stand apart."""
_SEAM = 0.6
"""What neighbouring bars leave free between each other."""
_LARGEST_SEAM = 0.15
"""Most of a bar's width that is left free, so that narrow bars keep their colour."""
_SEEN = 0.3
"""Least width at which a bar is drawn, and least height of a strip."""
_NOTHING = 0.05
"""Width below which a bar is left out: no display could show it."""
_TOLD = 1.0
"""Width from which the legend explains a kind of bar."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One task, or a part of one."""

    kind: str
    """One of KINDS."""
    start_s: float
    end_s: float
    shade: int = 0
    """Which virtual stage of its rank, from 0."""
    label: str = ""
    """What stands on it where there is room: the micro-batch."""
    exposed_share: float = 0.0
    """Share of it that is exposed communication, 0...1."""


@dataclass(frozen=True, slots=True)
class Row:
    """One stage."""

    stage: int
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Panel:
    """A stretch of time that is drawn; what lies between panels is left out."""

    name: str
    """Such as "warm-up": for tests and scripts."""
    title: str
    start_s: float
    """In the time of the bars."""
    end_s: float
    told_at_s: float | None = None
    """What the axis calls its start, where that differs."""


@dataclass(slots=True)
class _Drawn:
    """A panel with its place."""

    panel: Panel
    x: float
    per_second: float
    shapes: list[Markup] = field(default_factory=list)

    def at(self, time_s: float) -> float:
        return self.x + (time_s - self.panel.start_s) * self.per_second

    @property
    def end(self) -> float:
        return self.at(self.panel.end_s)


def timeline_figure(
    rows: Sequence[Row],
    panels: Sequence[Panel],
    *,
    name: str,
    title: str,
    description: str,
    width: float = WIDTH,
    details: bool = True,
) -> Markup:
    """The figure of a schedule.

    Args:
        rows: the stages that are drawn, from the first to the last.
        panels: what is drawn of the time, in its order; all have one scale.
        name: unique on a page.
        title: what the figure shows.
        description: its numbers in sentences.
        width: width of the view box.
        details: whether bars carry their labels and their share of exposed communication.
    """
    places = _places(panels, width=width)
    titles = _titles(places, width=width)
    top = 8.0 + _LINE * (1 + max(each.line for each in titles))
    row_height = next((high for most, high in _HEIGHTS if len(rows) <= most), _LOWEST)
    bottom = top + row_height * len(rows)
    used: set[str] = set()
    shapes: list[Markup] = []
    for place in places:
        for index, row in enumerate(rows):
            bar, middle = row_height - _BETWEEN, top + row_height * (index + 0.5)
            # Coordinates of a row count from its middle, which keeps them short.
            place.shapes.append(
                element(
                    "g",
                    *_row(place, row, bar=bar, details=details, used=used),
                    transform=f"translate(0 {number(middle)})",
                    stroke_width=bar,
                    data_stage=row.stage,
                )
            )
        place.shapes += _axis(place, top=top, bottom=bottom)
        shapes.append(
            element(
                "g",
                *place.shapes,
                data_panel=place.panel.name,
                data_from=f"{place.panel.start_s:.6g}",
                data_to=f"{place.panel.end_s:.6g}",
                data_x=number(place.x),
                data_per_second=f"{place.per_second:.6g}",
            )
        )
    shapes += [
        element(
            "text",
            each.panel.title,
            x=round(each.x, 1),
            y=top - 8.0 - _LINE * each.line,
            class_="tl-title",
            data_title=each.panel.name,
        )
        for each in titles
    ]
    shapes += [
        element("text", f"stage {row.stage}", x=0, y=top + row_height * (index + 0.5) + 4.0)
        for index, row in enumerate(rows)
    ]
    legend, height = _legend([kind for kind in KINDS if kind in used], top=bottom + 30.0, width=width)
    return figure([*shapes, *legend], name=name, title=title, description=description, width=width, height=height)


def _places(panels: Sequence[Panel], *, width: float) -> list[_Drawn]:
    total = sum(panel.end_s - panel.start_s for panel in panels)
    per_second = (width - _LEFT - _RIGHT - _GAP * (len(panels) - 1)) / total
    found, x = [], _LEFT
    for panel in panels:
        found.append(_Drawn(panel, x, per_second))
        x = found[-1].end + _GAP
    return found


def _row(place: _Drawn, row: Row, *, bar: float, details: bool, used: set[str]) -> Iterable[Markup]:
    """The bars of one stage in one panel: a path for each kind and shade, strips upon them, and their labels."""
    paths: dict[tuple[str, int], list[str]] = defaultdict(list)
    # By height: neighbouring bars of one share make one strip, of which there are far fewer than bars.
    strips: dict[float, list[tuple[float, float]]] = defaultdict(list)
    labels: list[Markup] = []
    panel = place.panel
    drawn_to = place.x
    for each in row.bars:
        start, end = max(each.start_s, panel.start_s), min(each.end_s, panel.end_s)
        left, long = place.at(start), (end - start) * place.per_second
        # Clipped to its panel: a task that runs across an edge is drawn on either side.
        if long < _NOTHING:
            continue
        _idle(paths, drawn_to, left, used=used)
        drawn_to = left + long
        seen = max(long - min(_SEAM, _LARGEST_SEAM * long), _SEEN)
        if long >= _TOLD:
            used.add(each.kind)
        paths[each.kind, each.shade % SHADES].append(_line(left, 0.0, seen))
        if not details:
            continue
        high = round(each.exposed_share * bar, 1)
        if high >= _SEEN:
            _lengthen(strips[high], left, left + long)
        if each.label and long >= _LETTER * len(each.label) + 5.0:
            tone = "tl-on-dark" if each.kind == "forward" else "tl-on-light"
            labels.append(element("text", each.label, x=round(left + seen / 2.0, 1), y=3, class_=f"tl-label {tone}"))
    _idle(paths, drawn_to, place.end, used=used)
    used |= {"exposed"} if strips else set()
    for (kind, shade), parts in paths.items():
        yield element("path", d="".join(parts), data_kind=kind, data_shade=shade or None)
    # Strips lie upon the lower edge of the bars, so that they come after them.
    for high, runs in strips.items():
        d = "".join(_line(left, (bar - high) / 2.0, right - left) for left, right in runs)
        yield element("path", d=d, stroke_width=high, data_kind="exposed")
    yield from labels


def _line(left: float, y: float, long: float) -> str:
    return f"M{number(left, digits=1)} {number(y)}h{number(long, digits=1)}"


def _idle(paths: dict[tuple[str, int], list[str]], left: float, right: float, *, used: set[str]) -> None:
    """A thin line where a stage waits: no shade of grey can be mistaken for it."""
    if right - left > _SEAM:
        paths["idle", 0].append(_line(left, 0.0, right - left))
        used.add("idle")


def _lengthen(runs: list[tuple[float, float]], left: float, right: float) -> None:
    """Adds a strip to those of one height; strips that touch become one."""
    if runs and left - runs[-1][1] <= _SEAM:
        left, _ = runs.pop()
    runs.append((left, right))


def _axis(place: _Drawn, *, top: float, bottom: float) -> Iterable[Markup]:
    """A line under the panel, ticks, and seconds from the start of the step."""
    panel = place.panel
    # Behind rounds that were counted and not played, the step's own clock is ahead of the bars'.
    shift = 0.0 if panel.told_at_s is None else panel.told_at_s - panel.start_s
    step = _step(_LEAST_TICK / place.per_second)
    digits = max(0, -floor(log10(step) + 1e-9))
    lines = [f"M{number(place.x, digits=1)} {number(bottom)}H{number(place.end, digits=1)}"]
    texts = []
    for index in range(ceil((panel.start_s + shift) / step - 1e-9), floor((panel.end_s + shift) / step + 1e-9) + 1):
        x = place.at(index * step - shift)
        lines.append(f"M{number(x, digits=1)} {number(bottom)}v4")
        texts.append(
            element("text", f"{index * step:,.{digits}f}", x=round(x, 1), y=bottom + 16.0, class_="quiet tl-mid")
        )
    # Two edges mark that time is left out between this panel and the next.
    lines += [f"M{number(x, digits=1)} {number(top)}V{number(bottom)}" for x in (place.x, place.end)]
    yield element("path", d="".join(lines), class_="axis")
    yield from texts


def _step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is at least this."""
    # Steps that people count in.
    power = 10.0 ** floor(log10(least))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least * (1.0 - 1e-9))


@dataclass(frozen=True, slots=True)
class _Title:
    panel: Panel
    x: float
    line: int
    """0 right above the panels, 1 above that."""


def _titles(places: Sequence[_Drawn], *, width: float) -> list[_Title]:
    """Where the panels' titles stand, none over another."""
    free, titles = [0.0, 0.0], []
    for place in places:
        long = _LETTER * len(place.panel.title)
        # Beside the title before it while it still stands over its own panel, else on the line above.
        fits = max(place.x, free[0]) + long <= max(place.end, place.x + long)
        line = 0 if fits else 1
        x = max(min(max(place.x, free[line]), width - long), 0.0)
        free[line] = x + long + _AFTER_TITLE
        titles.append(_Title(place.panel, x, line))
    return titles


def _legend(kinds: Sequence[str], *, top: float, width: float) -> tuple[list[Markup], float]:
    """A swatch and a word for each kind that is drawn, and the height at which they end."""
    shapes, x, y = [], 0.0, top + 10.0
    for kind in kinds:
        word = KINDS[kind]
        long = 30.0 + _LETTER * len(word) + 18.0
        if x + long > width and x:
            x, y = 0.0, y + _LEGEND
        high = {"idle": None, "exposed": _SWATCH / 4.0}.get(kind, _SWATCH)
        shapes.append(element("path", d=f"M{number(x)} {number(y)}h22", data_kind=kind, stroke_width=high))
        shapes.append(element("text", word, x=x + 28.0, y=y + 4.0))
        x += long
    shapes.append(element("text", "seconds", x=0, y=top - 14.0, class_="quiet"))
    return shapes, y + 12.0
