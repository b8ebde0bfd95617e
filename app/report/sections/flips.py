"""Flip conditions in sentences: what would make another listed plan better than the first, with a bar for each fact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

from app.plan_cells import seconds
from app.report.figures.flips import Bar, flips_figure
from app.report.report import Report
from app.report.section import Section, section, unavailable
from app.report.words import gib
from cost_models.errors import CalibrationError
from cost_models.units import GB, MICRO, TERA
from planner.flips.flips import flip_conditions

Json = Mapping[str, Any]
TITLE = "What would change the order"


@dataclass(frozen=True, slots=True)
class _Words:
    """How a fact is told."""

    subject: str
    """As in "… if SUBJECT is below 82 % of what is assumed"."""
    label: str
    unit: str
    scale: float


WORDS = {
    "network_bandwidth": _Words("the bandwidth between nodes", "network bandwidth between nodes", "GB/s a node", GB),
    "network_latency": _Words("the latency between nodes", "network latency", "µs a hop", MICRO),
    "node_bandwidth": _Words("the bandwidth between GPUs of a node", "bandwidth inside a node", "GB/s a GPU", GB),
    "products": _Words("the rate of matrix products", "rate of matrix products", "TFLOP/s at best", TERA),
    "host": _Words("the speed at which the host launches kernels", "launches of the host", "launches a second", 1.0),
}


def flips(report: Report) -> Section | None:
    """What would change the order of the listed plans; None where there is nothing to compare."""
    try:
        document = flip_conditions(report.response, extra=report.calibrations, allow_files=report.allow_files)
    except CalibrationError as error:
        return unavailable("flips", TITLE, error)
    if document is None:
        return None
    facts = document["facts"]
    deciding = [fact for fact in facts if fact["matters"] and len(document["compared"]) > 1]
    bars = [Bar(WORDS[fact["name"]].label, _segments(fact, document["compared"][0])) for fact in deciding]
    rows = [_row(fact, document["compared"][0]) for fact in facts]
    drawn = None
    # Bars of one plan throughout would say at length what a sentence says.
    if any(len(bar.segments) > 1 for bar in bars):
        changing = "; ".join(f"{row['fact']}: {row['changes']}" for row in rows if row["changes"] != "none")
        drawn = flips_figure(bars, name="flips", description=f"{changing}, of what is assumed.")
    return section(
        "flips",
        TITLE,
        sentences=[
            {"told": told, "rank": rank, "href": None if rank is None else report.link(rank)}
            for told, rank in flip_sentences(document)
        ],
        figure=drawn,
        rows=rows,
        note=_note(document),
        first=document["compared"][0],
    )


def flip_sentences(document: Json) -> list[tuple[str, int | None]]:
    """Each condition as a sentence; where it is about a plan, what follows "Plan 2", and that plan's rank."""
    told: list[tuple[str, int | None]] = []
    steady, idle = [], []
    for fact in document["facts"]:
        subject = WORDS[fact["name"]].subject
        if not fact["matters"]:
            idle.append(subject)
            continue
        changes = [*_told_changes(fact, "below"), *_told_changes(fact, "above")]
        if not changes:
            steady.append(f"{subject} at {_range(fact)}")
        told += [(f"wins if {subject} is {where}.", rank) for where, rank in changes]
    several = len(document["compared"]) > 1
    if steady and several:
        told.append((f"No other listed plan wins with {_listed(steady)} of what is assumed.", None))
    told += _memory(document["memory"])
    if idle and several:
        decide, them = ("decides", "it") if len(idle) == 1 else ("decide", "them")
        start = _listed(idle)
        told.append(
            (
                f"{start[0].upper()}{start[1:]} {decide} nothing here: no listed plan's time moves by 0.01 % with {them}.",
                None,
            )
        )
    return told


