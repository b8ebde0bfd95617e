"""The layers of each stage as strips over the model's layers: chunks, dense and expert layers, embedding and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from app.report.figures.svg import element, figure, number

WIDTH, LABEL, ROW, STRIP, AXIS, ENDS = 480.0, 66.0, 18.0, 12.0, 18.0, 9.0
MOST_ROWS = 32
"""Stages that are drawn; of more, the first and the last ones are."""
LAST_ROWS = 4


def layers_figure(stages: Sequence[Mapping[str, Any]], *, num_layers: int, name: str, description: str) -> Markup:
    """The strips.

    Args:
        stages: as `planner.mesh.layers.stage_layers` lists them.
        num_layers: decoder layers of the model.
        name: unique on a page.
        description: the same in words.
    """
    rows: list[Mapping[str, Any] | None] = list(stages)
    if len(stages) > MOST_ROWS:
        rows = [*stages[: MOST_ROWS - LAST_ROWS - 1], None, *stages[-LAST_ROWS:]]
    # The ends of the model stand outside of the layers' axis, so that a layer's place follows from its number.
    left = LABEL + ENDS + 2
    each = (WIDTH - left - ENDS - 2) / num_layers
    # A gap between layers tells chunks of one layer apart; where layers are narrow it would leave nothing of them.
    gap = min(1.0, each / 4)
    shapes: list[Markup] = []
    for place, stage in enumerate(rows):
        top = place * ROW
        # Text of 12 units stands on this line in the middle of its strip.
        middle = top + STRIP - 2
        if stage is None:
            hidden = len(stages) - len(rows) + 1
            shapes.append(element("text", f"… {hidden} more stages", x=0, y=middle, class_="quiet"))
            continue
        shapes.append(element("text", f"stage {stage['stage']}", x=0, y=middle))
        shapes.append(element("line", x1=LABEL, x2=WIDTH, y1=top + STRIP + 3, y2=top + STRIP + 3, class_="axis"))
        for kind, is_expert in (("layer-dense", False), ("layer-expert", True)):
            runs = _runs(stage, is_expert=is_expert)
            if runs:
                path = "".join(
                    f"M{number(left + (first - 1) * each)} {number(top)}h{number(count * each - gap)}v{STRIP:g}"
                    f"h{number(-(count * each - gap))}z"
                    for first, count in runs
                )
                told = " ".join(f"{first}-{first + count - 1}" for first, count in runs)
                shapes.append(element("path", d=path, class_=kind, data_stage=stage["stage"], data_layers=told))
        for end, x in (("embedding", LABEL), ("head", WIDTH - ENDS)):
            if any(chunk[end] for chunk in stage["chunks"]):
                shapes.append(
                    element("rect", x=x, y=top, width=ENDS, height=STRIP, class_="layer-end", data_holds=end,
                            data_stage=stage["stage"])
                )  # fmt: skip
    bottom = len(rows) * ROW + 12
    shapes += [
        element("text", str(layer), x=left + (layer - 0.5) * each, y=bottom, text_anchor="middle", class_="quiet")
        for layer in _labels(num_layers)
    ]
    return figure(
        shapes, name=name, title="Layers of each stage", description=description, width=WIDTH, height=bottom + AXIS - 12
    )


def _runs(stage: Mapping[str, Any], *, is_expert: bool) -> list[tuple[int, int]]:
    """First layer and number of layers of each run of one kind."""
    found = []
    for chunk in stage["chunks"]:
        at = chunk["first"] or 0
        for kind, count in chunk["kinds"]:
            if kind == is_expert:
                found.append((at, count))
            at += count
    return found


def _labels(num_layers: int) -> list[int]:
    """The layers that the axis names: the first, the last, and round ones between."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if num_layers / step <= 8)
    between = [layer for layer in range(step, num_layers, step) if layer > 1 and num_layers - layer > step / 2]
    return [1, *between, num_layers] if num_layers > 1 else [1]
