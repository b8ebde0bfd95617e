"""What comes closest where nothing fits, or what nearly made it: candidates with the smallest change that would help."""

from __future__ import annotations

from typing import Any

from app.plan_cells import degrees_above_one, recomputed
from app.report.figures.bars import axis, ticks
from app.report.report import Json, Report
from app.report.section import Section, section
from app.report.sections.memory import stage_bar
from app.report.words import gib
from cost_models.terms import MEMORY_TERMS
from cost_models.units import GIB
from planner.rows import evaluate_rows


def nearest(report: Report) -> Section | None:
    """The candidates where there is no plan; they follow the verdict directly."""
    candidates = report.response["nearest_infeasible"]
    if report.plans or not candidates:
        return None
    return section("nearest", "What comes closest", **_shown(report, candidates))


def nearly(report: Report) -> Section | None:
    """The candidates beside plans that fit: what a little more memory would allow."""
    candidates = report.response["nearest_infeasible"]
    if not report.plans or not candidates:
        return None
    # Their memory is a little above what plans may use, which a figure would not show better than the reasons say.
    return section("nearest", "What nearly fits", folded=True, **_told(candidates))


def _shown(report: Report, candidates: list[Json]) -> dict[str, Any]:
    """What the template needs: every candidate, with its fullest stage as a bar where it can be priced."""
    request = report.request
    rows = [
        {**{name: request[name] for name in ("model", "cluster", "training")}, "strategy": each["strategy"]}
        for each in candidates
    ]
    # The response tells their reasons but not their memory, which shows by how much they miss, and what holds it.
    priced = list(evaluate_rows(rows, extra=report.calibrations, allow_files=report.allow_files))
    held = [each["memory"] for each in priced if each["memory"]]
    until = 1.03 * max((max(each["peak_device_range_bytes"][1], each["capacity_bytes"]) for each in held), default=GIB)
    marks = ticks(until / GIB, most=6)
    headroom = request["constraints"]["memory_headroom_fraction"]
    kinds = {
        name for each in held for stage in each["stages"] for name, size in stage["breakdown_bytes"].items() if size
    }
    return {
        "candidates": [
            {
                **_candidate(each),
                "bar": _fullest(found["memory"], until=until, headroom_fraction=headroom) if found["memory"] else "",
                "needs": "" if not found["memory"] else gib(found["memory"]["peak_device_bytes"]),
                "offers": "" if not found["memory"] else gib(found["memory"]["capacity_bytes"]),
            }
            for each, found in zip(candidates, priced, strict=True)
        ],
        "axis": axis(
            [mark * GIB for mark in marks], [f"{mark:g}" for mark in marks[:-1]] + [f"{marks[-1]:g} GiB"], until=until
        ),
        "has_bars": bool(held),
        "legend": [(term.name, term.name.replace("_", " ")) for term in MEMORY_TERMS if term.name in kinds]
        + [("cached", "cached by the allocator"), ("context", "context and communication buffers")],
    }


def _told(candidates: list[Json]) -> dict[str, Any]:
    """The same without figures."""
    plain = [{**_candidate(each), "bar": "", "needs": "", "offers": ""} for each in candidates]
    return {"candidates": plain, "axis": "", "has_bars": False, "legend": []}


def _candidate(each: Json) -> dict[str, Any]:
    return {
        "split": f"{degrees_above_one(each)} mb{each['strategy'].get('micro_batch_size') or 1}",
        "recompute": recomputed(each),
        "reasons": each["reasons"],
        "change": each["smallest_change"],
    }


def _fullest(held: Json, *, until: float, headroom_fraction: float) -> Any:
    stage = max(held["stages"], key=lambda each: each["peak_allocated_bytes"])
    capacity = stage.get("capacity_bytes") or held["capacity_bytes"]
    return stage_bar(stage, held, until=until, capacity=capacity, headroom_fraction=headroom_fraction)
