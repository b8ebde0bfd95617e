"""The best plans of the same job on other numbers of GPUs, with other micro-batches and other sequence lengths, as curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from app.plan_cells import degrees_above_one, seconds
from app.report.figures.curves import Panel, curves
from app.report.report import Json, Report
from app.report.section import Section, section
from app.report.words import gib
from cost_models.units import GIB

SCRIPTS = ("echarts.js", "charts.js")


@dataclass(frozen=True, slots=True)
class Varied:
    """One thing that is varied."""

    field: str
    """As `what_if` names it."""
    title: str
    axis: str


VARIED = (
    Varied("cluster.num_nodes", "Number of GPUs", "GPUs"),
    Varied("strategy.micro_batch_size", "Micro-batch", "sequences in a micro-batch"),
    Varied("training.seq_length", "Sequence length, with the same tokens in a step", "tokens in a sequence"),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """One thing that is varied, with its figure and its table."""

    title: str
    figure: Markup
    column: str
    rows: list[dict[str, Any]]


def what_if(report: Report) -> Section | None:
    """The section; None where the request did not ask for it, or nothing fits."""
    answers = report.response.get("what_if") or []
    if not answers:
        return None
    shown = [
        _shown(report, varied, answers)
        for varied in VARIED
        if any(answer["field"] == varied.field for answer in answers)
    ]  # fmt: skip
    return section("what_if", "What if", scripts=SCRIPTS, shown=shown) if shown else None


def _asked(report: Report, varied: Varied) -> int:
    """The value of the request itself; micro-batches vary around that of the best plan."""
    request = report.request
    if varied.field == "cluster.num_nodes":
        return int(request["cluster"]["num_nodes"])
    if varied.field == "training.seq_length":
        return int(request["training"]["seq_length"])
    return int(report.plans[0].strategy["micro_batch_size"])


def _shown(report: Report, varied: Varied, answers: Sequence[Json]) -> Shown:
    base = next(answer for answer in answers if answer["value"] is None)
    found = [(int(answer["value"]), answer) for answer in answers if answer["field"] == varied.field]
    # The request itself is one of the variants, though its entry names no value.
    found = sorted([*found, (_asked(report, varied), base)], key=lambda each: each[0])
    values = [value for value, _ in found]
    entries = [entry for _, entry in found]
    # The answers count nodes, readers count GPUs; the nodes of one cluster are alike.
    if varied.field == "cluster.num_nodes":
        values = [value * int(report.request["cluster"]["gpus_per_node"]) for value in values]
    told = [_told(entry) for entry in entries]
    name = f"what-if-{varied.field.partition('.')[2].replace('_', '-')}"
    drawing = curves(
        [f"{value:,}" for value in values],
        _panels(report, entries),
        asked=entries.index(base),
        told=told,
        axis=varied.axis,
        name=name,
        title=varied.title,
        description=". ".join(f"{value:,} {varied.axis}: {words}" for value, words in zip(values, told, strict=True)),
    )
    rows = [_row(value, entry, is_asked=entry is base) for value, entry in zip(values, entries, strict=True)]
    column = varied.axis[0].upper() + varied.axis[1:]
    return Shown(varied.title, drawing, column, rows)


def _panels(report: Report, entries: Sequence[Json]) -> list[Panel]:
    def panel(name: str, title: str, key: str, told: Any, *, unit: float = 1.0, limit: float | None = None) -> Panel:
        plans = [entry if entry["plan"] is not None else None for entry in entries]
        return Panel(
            name,
            title,
            tuple(None if entry is None else entry[key] / unit for entry in plans),
            tuple("" if entry is None else told(entry[key]) for entry in plans),
            limit,
        )

    capacity = report.plans[0].evaluation["memory"]["capacity_bytes"] / GIB
    return [
        panel("step_time_s", "Seconds a step", "step_time_s", seconds),
        panel("tokens_per_s_per_gpu", "Tokens/s on each GPU", "tokens_per_s_per_gpu", "{:,.0f}".format),
        panel("peak_device_gib", "GiB on the fullest GPU", "peak_device_bytes", gib, unit=GIB, limit=capacity),
    ]


def _told(entry: Json) -> str:
    """What a variant comes to."""
    if entry["plan"] is None:
        return f"no plan; {entry['reason']}"
    return (
        f"{seconds(entry['step_time_s'])} s a step, {entry['tokens_per_s_per_gpu']:,.0f} tokens/s on each GPU, "
        f"{gib(entry['peak_device_bytes'])} GiB, {degrees_above_one({'strategy': entry['plan']})}"
    )


def _row(value: int, entry: Json, *, is_asked: bool) -> dict[str, Any]:
    shown = {"value": f"{value:,}", "asked": is_asked, "reason": entry.get("reason")}
    if entry["plan"] is None:
        return shown
    return shown | {
        "step": seconds(entry["step_time_s"]),
        "rate": f"{entry['tokens_per_s_per_gpu']:,.0f}",
        "mfu": "unknown" if entry["mfu"] is None else f"{entry['mfu']:.1%}",
        "memory": gib(entry["peak_device_bytes"]),
        "gpus": f"{entry['num_gpus']:,}",
        "speedup": f"{entry.get('speedup', 1.0):.2f}",
        "split": degrees_above_one({"strategy": entry["plan"]}),
    }
