"""The whole run of a plan, and what could hide its communication, as tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from app.collective_words import CALL_COLUMNS, CALLS_NOTE, call_rows
from app.plan_cells import Json
from app.report.run_words import (
    CONDITION_COLUMNS,
    CONDITIONS_NOTE,
    VARIANT_COLUMNS,
    condition_rows,
    run_facts,
    variant_rows,
)


def run_parts(evaluation: Json) -> Iterator[RenderableType]:
    """What is known of the whole run, then the same run saved at other intervals or with other spare nodes."""
    run = evaluation.get("run")
    if run is None:
        return
    for name, told in run_facts(run):
        yield Text.assemble((f"{name:<12}", "bold"), told)
    if rows := variant_rows(run):
        yield Text("")
        yield _table(VARIANT_COLUMNS, rows, right=range(len(VARIANT_COLUMNS)))


def condition_parts(evaluation: Json) -> Iterator[RenderableType]:
    """Which communication computation could hide."""
    if rows := condition_rows(evaluation):
        yield _table(CONDITION_COLUMNS, rows, right=(1, 2, 3))
        yield Text(CONDITIONS_NOTE, style="dim")


def collective_parts(evaluation: Json) -> Iterator[RenderableType]:
    """The algorithm that is assumed for the collectives of each group."""
    if rows := call_rows(evaluation):
        yield _table(CALL_COLUMNS, rows, right=(2, 3, 4, 6, 7))
        yield Text(CALLS_NOTE, style="dim")


def _table(columns: Sequence[str], rows: Sequence[tuple[str, ...]], *, right: Sequence[int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place in right else "left", no_wrap=place == 0)
    for row in rows:
        table.add_row(*row)
    return table
