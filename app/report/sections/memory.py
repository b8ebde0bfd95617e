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
MOST_BARS, _AT_ENDS = 12, 4
"""Bars up to which all are drawn, and how many are drawn at either end where there are more, 2 kB each."""


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
        rows=list(_rows(held, runs, until=until, headroom_fraction=headroom_fraction)),
        axis=axis(
            [mark * GIB for mark in marks], [f"{mark:g}" for mark in marks[:-1]] + [f"{marks[-1]:g} GiB"], until=until
        ),
        legend=[*((term.name, term.meaning) for term in kinds), *_BESIDE.items()],
        fullest=_fullest(held),
        limits=_limits(held, headroom_fraction),
        table=_table(kinds, runs),
        host=held.get("host_bytes_per_node") or 0.0,
        drives=held.get("nvme_bytes_per_node") or 0.0,
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


def _rows(
    held: Json, runs: Sequence[Sequence[Json]], *, until: float, headroom_fraction: float | None
) -> Iterator[dict[str, Any]]:
    """A row for each run of equal stages; of many, those at both ends and the fullest are drawn, and the table has the rest."""
    # Interleaved schedules leave every stage of a deep pipeline a little less than the one before: no two are equal.
    few = len(runs) <= MOST_BARS
    drawn = [
        few or min(at, len(runs) - 1 - at) < _AT_ENDS or _is_fullest(held, run[0]) for at, run in enumerate(runs)
    ]  # fmt: skip
    # One measure for all rows: the whole card where it is known of each stage, else what is allocated.
    by_card = all(_is_fullest(held, run[0]) or run[0].get("peak_device_bytes") is not None for run in runs)
    for is_drawn, group in groupby(zip(drawn, runs, strict=True), key=lambda each: each[0]):
        if is_drawn:
            for _, run in group:
                yield _row(held, run, by_card=by_card, until=until, headroom_fraction=headroom_fraction)
        else:
            yield _folded([stage for _, run in group for stage in run])


def _is_fullest(held: Json, stage: Json) -> bool:
    return bool(stage["peak_allocated_bytes"] == held["peak_allocated_bytes"])


def _folded(stages: Sequence[Json]) -> dict[str, Any]:
    sizes = [stage["peak_allocated_bytes"] for stage in stages]
    told = f"{gib(min(sizes))} to {gib(max(sizes))}"
    return {"label": _named(stages), "detail": "in the table below", "allocated": told, "of_card": None, "bar": None}


def _row(
    held: Json, run: Sequence[Json], *, by_card: bool, until: float, headroom_fraction: float | None
) -> dict[str, Any]:
    stage = run[0]
    allocated = stage["peak_allocated_bytes"]
    fullest = _is_fullest(held, stage)
    device = held["peak_device_bytes"] if fullest else stage.get("peak_device_bytes")
    capacity = stage.get("capacity_bytes") or held["capacity_bytes"]
    return {
        "label": _named(run),
        "detail": ", ".join(_details(run)),
        "allocated": None if by_card else gib(allocated),
        "of_card": None if device is None else (gib(device), gib(capacity)),
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
    """The figure's numbers: a row for each kind, a column for each run of equal stages; the other way round where these are many."""
    stages = [_named(run).removeprefix("Stages ").removeprefix("Stage ") for run in runs]
    names = [term.name.replace("_", " ") for term in kinds]
    sizes = [[gib(run[0]["breakdown_bytes"].get(term.name, 0.0)) for term in kinds] for run in runs]
    allocated = [gib(run[0]["peak_allocated_bytes"]) for run in runs]
    if len(runs) > MOST_BARS:
        rows = [(stage, [*row, total]) for stage, row, total in zip(stages, sizes, allocated, strict=True)]
        return {"tall": True, "columns": [*names, "allocated"], "rows": rows}
    by_kind = [
        (name, term.meaning, [row[at] for row in sizes])
        for at, (name, term) in enumerate(zip(names, kinds, strict=True))
    ]
    return {"tall": False, "columns": stages, "rows": by_kind, "allocated": allocated}
