"""The tables of one plan: strategy, stages, memory by kind, time by term, overlaps, assumed values, neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from app.plan_cells import Json, seconds
from cost_models.strategies.fields import FIELDS, StrategyField
from cost_models.terms import MEMORY_TERMS, TIME_TERMS
from cost_models.units import GIB
from planner.export.quantities import idle_beside, said
from planner.one_plan.neighbours import told_terms

MOST_STAGES = 8
"""Columns of one table of memory; further stages go into another table under it."""
MOST_WITH_MEANINGS = 4
"""Columns up to which a table of memory has room for what each kind means."""
_LEAST_S, _LEAST_SHARE = 1e-4, 1e-3
"""Below these the digits shown would all be 0."""
PER_STAGE = ("layers_per_stage", "pool_per_stage")
"""Fields that the table of stages shows."""


def _table(*columns: str, right: Sequence[int] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place in right else "left", no_wrap=place == 0)
    return table


def _fields(strategy: Json, row: Json | None, *, overlaps: bool) -> Iterator[tuple[StrategyField, Any]]:
    """The fields of a strategy that can make a difference, and their values."""
    idle = idle_beside(strategy, model=row["model"], training=row["training"]) if row else frozenset()
    for field in FIELDS:
        holder = (strategy.get(field.group) or {}) if field.group else strategy
        value = holder.get(field.part)
        if (field.group == "overlap") == overlaps and field.name not in idle and value is not None:
            yield field, value


def _meaning(field: StrategyField) -> str:
    """What a field means, without what holds where it is left out."""
    return field.meaning.partition(" Default")[0].removesuffix(".")


def strategy_table(strategy: Json, row: Json | None) -> Table:
    table = _table("field", "value", "meaning")
    for field, value in _fields(strategy, row, overlaps=False):
        if field.name not in PER_STAGE and field.group != "offload":
            table.add_row(field.name, Text(_shown(value)), Text(_meaning(field)))
    return table


def overlaps_table(strategy: Json, row: Json | None) -> RenderableType:
    found = list(_fields(strategy, row, overlaps=True))
    if not found:
        return Text("There is no communication that could run beside computation.")
    table = _table("field", "", "")
    table.show_header = False
    for field, value in found:
        what = _meaning(field).removeprefix("Whether ")
        table.add_row(field.name, "yes" if value else "no", Text(what))
    return table


def stages_table(detail: Json) -> Table | None:
    """Which decoder layers each stage holds, and what else."""
    layers, strategy = detail["layers"], detail["strategy"]
    if layers is None:
        return None
    pools = strategy.get("pool_per_stage")
    model: Json = detail["row"]["model"] if detail["row"] else {}
    flags: list[bool] = (model.get("moe") or {}).get("moe_layer_freq") or []
    mixed = len(set(flags)) > 1
    table = _table(
        "stage", *(["pool"] if pools else []), "layers", "which", *(["with experts"] if mixed else []), "also"
    )
    ends = _ends(strategy, len(layers))
    for stage, chunks in enumerate(layers):
        which = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in chunks) or "none"
        experts = sum(sum(flags[first - 1 : last]) for first, last in chunks) if mixed else 0
        table.add_row(
            str(stage),
            *([Text(pools[stage])] if pools else []),
            str(sum(last - first + 1 for first, last in chunks)),
            which,
            *([str(experts)] if mixed else []),
            ends.get(stage, ""),
        )
    return table


def _ends(strategy: Json, stages: int) -> dict[int, str]:
    """What the stages at the model's ends hold beside layers; V-shaped schedules end where they begin."""
    if stages == 1 or strategy.get("schedule") in ("zb-v", "dualpipe-v"):
        return {0: "embedding, final norm, output layer"}
    return {0: "embedding", stages - 1: "final norm, output layer"}


