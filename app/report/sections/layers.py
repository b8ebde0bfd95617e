"""The layers of each stage: strips over the model's layers, and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.report.figures.layers import layers_figure
from app.report.figures.mesh import swatch
from app.report.report import PlanView, Report
from app.report.section import Section, section, unavailable
from cost_models.errors import CalibrationError
from planner.export.launch_plan import launch_plan
from planner.mesh.layers import stage_layers

Json = Mapping[str, Any]
TITLE = "Layers of each stage"


def layers(report: Report, view: PlanView) -> Section:
    """Which layers each stage holds."""
    try:
        plan = launch_plan(view.row, extra=report.calibrations, allow_files=report.allow_files)
    except CalibrationError as error:
        return unavailable("layers", TITLE, error)
    document = stage_layers(plan.job, view.strategy)
    stages = document["stages"]
    rows = [_row(stage) for stage in stages]
    drawn = None
    if len(stages) > 1:
        told = "; ".join(f"stage {row['stage']}: {row['which']}" for row in rows[:8])
        more = f"; and {len(rows) - 8} more stages" if len(rows) > 8 else ""
        drawn = layers_figure(
            stages, num_layers=document["num_layers"], name=view.name("layers"), description=f"{told}{more}."
        )
    kinds = {kind for stage in stages for chunk in stage["chunks"] for kind, _ in chunk["kinds"]}
    return section(
        "layers",
        TITLE,
        summary=_summary(document),
        figure=drawn,
        keys=[
            {"mark": swatch("layer-end"), "told": "embedding (left), final norm and output layer (right)"},
            *([{"mark": swatch("layer-dense"), "told": "layers"}] if kinds == {False} else []),
            *([{"mark": swatch("layer-dense"), "told": "dense layers"}] if kinds == {False, True} else []),
            *([{"mark": swatch("layer-expert"), "told": "layers with experts"}] if True in kinds else []),
        ],
        rows=rows,
        pools=any(stage["pool"] for stage in stages),
        experts=document["has_experts"],
    )


def _summary(document: Json) -> str:
    stages, layers_ = document["stages"], document["num_layers"]
    extra = document["mtp_layers"]
    tail = ""
    if extra:
        where = f"stage {document['mtp_stage']}" if "mtp_stage" in document else "the head's stage"
        tail = f" {extra} multi-token-prediction {'module follows' if extra == 1 else 'modules follow'} on {where}."
    if len(stages) == 1:
        dense, experts = stages[0]["dense"], stages[0]["experts"]
        kinds = f": {dense} dense ones and {experts} with experts" if dense and experts else ""
        return f"Every rank works on all {layers_} layers{kinds}, with the embedding and the output layer.{tail}"
    counts = [stage["layers"] for stage in stages]
    chunks = len(stages[0]["chunks"])
    each = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    told = f"{layers_} layers on {len(stages)} stages, {each} a stage"
    return f"{told}{f', in {chunks} chunks each' if chunks > 1 else ''}.{tail}"


def _row(stage: Json) -> dict[str, Any]:
    holds = [
        word
        for word, end in (("embedding", "embedding"), ("output layer", "head"))
        if any(chunk[end] for chunk in stage["chunks"])
    ]
    return {
        "stage": stage["stage"],
        "pool": stage["pool"],
        "layers": stage["layers"],
        "dense": stage["dense"],
        "experts": stage["experts"],
        "which": _which(stage["chunks"]),
        "ends": " and ".join(holds) or "–",
    }


def _which(chunks: Sequence[Json]) -> str:
    """The decoder layers of a stage: "1 to 22", "1 to 4, 9 to 12, … 73 to 76 (10 chunks)"."""
    told = [
        str(chunk["first"]) if chunk["first"] == chunk["last"] else f"{chunk['first']} to {chunk['last']}"
        for chunk in chunks
        if chunk["first"] is not None
    ]
    if not told:
        return "none"
    if len(told) <= 4:
        return ", ".join(told)
    return f"{told[0]}, {told[1]}, … {told[-1]} ({len(told)} chunks)"
