"""Nodes as boxes with their GPUs as cells: the stage of each GPU, and which of them share a group with one chosen rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from app.report.figures.svg import element, figure

CELL, GAP, EDGE, CAPTION = 36.0, 4.0, 8.0, 20.0
MOST_COLUMNS = 8
"""GPUs in a row; nodes with more take several rows."""
STAGE_COLOURS = 6
"""Colours that stages take in turn; the caption of a node names its stages as well."""
_STRIP, _TICK = 5.0, 5.0


def node_figure(
    stages: Sequence[int],
    *,
    first_rank: int,
    shared: Mapping[str, Sequence[int]],
    chosen: int,
    name: str,
    caption: str,
) -> Markup:
    """One node.

    Args:
        stages: the stage of each GPU in the order of the ranks, -1 where it is idle.
        first_rank: rank of the first GPU.
        shared: by name of a group, the ranks that share it with the chosen one; the names' order is that of their marks.
        chosen: the rank whose groups are marked.
        name: unique on a page.
        caption: which node it is and which stages it holds.
    """
    columns = min(len(stages), MOST_COLUMNS)
    rows = -(-len(stages) // columns)
    corners = [
        (EDGE + place % columns * (CELL + GAP), CAPTION + place // columns * (CELL + GAP))
        for place in range(len(stages))
    ]
    ranks = [first_rank + place if stage >= 0 else None for place, stage in enumerate(stages)]
    width = 2 * EDGE + columns * (CELL + GAP) - GAP
    height = CAPTION + rows * (CELL + GAP) + EDGE - GAP
    shapes = [
        element("rect", x=0.5, y=0.5, width=width - 1, height=height - 1, rx=4, class_="mesh-node"),
        element("text", caption, x=EDGE, y=14),
    ]
    # One path for all cells of a kind keeps a page with many plans small.
    for stage in sorted({stage for stage in stages if stage >= 0}):
        at = [corner for corner, its in zip(corners, stages, strict=True) if its == stage]
        strips = _squares([(x, y) for x, y in at], CELL, _STRIP)
        shapes.append(element("path", d=strips, class_=f"mesh-stage-{stage % STAGE_COLOURS}", data_stage=stage))
    shapes.append(element("path", d=_squares(corners, CELL, CELL), class_="mesh-cell"))
    for place, (group, members) in enumerate(shared.items()):
        # Each group has a place of its own in the cell, so that a rank in several groups shows all of them.
        here = [rank for rank in ranks if rank is not None and rank in set(members)]
        if here:
            at = [corners[rank - first_rank] for rank in here]
            marks = _squares([(x + 3 + place * (_TICK + 1), y + CELL - _TICK - 3) for x, y in at], _TICK, _TICK)
            told = " ".join(map(str, here))
            shapes.append(element("path", d=marks, class_=f"mesh-{group}", data_group=group, data_ranks=told))
    for rank, (x, y) in zip(ranks, corners, strict=True):
        told = "idle" if rank is None else str(rank)
        shapes.append(element("text", told, x=x + CELL / 2, y=y + 19, text_anchor="middle", class_="mesh-rank"))
    if chosen in ranks:
        x, y = corners[ranks.index(chosen)]
        shapes.append(element("rect", x=x, y=y, width=CELL, height=CELL, class_="mesh-chosen", data_rank=chosen))
    described = "; ".join(
        f"{group}: {', '.join(str(rank) for rank in ranks if rank in set(members))}"
        for group, members in shared.items()
        if any(rank in set(members) for rank in ranks)
    )
    used = [rank for rank in ranks if rank is not None]
    told = f"Ranks {used[0]} to {used[-1]}." if used else "No ranks."
    if described:
        told += f" In groups with rank {chosen}: {described}."
    return figure(shapes, name=name, title=caption, description=told, width=width, height=height)


def swatch(kind: str) -> Markup:
    """A small square in the colour of a group's marks or of a stage, for a legend in text."""
    return element(
        "svg",
        element("rect", width=10, height=10, class_=kind),
        viewBox="0 0 10 10",
        class_="swatch",
        aria_hidden="true",
    )


def _squares(corners: Sequence[tuple[float, float]], width: float, height: float) -> str:
    return "".join(f"M{x:g} {y:g}h{width:g}v{height:g}h{-width:g}z" for x, y in corners)
