"""What `meshwright correct` says of what it learnt: a table for each framework and GPU, on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table

from app.report.words import counted
from cost_models.corrections import Correction


def print_corrections(corrections: Sequence[Correction], *, runs: int, out: str) -> None:
    """Prints what was kept and what was not, and where it was written."""
    console = Console(stderr=True)
    for scope, group in groupby(corrections, key=lambda each: each.scope):
        console.print(corrections_table(list(group), title=f"{scope.framework}, {scope.model_impl}, {scope.gpu}"))
    kept = sum(each.kept for each in corrections)
    verb = "is" if kept == 1 else "are"
    learnt = f"{kept} of {counted(len(corrections), 'correction')} {verb} kept, learnt from {counted(runs, 'run')}."
    console.print(f"{learnt} Written to {out}.")
    if any(each.error_before is None for each in corrections):
        console.print(
            "Terms without errors (-) were measured in one plan only, so that none could be left out to check their factor: "
            "measure another plan, too."
        )
    if not kept:
        console.print("Plans stay as they are until a correction is kept.")


def corrections_table(corrections: Sequence[Correction], *, title: str) -> Table:
    """One row for each correction, with the errors of runs that were left out without and with it."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("term")
    for heading in ("factor", "runs", "error without", "with"):
        table.add_column(heading, justify="right")
    table.add_column("kept")
    for each in corrections:
        errors = ("-" if error is None else f"{error:.1%}" for error in (each.error_before, each.error_after))
        table.add_row(each.term, f"{each.factor:.3f}", str(each.trials), *errors, "yes" if each.kept else "no")
    return table
