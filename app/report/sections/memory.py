"""The memory of each stage at its peak, by kind, against what the card offers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from markupsafe import Markup

from app.report.figures.bars import Mark, Part, Whisker, axis, bar, ticks
from app.report.report import Json, PlanView, Report
from app.report.section import Section, section
from app.report.words import counted, gib
from cost_models.terms import MEMORY_TERMS
from cost_models.units import GIB

CACHED, CONTEXT = "cached", "context"
"""What the fullest card holds beside what is allocated: the allocator's cache, and context and communication buffers."""
_BESIDE = {CACHED: "cached by the allocator", CONTEXT: "context and communication buffers"}
_ALIKE = frozenset({"stage"})
"""What may differ between stages that are shown as one."""


def memory(report: Report, plan: PlanView) -> Section | None:
    return memory_section(plan.evaluation, headroom_fraction=report.request["constraints"]["memory_headroom_fraction"])


def memory_section(evaluation: Json, *, headroom_fraction: float | None) -> Section | None:
    """The memory of an evaluation.

    Args:
        evaluation: with every stage.
        headroom_fraction: share of the card's capacity that a plan has to leave free; None where it is not known.
    """
    held = evaluation["memory"]
    if held is None or not held.get("stages"):
        return None
    # A deep pipeline has dozens of stages that hold the same; one bar for each run keeps the figure readable.
    runs = equal_runs(held["stages"])
    until = _until(held)
    marks = ticks(until / GIB, most=6)
    kinds = [term for term in MEMORY_TERMS if any(stage["breakdown_bytes"].get(term.name) for stage in held["stages"])]
    return section(
        "memory",
        "Memory of each stage at its peak",
        rows=[_row(held, run, until=until, headroom_fraction=headroom_fraction) for run in runs],
        axis=axis(
            [mark * GIB for mark in marks], [f"{mark:g}" for mark in marks[:-1]] + [f"{marks[-1]:g} GiB"], until=until
        ),
        legend=[*((term.name, term.meaning) for term in kinds), *_BESIDE.items()],
        fullest=_fullest(held),
        limits=_limits(held, headroom_fraction),
        table=_table(kinds, runs),
        host=held.get("host_bytes_per_node") or 0.0,
        gib=gib,
    )


def equal_runs(stages: Sequence[Json]) -> list[list[Json]]:
    """Stages next to each other that hold the same, together."""

    def what(stage: Json) -> list[tuple[str, Any]]:
        return [(key, value) for key, value in stage.items() if key not in _ALIKE]

    return [list(run) for _, run in groupby(stages, key=what)]


def _until(held: Json) -> float:
    """Where the axis ends, bytes: past the largest card and the longest range."""
    cards = [held["capacity_bytes"], *(stage.get("capacity_bytes") or 0.0 for stage in held["stages"])]
    longest: float = max(*cards, held["peak_device_range_bytes"][1])
    return 1.03 * longest


def _named(run: Sequence[Json]) -> str:
    first, last = run[0]["stage"], run[-1]["stage"]
    return f"Stage {first}" if first == last else f"Stages {first} to {last}"


def _row(held: Json, run: Sequence[Json], *, until: float, headroom_fraction: float | None) -> dict[str, Any]:
    stage = run[0]
    allocated = stage["peak_allocated_bytes"]
    # The whole card is told of the fullest stage, and on pools of every stage.
    fullest = allocated == held["peak_allocated_bytes"]
    device = held["peak_device_bytes"] if fullest else stage.get("peak_device_bytes")
    capacity = stage.get("capacity_bytes") or held["capacity_bytes"]
    return {
        "label": _named(run),
        "detail": ", ".join(_details(run)),
        "allocated": gib(allocated),
        "device": None if device is None else gib(device),
        "capacity": gib(capacity),
        "bar": stage_bar(
            stage, held if fullest else None, until=until, capacity=capacity, headroom_fraction=headroom_fraction
        ),
    }