def _told_changes(fact: Json, side: str) -> list[tuple[str, int]]:
    """For each change on one side of what is assumed the range in which the plan is the best, and its rank."""
    # Rounded away from 100 %, so that the sentence is true at the percentages that it names.
    towards = floor if side == "below" else ceil
    edges = [towards(change["factor"] * 100) for change in fact[side]]
    found = []
    for place, (change, percent) in enumerate(zip(fact[side], edges, strict=True)):
        if place + 1 < len(edges):
            low, high = sorted((percent, edges[place + 1]))
            found.append((f"between {low} and {high} % of what is assumed", change["rank"]))
        else:
            found.append((f"{side} {percent} % of what is assumed{_in_units(fact, percent)}", change["rank"]))
    return found


def _range(fact: Json) -> str:
    return f"{fact['low'] * 100:.0f} to {fact['high'] * 100:.0f} %"


def _in_units(fact: Json, percent: int) -> str:
    """The threshold in the fact's own unit, where one number says it."""
    if len(fact["assumed"]) != 1:
        return ""
    words = WORDS[fact["name"]]
    value = fact["assumed"][0]["value"] * percent / 100 / words.scale
    return f" ({value:,.3g} {words.unit})" if value < 1000 else f" ({value:,.0f} {words.unit})"


def _memory(memory: Json | None) -> list[tuple[str, int | None]]:
    if memory is None:
        return []
    capacity = gib(memory["capacity_bytes"])
    told: list[tuple[str, int | None]] = []
    for change in memory["changes"][:2]:
        less = gib(change["less_bytes"])
        told.append(
            (
                f"is the best that fits if the card offers {less} GiB less than the {capacity} GiB assumed.",
                change["rank"],
            )
        )
    told.append(
        (f"No listed plan is sure to fit if it offers {gib(memory['none_fits_from_less_bytes'])} GiB less.", None)
    )
    return told


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _segments(fact: Json, first: int) -> tuple[tuple[float, float, int], ...]:
    """The ranges of factors with the best plan in each, from the smallest factor up."""
    below, above = fact["below"], fact["above"]
    edges = [*(change["factor"] for change in reversed(below)), *(change["factor"] for change in above)]
    ranks = [*(change["rank"] for change in reversed(below)), first, *(change["rank"] for change in above)]
    # Changes are listed outward from 1: those below run against the axis.
    bounds = [fact["low"], *edges, fact["high"]]
    return tuple(zip(bounds[:-1], bounds[1:], ranks, strict=True))


def _row(fact: Json, first: int) -> dict[str, str]:
    words = WORDS[fact["name"]]
    times = dict(zip(fact["step_time_s"]["factors"], fact["step_time_s"]["by_rank"][first], strict=True))
    assumed = ", ".join(
        f"{each['value'] / words.scale:,.4g}{' on ' + each['pool'] if each['pool'] else ''} ({each['tier']})"
        for each in fact["assumed"]
    )
    changes = [f"plan {change['rank']} below {change['factor'] * 100:.0f} %" for change in fact["below"]]
    changes += [f"plan {change['rank']} above {change['factor'] * 100:.0f} %" for change in fact["above"]]
    return {
        "fact": words.label,
        "unit": words.unit,
        "assumed": assumed,
        "tried": f"{_range(fact)}, {len(fact['step_time_s']['factors'])} factors",
        "low": seconds(times[fact["low"]]),
        "high": seconds(times[fact["high"]]),
        "changes": "; ".join(changes) or "none",
    }


def _note(document: Json) -> str:
    ranks = document["compared"]
    if len(ranks) == 1:
        return f"All listed plans are near-copies of plan {ranks[0]}, so that memory alone is compared, over every one of them."
    some = f"plans {_listed([str(rank) for rank in ranks])}"
    left = ", near-copies left out," if document["left_out"] else ""
    return (
        f"Priced again with one fact changed at a time: {some}{left} as listed here. A plan that the list does not hold could be "
        "better still. Memory is judged over every listed plan."
    )
