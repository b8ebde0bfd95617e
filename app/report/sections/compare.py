"""Two plans beside each other: what sets their steps apart, term by term, what differs in memory and strategy, and whether it counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from app.plan_cells import degrees_above_one, seconds
from app.report.figures.difference import difference_bar
from app.report.report import Json, PlanView, Report
from app.report.section import Section, section
from app.report.words import gib
from cost_models.errors import MeshwrightError
from cost_models.hardware import Calibration
from cost_models.terms import MEMORY_TERMS, TIME_TERMS
from cost_models.units import GIB
from planner.answer.apart import steps_apart
from planner.answer.step_cost import is_priced, step_cost
from planner.one_plan.pair import calibrations_of, fullest_stage, pair

MOST_PAIRS = 6
"""Pairs that a page tells in full; the script compares any two, and a service has a page for any two."""
SCRIPTS = ("echarts.js", "charts.js")
LEAST_SHARE = 5e-4
"""Share of the step, or of the card, below which the difference of a term is told together with all others that are so small."""
_SHORTEST_SCALE = 0.01
"""Share of the step or of the card that a bar of full length shows at least."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a comparison."""

    label: str
    own: str
    its: str
    difference: str = ""
    share: str = ""
    bar: Markup | None = None


def compare(report: Report) -> Section | None:
    """Plan 1 beside each other plan that is no near-copy, or beside its near-copies where there is nothing else."""
    if len(report.plans) < 2:
        return None
    calibrations = _calibrations(report)
    first, *others = report.plans
    # A near-copy differs in a knob and by less than two runs of one plan do: the ranking says in which, and there is no room for
    # more where others are to be told apart.
    others = [view for view in others if view.plan.get("folded_under") is None] or others
    told = [_told(report, first, other, calibrations, all_terms=False) for other in others[:MOST_PAIRS]]
    return section(
        "compare",
        "Two plans side by side",
        scripts=SCRIPTS,
        pairs=told,
        left=len(others) - len(told),
        address=report.address,
        ranks=[view.rank for view in report.plans],
        chosen=(first.rank, others[0].rank),
        data=_data(report, calibrations),
    )


def compare_page(report: Report, a: int, b: int) -> Section:
    """Any two listed plans beside each other in full: plan `a`, and plan `b` compared with it.

    Raises:
        StopIteration: the report lists no plan of that rank.
    """
    # Its tables hold what the chart of the report shows, and would contradict one that had been turned to other plans.
    return section(
        "comparison",
        f"Plans {a} and {b} side by side",
        pair=_told(report, report.plan(a), report.plan(b), _calibrations(report), all_terms=True),
        address=report.address,
        ranks=[view.rank for view in report.plans],
        chosen=(a, b),
    )


def _calibrations(report: Report) -> list[Calibration]:
    """What the plans were priced with; nothing where that lies elsewhere, so that ranges of differences are not told."""
    # A response read on another machine is still worth showing without its calibration.
    try:
        return calibrations_of(report.request, extra=report.calibrations, allow_files=report.allow_files)
    except MeshwrightError:
        return []


def _entry(view: PlanView) -> Json:
    return {**view.plan, "evaluation": view.evaluation}


def _told(
    report: Report, one: PlanView, other: PlanView, calibrations: Sequence[Calibration], *, all_terms: bool
) -> dict[str, Any]:
    """What the template shows of a pair."""
    found = pair(_entry(one), _entry(other), calibrations=calibrations)
    step_s = one.evaluation["step_time_s"]
    capacity = other.evaluation["memory"]["capacity_bytes"]
    return {
        "one": one.rank,
        "other": other.rank,
        "links": [report.link(one.rank), report.link(other.rank)],
        "name": f"compare-{one.rank}-{other.rank}",
        "gist": _gist(found, step_s),
        "copy_of": other.plan.get("folded_under"),
        "verdict": _verdict(found, one, other),
        # The line that opens a near-copy says all that differs in what it is worth.
        "numbers": [] if other.plan.get("folded_under") == one.rank and not all_terms else _numbers(report, one, other),
        "time": _rows(
            [(term.name, term.phrase[0].upper() + term.phrase[1:]) for term in TIME_TERMS],
            found["time_s"],
            all_terms=all_terms,
            whole=step_s,
            total="The whole step",
        ),
        "memory": _rows(
            [(term.name, _kind(term.name)) for term in MEMORY_TERMS],
            found["memory_bytes"],
            all_terms=all_terms,
            whole=capacity,
            total="Allocated at its peak",
            unit=GIB,
        ),
        "stages": found["stages"],
        "strategy": [Row(field, short(own), short(its)) for field, (own, its) in found["strategy"].items()],
    }