def _details(run: Sequence[Json]) -> Iterator[str]:
    stage = run[0]
    yield f"{counted(stage['layers'], 'layer')}{' each' if len(run) > 1 else ''}"
    if stage.get("pool"):
        yield f"on {stage['pool']}"
    yield f"peaks at {stage['peak_moment'].replace('_', ' ')}"


def stage_bar(
    stage: Json, held: Json | None, *, until: float, capacity: float, headroom_fraction: float | None
) -> Markup:
    """One stage as a bar of its kinds of memory, with the card's limits across it; `held` where it is the fullest stage."""
    parts = [
        Part(kind, size, f"{kind.replace('_', ' ')}: {gib(size)} GiB")
        for kind, size in stage["breakdown_bytes"].items()
        if size
    ]
    whisker = None
    if held is not None:
        parts += [Part(kind, size, f"{_BESIDE[kind]}: {gib(size)} GiB") for kind, size in _beside(held).items()]
        low, high = held["peak_device_range_bytes"]
        whisker = Whisker(low, high, f"80 % range of the whole card: {gib(low)} to {gib(high)} GiB")
    # On pools each stage has the card of its pool, whose cache is not told apart.
    elif stage.get("peak_device_bytes"):
        rest = stage["peak_device_bytes"] - stage["peak_allocated_bytes"]
        parts.append(Part(CONTEXT, rest, f"cache, context and communication buffers: {gib(rest)} GiB"))
    marks = [Mark("limit", capacity, f"The card offers {gib(capacity)} GiB.")]
    if headroom_fraction:
        kept = capacity * (1.0 - headroom_fraction)
        marks.append(Mark("headroom", kept, f"A plan may use {gib(kept)} GiB: {headroom_fraction:.0%} are kept free."))
    return bar(
        parts,
        until=until,
        whisker=whisker,
        marks=marks,
        height=30,
        data_stage=stage["stage"],
        data_allocated=f"{stage['peak_allocated_bytes']:.0f}",
    )


def _beside(held: Json) -> Mapping[str, float]:
    allocated, reserved, device = (held[f"peak_{name}_bytes"] for name in ("allocated", "reserved", "device"))
    return {CACHED: reserved - allocated, CONTEXT: device - reserved}


def _fullest(held: Json) -> str:
    beside = _beside(held)
    low, high = held["peak_device_range_bytes"]
    device, capacity = held["peak_device_bytes"], held["capacity_bytes"]
    return (
        f"The fullest card: {gib(held['peak_allocated_bytes'])} allocated + {gib(beside[CACHED])} cached by the allocator + "
        f"{gib(beside[CONTEXT])} context and communication buffers = {gib(device)} GiB (80 % range {gib(low)} to {gib(high)}) "
        f"of the {gib(capacity)} GiB that the card offers, {device / capacity:.1%}."
    )


def _limits(held: Json, headroom_fraction: float | None) -> str:
    cards = {stage.get("capacity_bytes") or held["capacity_bytes"] for stage in held["stages"]}
    offered = " and ".join(gib(size) for size in sorted(cards))
    told = f"The line at the right is what the card offers to one process ({offered} GiB)"
    if headroom_fraction:
        told += f", the dashed one what a plan may use of it: {headroom_fraction:.0%} are kept free"
    return f"{told}."


def _table(kinds: Sequence[Any], runs: Sequence[Sequence[Json]]) -> dict[str, Any]:
    """The figure's numbers: a row for each kind, a column for each run of equal stages."""
    ones = [run[0] for run in runs]
    return {
        "columns": [_named(run).removeprefix("Stages ").removeprefix("Stage ") for run in runs],
        "rows": [
            (
                term.name.replace("_", " "),
                term.meaning,
                [gib(stage["breakdown_bytes"].get(term.name, 0.0)) for stage in ones],
            )
            for term in kinds
        ],
        "allocated": [gib(stage["peak_allocated_bytes"]) for stage in ones],
    }
