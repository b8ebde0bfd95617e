"""The ranking: every plan in a row with its range on a common axis, what is too close to call, and near-copies folded away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from app.plan_cells import degrees_above_one, recomputed, seconds, share_of_step, throughput, worst_tier
from app.report.figures.bars import axis, interval, ticks
from app.report.method_words import arithmetic, has_other_arithmetic
from app.report.report import Json, PlanView, Report
from app.report.section import Section, section
from app.report.words import gib, ranks
from cost_models.terms import COMMUNICATION
from planner.answer.comparison import differing_knobs
from planner.answer.step_cost import is_priced, step_cost, total_gpus

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of numbers: heading, text and sort value of a plan, and whether narrow screens do without it."""

    heading: str
    text: Callable[[Json], str]
    value: Callable[[Json], float | str]
    narrow: bool = False
    numeric: bool = True


def ranking(report: Report) -> Section | None:
    if not report.plans:
        return None
    shown = [view for view in report.plans if report.leader(view.rank) == view.rank]
    letters = _ties(shown)
    columns = _columns(report, shown)
    ranges = [view.evaluation["step_time_range_s"] for view in shown]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    # A little air, so that no range touches an edge; the axis need not begin at 0, since ranges have no length to compare with it.
    ends = {"start": max(low - 0.05 * (high - low), 0.0), "until": high + 0.05 * (high - low)}
    marks = ticks(**ends)
    return section(
        "ranking",
        "The plans, best first",
        columns=columns,
        rows=[
            {
                "rank": view.rank,
                "link": report.link(view.rank),
                "split": degrees_above_one(view.plan),
                "tie": letters.get(view.plan["tie_group"], ""),
                "cells": [(column, column.text(view.plan), column.value(view.plan)) for column in columns],
                "step": seconds(view.evaluation["step_time_s"]),
                "step_value": f"{view.evaluation['step_time_s']:.6g}",
                "range": _range(view.evaluation),
                "bar": range_bar(view.evaluation, **ends),
                "at_risk": view.evaluation["verdict"] != "fits",
            }
            for view in shown
        ],
        axis=axis(marks, [f"{mark:g}" for mark in marks[:-1]] + [f"{marks[-1]:g}\u00a0s"], **ends),
        told=_told(shown, letters),
        copies=[_copy(report, view) for view in report.plans if report.leader(view.rank) != view.rank],
    )


def range_bar(evaluation: Json, *, start: float, until: float) -> Markup:
    """The step's 80 % range as a bar on an axis in seconds, with a line at the step's time."""
    low, high = evaluation["step_time_range_s"]
    told = f"{seconds(evaluation['step_time_s'])} s, 80 % range {_range(evaluation)} s"
    return interval(low, evaluation["step_time_s"], high, start=start, until=until, label=told)


def _range(evaluation: Json) -> str:
    low, high = evaluation["step_time_range_s"]
    return f"{seconds(low)} to {seconds(high)}"


def _ties(shown: Sequence[PlanView]) -> dict[int, str]:
    """A letter for each group of several listed plans that are too close to call."""
    groups = [view.plan["tie_group"] for view in shown]
    # A group of one plan and its near-copies leaves nothing to choose, and gets no letter.
    several = [group for group in dict.fromkeys(groups) if groups.count(group) > 1]
    return dict(zip(several, _LETTERS, strict=False))


def _told(shown: Sequence[PlanView], letters: dict[int, str]) -> list[str]:
    """The tie groups in words, and what sets the best plan apart."""
    lines = []
    for group, letter in letters.items():
        members = ranks([view.rank for view in shown if view.plan["tie_group"] == group])
        lines.append(f"{letter}: {members} are too close to call; the model cannot tell which is faster.")
    if len(shown) > 1 and not letters:
        lines.append("No two of these plans are too close to call.")
    return lines


def _columns(report: Report, shown: Sequence[PlanView]) -> list[Column]:
    request = report.request
    cluster, objective = request["cluster"], request.get("objective", "step_time")
    total = total_gpus(cluster)
    # As on the command line: a rate for each GPU in use would make the plan that uses few look best.
    counted = objective != "step_time" or {view.evaluation["num_gpus_used"] for view in shown} != {total}
    cost = Column(
        "cost a step" if is_priced(cluster) else "GPU-s a step",
        lambda plan: f"{step_cost(plan, cluster):,.4g}",
        lambda plan: step_cost(plan, cluster),
    )
    rate = (
        Column("tok/s", lambda plan: f"{throughput(plan):,.0f}", throughput)
        if counted
        else Column(
            "tok/s/GPU",
            lambda plan: f"{plan['evaluation']['tokens_per_s_per_gpu']:,.0f}",
            lambda plan: float(plan["evaluation"]["tokens_per_s_per_gpu"]),
        )
    )
    gpus = Column(
        "GPUs",
        lambda plan: f"{plan['evaluation']['num_gpus_used']:,}",
        lambda plan: float(plan["evaluation"]["num_gpus_used"]),
        narrow=True,
    )
    return [
        *[gpus] * counted,
        Column("mb", lambda plan: str(_micro(plan)), _micro),
        Column("recompute", recomputed, recomputed, numeric=False),
        *[Column("mathematics", arithmetic, arithmetic, numeric=False)]
        * has_other_arithmetic([view.plan for view in shown]),
        *[cost] * (objective == "cost"),
        rate,
        Column("MFU", _mfu, lambda plan: float(plan["evaluation"]["mfu"] or 0.0)),
        Column("GiB/GPU", _memory, lambda plan: float(plan["evaluation"]["memory"]["peak_device_bytes"]), narrow=True),
        _share("bubble", "pp_bubble"),
        _share("comm", *COMMUNICATION),
        Column("worst", worst_tier, worst_tier, numeric=False),
    ]


def _micro(plan: Json) -> float:
    return int(plan["strategy"].get("micro_batch_size") or 1)


def _mfu(plan: Json) -> str:
    mfu = plan["evaluation"]["mfu"]
    return "" if mfu is None else f"{mfu:.1%}"


def _memory(plan: Json) -> str:
    return gib(plan["evaluation"]["memory"]["peak_device_bytes"])


def _share(heading: str, *terms: str) -> Column:
    text = share_of_step(*terms)
    return Column(heading, text, lambda plan: float(text(plan).rstrip("%")))


def _copy(report: Report, view: PlanView) -> Json:
    """A near-copy in short: what sets it apart from the plan that stands for it."""
    # Only what differs is told: the rest of a near-copy is its leader.
    leader = report.plan(report.leader(view.rank))
    changed = ", ".join(
        f"{knob} {_value(view.strategy.get(knob))} instead of {_value(leader.strategy.get(knob))}"
        for knob in differing_knobs(leader.plan, view.plan)
    )
    return {
        "rank": view.rank,
        "leader": leader.rank,
        "link": report.link(leader.rank),
        "own_link": report.link(view.rank) if report.address else "",
        "changed": changed or "details",
        "step": seconds(view.evaluation["step_time_s"]),
        "memory": gib(view.evaluation["memory"]["peak_device_bytes"]),
    }


def _value(value: object) -> str:
    """A knob's value in few words; a split of many stages is told by its length."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) if len(value) <= 8 else f"another split over {len(value)}"
    if isinstance(value, dict):
        on = [name for name, each in value.items() if each]
        return "/".join(on) or "none"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