def _kind(name: str) -> str:
    words = name.replace("_", " ")
    return words[0].upper() + words[1:]


def _gist(found: Mapping[str, Any], step_s: float) -> str:
    """The difference in a few words, for the line that opens a pair."""
    difference = found["difference_s"]
    # The same threshold as in the sentences of the ranking.
    if round(abs(difference) / step_s, 3) == 0.0:
        told = "as fast to within 0.1%"
    else:
        told = f"{abs(difference):.3g} s ({abs(difference) / step_s:.1%}) {'slower' if difference > 0 else 'faster'}"
    called = {True: ", too close to call", False: ", told apart", None: ""}[found["tied"]]
    return told + called


def _verdict(found: Mapping[str, Any], one: PlanView, other: PlanView) -> str:
    """Whether the difference can be told from zero, in a sentence."""
    if found["difference_range_s"] is None:
        return "The calibration that both were priced with is not here, so the range of their difference is not known."
    low, high = found["difference_range_s"]
    between = f"Plan {other.rank} takes {found['difference_s']:+.3g} s against plan {one.rank}, 80% range {low:+.3g} to {high:+.3g} s"
    if found["tied"]:
        return f"{between}: the range contains 0, so the two are too close to call. Only measuring both would tell."
    slower = other if found["difference_s"] > 0 else one
    return f"{between}: the range does not contain 0, so plan {slower.rank} can be called the slower one."


def _numbers(report: Report, one: PlanView, other: PlanView) -> list[Row]:
    """The numbers that a plan is judged by."""
    cluster = report.request["cluster"]
    unit = "a step" if is_priced(cluster) else "GPU-seconds a step"
    rows = []
    for label, cell in (
        ("Split", lambda view: degrees_above_one(view.plan)),
        ("Step time", lambda view: f"{seconds(view.evaluation['step_time_s'])} s"),
        ("80% range", lambda view: " to ".join(seconds(end) for end in view.evaluation["step_time_range_s"]) + " s"),
        ("Tokens/s on each GPU", lambda view: f"{view.evaluation['tokens_per_s_per_gpu']:,.0f}"),
        ("GPUs", lambda view: f"{view.evaluation['num_gpus_used']:,}"),
        ("Cost", lambda view: f"{step_cost(_entry(view), cluster):,.4g} {unit}"),
        ("Fullest GPU", _memory),
        ("Verdict", lambda view: str(view.evaluation["verdict"])),
    ):
        own, its = cell(one), cell(other)
        rows.append(Row(label, own, its))
    return rows


def _memory(view: PlanView) -> str:
    memory = view.evaluation["memory"]
    return f"{gib(memory['peak_device_bytes'])} of {gib(memory['capacity_bytes'])} GiB"