def memory_tables(stages: Sequence[Json]) -> Iterator[Table]:
    """The memory of each stage by kind, GiB; stages next to each other that hold the same share a column."""
    runs = _equal_runs(stages)
    kinds = [term for term in MEMORY_TERMS if any(stage["breakdown_bytes"].get(term.name) for stage in stages)]
    for start in range(0, len(runs), MOST_STAGES):
        shown = runs[start : start + MOST_STAGES]
        meant = len(shown) <= MOST_WITH_MEANINGS
        columns = range(1, len(shown) + 1)
        table = _table("stage", *map(_stages_named, shown), *(["meaning"] if meant else []), right=columns)
        ones = [run[0] for run in shown]
        table.add_row("layers", *(f"{stage['layers']}" for stage in ones))
        for term in kinds:
            sizes = [_gib(stage["breakdown_bytes"].get(term.name, 0.0)) for stage in ones]
            table.add_row(term.name, *sizes, *([Text(term.meaning)] if meant else []))
        table.add_section()
        table.add_row("allocated", *(_gib(stage["peak_allocated_bytes"]) for stage in ones))
        # Only pools judge each stage by a card of its own; elsewhere the line under the tables tells of the fullest one.
        if all(stage.get(name) is not None for stage in ones for name in ("peak_device_bytes", "capacity_bytes")):
            table.add_row("on the card", *(_gib(stage["peak_device_bytes"]) for stage in ones))
            table.add_row("card offers", *(_gib(stage["capacity_bytes"]) for stage in ones))
        table.add_row("peak at", *(stage["peak_moment"].replace("_", " ") for stage in ones))
        yield table


def _equal_runs(stages: Sequence[Json]) -> list[list[Json]]:
    """Stages next to each other that hold the same, together."""

    def held(stage: Json) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in stage.items() if name != "stage"]

    return [list(run) for _, run in groupby(stages, key=held)]


def _stages_named(run: Sequence[Json]) -> str:
    first, last = run[0]["stage"], run[-1]["stage"]
    return str(first) if first == last else f"{first}-{last}"


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.2f}" if size_bytes else "-"


def time_table(evaluation: Json) -> Table:
    """Every term that takes time, and the whole step."""
    total, tiers = evaluation["step_time_s"], evaluation["provenance"]["terms"]
    table = _table("term", "s", "share", "provenance", "meaning", right=(1, 2))
    for term in TIME_TERMS:
        if its := evaluation["time_breakdown_s"].get(term.name):
            share = its / total
            shown = f"{its:.4f}" if its >= _LEAST_S else f"<{_LEAST_S:.4f}"
            part = f"{share:.1%}" if share >= _LEAST_SHARE else f"<{_LEAST_SHARE:.1%}"
            table.add_row(term.name, shown, part, tiers.get(term.name, ""), Text(term.meaning))
    table.add_section()
    table.add_row("step", f"{total:.4f}", f"{1:.1%}")
    return table


def assumed_table(assumed: Mapping[str, Any]) -> Table:
    """Every default that was applied, with the reason where the answer gives one."""
    habits = assumed.get("recipe_habits")
    reasons = habits if isinstance(habits, Mapping) else {}
    table = _table("field", "value", "why")
    for name, value in assumed.items():
        if name != "recipe_habits":
            table.add_row(name, Text(_shown(value)), Text(str(reasons.get(name, ""))))
    return table


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):  # what holds in each pool, where pools differ
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    return ", ".join(map(_shown, value)) if isinstance(value, list | tuple) else said(value)


def neighbours_table(neighbours: Json) -> Iterator[RenderableType]:
    """The neighbours that could run, with the terms that make the difference; then those that could not."""
    phrases = {term.name: term.phrase for term in TIME_TERMS}
    table = _table("change", "step s", "against this", "GiB/GPU", "verdict", "mostly", right=(1, 2, 3))
    for each in neighbours["priced"]:
        before = each["step_time_s"] - each["difference_s"]
        table.add_row(
            each["change"],
            seconds(each["step_time_s"]),
            f"{each['difference_s'] / before:+.1%}",
            f"{each['peak_device_bytes'] / GIB:.1f}",
            each["verdict"],
            Text(", ".join(told_terms(each["largest_terms_s"], phrases))),
            style="" if each["verdict"] == "fits" else "yellow",
        )
    if neighbours["priced"]:
        yield table
    for each in neighbours["refused"]:
        yield Text(f"{each['change']} cannot run: {each['reason']}.", style="dim")
