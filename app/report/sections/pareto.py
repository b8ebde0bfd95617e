"""The front of time, memory, GPUs and cost as points that open plans; without a front, the listed plans on the same axes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from app.plan_cells import degrees_above_one, recomputed, seconds
from app.report.figures.scatter import Point, distinct, scatter
from app.report.report import Json, PlanView, Report
from app.report.section import Section, section
from app.report.words import gib
from cost_models.units import GIB
from planner.answer.step_cost import is_priced, step_cost

SCRIPTS = ("echarts.js", "charts.js")
_BILLION, _MILLION, _HOUR_S = 1e9, 1e6, 3600.0


@dataclass(frozen=True, slots=True)
class Row:
    """One plan of the table under the figure."""

    name: str
    """Its anchor."""
    gpus: str
    step: str
    memory: str
    cost: str
    split: str
    micro_batch: str
    recompute: str
    rank: int | None
    href: str


def pareto(report: Report) -> Section | None:
    """The section; None where nothing was found that could be shown."""
    front = report.response.get("pareto") or []
    if not report.plans and not front:
        return None
    entries = front or _listed(report)
    # The front starts from the ranked plans, so that a plan which is on both has the same fields in both.
    ranks = {_same(view.strategy): view.rank for view in reversed(report.plans)}
    entries = sorted(entries, key=lambda each: (each["step_time_s"], each["num_gpus"]))
    points = [_point(report, entry, ranks.get(_same(entry["strategy"])), place) for place, entry in enumerate(entries)]
    shown = distinct(points, capacity_bytes=_capacity(report))
    title = "Time, memory, GPUs and cost of the front" if front else "Time, memory and GPUs of the listed plans"
    return section(
        "pareto",
        "Time against memory, GPUs and cost",
        scripts=SCRIPTS,
        figure=scatter(
            shown,
            name="pareto",
            title=title,
            description=_description(points),
            capacity_bytes=_capacity(report),
        ),
        rows=[_row(report, entries[point.place], point) for point in shown],
        count=len(points),
        unit=_unit(report),
        is_front=bool(front),
        sampled=any(entry.get("method") == "nsga-ii" for entry in front),
        pooled="pools" in report.request["cluster"],
    )


def _listed(report: Report) -> list[Json]:
    """The listed plans as entries of a front, without near-copies, which would lie on the plans that stand for them."""
    training, cluster = report.request["training"], report.request["cluster"]
    tokens = float(training["seq_length"]) * training["global_batch_size"]
    return [
        {
            "strategy": view.strategy,
            "step_time_s": view.evaluation["step_time_s"],
            "peak_device_bytes": view.evaluation["memory"]["peak_device_bytes"],
            "num_gpus": view.evaluation["num_gpus_used"],
            "cost_per_token": step_cost({**view.plan, "evaluation": view.evaluation}, cluster)
            / (tokens * _learnt(view)),
        }
        for view in report.plans
        if report.leader(view.rank) == view.rank
    ]


def _learnt(view: PlanView) -> float:
    """Share of a step's tokens that is no padding."""
    return 1.0 - float(view.evaluation.get("padding_share") or 0.0)


def _same(strategy: Mapping[str, object]) -> str:
    return json.dumps(strategy, sort_keys=True)


def _point(report: Report, entry: Json, rank: int | None, place: int) -> Point:
    return Point(
        step_time_s=entry["step_time_s"],
        device_bytes=entry["peak_device_bytes"],
        gpus=int(entry["num_gpus"]),
        cost=f"{_cost(report, entry['cost_per_token'])} {_unit(report)}",
        href=f"#front-{place}" if rank is None else report.link(rank),
        rank=rank,
        split=degrees_above_one({"strategy": entry["strategy"]}),
        place=place,
    )


def _row(report: Report, entry: Json, point: Point) -> Row:
    return Row(
        name=f"front-{point.place}",
        gpus=f"{point.gpus:,}",
        step=seconds(point.step_time_s),
        memory=gib(point.device_bytes),
        cost=_cost(report, entry["cost_per_token"]),
        split=point.split,
        micro_batch=str(entry["strategy"]["micro_batch_size"]),
        recompute=recomputed({"strategy": entry["strategy"]}),
        rank=point.rank,
        href=point.href,
    )


def _cost(report: Report, per_token: float) -> str:
    """Money for a million tokens, or GPU hours for a billion where no price is given: both have few digits."""
    if is_priced(report.request["cluster"]):
        return f"{per_token * _MILLION:,.3g}"
    return f"{per_token * _BILLION / _HOUR_S:,.0f}"


def _unit(report: Report) -> str:
    return "per million tokens" if is_priced(report.request["cluster"]) else "GPU hours per billion tokens"


def _capacity(report: Report) -> float:
    """Memory of one GPU where all have the same; 0 where not, since no single line is true then."""
    found = {view.evaluation["memory"]["capacity_bytes"] for view in report.plans}
    return float(found.pop()) if len(found) == 1 and "pools" not in report.request["cluster"] else 0.0


def _description(points: list[Point]) -> str:
    fastest = min(points, key=lambda point: point.step_time_s)
    leanest = min(points, key=lambda point: point.device_bytes)
    fewest = min(points, key=lambda point: (point.gpus, point.step_time_s))
    told = [
        f"{what}: {point.step_time_s:.3g} s a step, {point.device_bytes / GIB:.1f} GiB, {point.gpus:,} GPUs"
        for what, point in (("The fastest", fastest), ("The leanest", leanest), ("On the fewest GPUs", fewest))
    ]
    return f"{len(points):,} plan{'s' if len(points) > 1 else ''}. {'. '.join(told)}. The table below lists them all."