def _rows(
    terms: Iterable[tuple[str, str]],
    values: Mapping[str, Sequence[float]],
    *,
    all_terms: bool,
    whole: float,
    total: str,
    unit: float = 1.0,
) -> list[Row]:
    """The terms that differ, the largest difference first, then all others together, then the sum.

    Args:
        terms: name and words of each term.
        values: both plans' values by term.
        all_terms: whether terms that hardly differ are told one by one as well.
        whole: what shares are taken of.
        total: what the sum is called.
        unit: what values are divided by.
    """
    found: list[tuple[str, float, float]] = []
    rest = (0.0, 0.0)
    for name, label in terms:
        own, its = values[name]
        if abs(its - own) > LEAST_SHARE * whole or (all_terms and (own or its)):
            found.append((label, own, its))
        else:
            rest = (rest[0] + own, rest[1] + its)
    found.sort(key=lambda each: -abs(each[2] - each[1]))
    if any(rest):
        found.append(("Everything else", *rest))
    # Where nothing differs much, bars stay short instead of filling their cells with what is not worth a word.
    largest = max(_SHORTEST_SCALE * whole, *(abs(its - own) for _, own, its in found))
    digits = _decimals(whole / unit)
    sums = sum(own for _, own, _ in found), sum(its for _, _, its in found)

    def row(label: str, own: float, its: float, *, has_bar: bool = True) -> Row:
        bar = difference_bar((its - own) / unit, largest=largest / unit) if has_bar else None
        apart, share = signed((its - own) / unit, digits), signed(100.0 * (its - own) / whole, 1)
        return Row(label, f"{own / unit:,.{digits}f}", f"{its / unit:,.{digits}f}", apart, f"{share}%", bar)

    return [*(row(*each) for each in found), row(total, *sums, has_bar=False)]


def _decimals(whole: float) -> int:
    """Decimals with which a thousandth of the whole still shows."""
    return min(max(3 - math.floor(math.log10(whole)), 1), 6)


def signed(value: float, digits: int) -> str:
    """A difference with its sign and so many decimals; 0 where nothing of it is left."""
    text = f"{value:+,.{digits}f}"
    return "0" if not text.strip("+-0.") else text


def short(value: Any) -> str:
    """A field's value, with long lists of equal numbers told by their counts: "4 (18 times), 5, 3"."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, list):
        return str(value)
    runs: list[list[Any]] = []
    for each in value:
        if runs and runs[-1][0] == each:
            runs[-1][1] += 1
        else:
            runs.append([each, 1])
    return ", ".join(f"{each} ({count} times)" if count > 1 else str(each) for each, count in runs) or "none"


def _data(report: Report, calibrations: Sequence[Calibration]) -> dict[str, Any]:
    """What the script compares any two plans by: terms in words, each plan's values, and the range of each difference."""
    views = report.plans
    # Terms that no plan spends time on would be empty lines of the chart.
    times = [
        (term.name, term.phrase) for term in TIME_TERMS if any(v.evaluation["time_breakdown_s"].get(term.name) for v in views)
    ]  # fmt: skip
    stages = [fullest_stage(view.evaluation)["breakdown_bytes"] for view in views]
    kinds = [term.name for term in MEMORY_TERMS if any(stage.get(term.name) for stage in stages)]
    return {
        "time": [words for _, words in times],
        "memory": [kind.replace("_", " ") for kind in kinds],
        "plans": [
            {
                "rank": view.rank,
                "step": _digits(view.evaluation["step_time_s"]),
                "time": [_digits(view.evaluation["time_breakdown_s"].get(name, 0.0)) for name, _ in times],
                "memory": [_digits(stage.get(kind, 0.0) / GIB) for kind in kinds],
            }
            for view, stage in zip(views, stages, strict=True)
        ],
        "widths": _widths(views, calibrations),
    }


def _widths(views: Sequence[PlanView], calibrations: Sequence[Calibration]) -> list[list[float]]:
    """Half the 80 % range of the difference of each plan to those after it, in seconds; empty where it is not known."""
    if not calibrations:
        return []
    evaluations = [view.evaluation for view in views]
    # Only of the plans after each: turned round, a difference has the same width.
    found = []
    for leader in range(len(views)):
        apart = steps_apart(evaluations, leader=leader, calibrations=calibrations)
        found.append([_digits(each) for each in (apart.high_s - apart.difference_s)[leader + 1 :].tolist()])
    return found


def _digits(value: float) -> float:
    """Six digits, which is more than a chart shows."""
    return float(f"{value:.6g}")
