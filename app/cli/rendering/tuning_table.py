"""A tuning as a table for people: every trial with what was predicted and what was measured, over what follows from it.

The table is data and goes to stdout; warnings go to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.rendering.plan_table import console_width, print_indented, title
from app.plan_cells import seconds
from app.report.tuning.document import TunedTrial, Tuning, read_tuning
from app.report.tuning.words import (
    accuracy,
    correction_told,
    ended,
    in_short,
    knobs_gain,
    moves,
    notes,
    outcome,
    plan_name,
    signed,
    spent,
)
from app.report.words import gib

_SHOWN_MOST = 5
"""Lines of corrections and of what to measure next; the page and --json have all."""


@dataclass(frozen=True, slots=True)
class _Column:
    """One column: its heading, and how a trial fills it."""

    heading: str
    cell: Callable[[TunedTrial], str]
    justify: Literal["left", "right"] = "right"


def _known(value: float | None, written: Callable[[float], str]) -> str:
    return "" if value is None else written(value)


def _range(trial: TunedTrial) -> str:
    range_s = trial.predicted_step_time_range_s
    if range_s is None:
        return ""
    # A mark, since a colour would be lost in a pipe.
    return f"{seconds(range_s[0])}-{seconds(range_s[1])}{'!' if trial.is_in_range is False else ' '}"


_COLUMNS = (
    _Column("trial", lambda trial: str(trial.number)),
    _Column("plan", lambda trial: "" if trial.rank is None else str(trial.rank)),
    _Column("strategy", lambda trial: in_short(trial.strategy), justify="left"),
    _Column("measured s", lambda trial: _known(trial.step_time_s, seconds) or ended(trial)),
    _Column("predicted s", lambda trial: _known(trial.predicted_step_time_s, seconds)),
    _Column("80 % range", _range),
    _Column("error", lambda trial: signed(trial.error_fraction)),
    _Column("corrected s", lambda trial: _known(trial.corrected_step_time_s, seconds)),
    _Column("its error", lambda trial: signed(trial.corrected_error_fraction)),
    _Column("GiB", lambda trial: _known(trial.peak_allocated_bytes, gib)),
    _Column("GiB error", lambda trial: signed(trial.memory_error_fraction)),
    _Column("GPU s", lambda trial: _known(trial.gpu_seconds, "{:,.0f}".format)),
)
_DROPS: tuple[frozenset[str], ...] = (
    frozenset(),
    frozenset({"GPU s"}),
    frozenset({"GPU s", "80 % range"}),
    frozenset({"GPU s", "80 % range", "GiB", "GiB error"}),
    frozenset({"GPU s", "80 % range", "GiB", "GiB error", "corrected s", "its error"}),
    frozenset({"GPU s", "80 % range", "GiB", "GiB error", "corrected s", "its error", "trial"}),
    frozenset({"GPU s", "80 % range", "GiB", "GiB error", "corrected s", "its error", "trial", "error"}),
    frozenset({"GPU s", "80 % range", "GiB", "GiB error", "corrected s", "its error", "trial", "error", "plan"}),
)
"""Sets of columns to leave out, from the widest table to the narrowest; the first table that fits is shown."""


def print_tuning(document: Mapping[str, Any], *, quiet: bool, source: str = "") -> None:
    """Prints the table and what follows from it on stdout, and warnings on stderr.

    Args:
        document: a tuning.
        quiet: whether warnings are left out.
        source: where the request came from, for the header.

    Raises:
        cost_models.errors.InvalidInputError: the document is no tuning.
    """
    # Checked here, too: `--server` may print what another release wrote.
    tuning = read_tuning(document)
    out = Console(file=sys.stdout, width=console_width(), highlight=False, soft_wrap=False)
    if tuning.request is not None:
        out.print(title(tuning.request), style="bold")
    if source:
        out.print(Text(f"({source})"), style="bold")
    dropped: frozenset[str] = frozenset()
    if tuning.trials:
        table, dropped = _table((*tuning.measured, *tuning.failed, *tuning.open), width=out.width)
        out.print(table)
    out.print(Text(outcome(tuning)), style="bold" if tuning.best is not None else "bold red")
    for line in _lines(tuning, dropped):
        print_indented(line, out)
    if not quiet:
        err = Console(file=sys.stderr, width=out.width, highlight=False)
        for note in notes(tuning):
            err.print(Text.assemble(("warning: ", "yellow"), note))


def trial_line(document: Mapping[str, Any]) -> str:
    """One trial in one line, for whoever waits: "trial 3, plan 2 (dp2 z3 mb2): 0.763 s a step, 0.712 s predicted (-6.7%)"."""
    trial = TunedTrial.model_validate(dict(document))
    plan = "" if trial.rank is None else f"{plan_name(trial.rank, trial.strategy)} "
    told = f"trial {trial.number}, {plan}({in_short(trial.strategy)})"
    if trial.step_time_s is None:
        return f"{told}: {ended(trial)}" + (f": {trial.reason}" if trial.reason else "")
    told += f": {seconds(trial.step_time_s)} s a step"
    if trial.predicted_step_time_s is not None:
        told += f", {seconds(trial.predicted_step_time_s)} s predicted ({signed(trial.error_fraction)})"
    return told


def _table(trials: Sequence[TunedTrial], *, width: int) -> tuple[Table, frozenset[str]]:
    """The widest table that fits, and the headings that it leaves out although some trial would fill them."""
    # A column that no trial fills tells nothing.
    cells = {column.heading: [column.cell(trial) for trial in trials] for column in _COLUMNS}
    filled = {heading: texts for heading, texts in cells.items() if any(texts)}
    widths = {heading: max(map(len, (heading, *texts))) for heading, texts in filled.items()}
    # The widest table has room between its columns, as that of plans has.
    tried = [(_DROPS[0], 2), *((drop, 1) for drop in _DROPS)]
    dropped, gap = next(
        (
            (drop, gap)
            for drop, gap in tried
            if sum(each + gap for heading, each in widths.items() if heading not in drop) + 1 <= width
        ),
        (_DROPS[-1], 1),
    )
    table = Table(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False, header_style="bold")
    kept = [column for column in _COLUMNS if column.heading in filled and column.heading not in dropped]
    for column in kept:
        table.add_column(column.heading, justify=column.justify, no_wrap=True)
    for place, trial in enumerate(trials):
        row = (Text(cells[column.heading][place]) for column in kept)
        table.add_row(*row, style="" if trial.is_measured else "yellow")
    return table, dropped & filled.keys()


def _lines(tuning: Tuning, dropped: frozenset[str]) -> Iterator[Text]:
    for line in accuracy(tuning):
        yield Text(line)
    if told := moves(tuning):
        yield Text(told)
    # Why a plan did not run matters more than what was learnt from the others.
    yield from _failed(tuning)
    knobs = tuning.knobs or {}
    best = knobs.get("best")
    if isinstance(best, dict) and (told := knobs_gain(knobs, json.dumps(best.get("values")))):
        yield Text(f"Run-time knobs of the fastest plan: {told}")
    yield from _under("Learnt:", [correction_told(each) for each in tuning.corrections])
    if tuning.stopped is not None and tuning.stopped.message:
        yield Text(f"Stopped: {tuning.stopped.message}")
    yield Text(f"Spent: {spent(tuning)}.")
    told_next = [f"{plan_name(each.rank, each.strategy)}: {each.why}" for each in tuning.next]
    yield from _under("Worth measuring next:", told_next)
    notes = ["error: predicted against measured", "negative where less was predicted"]
    if any(each.is_in_range is False for each in tuning.trials) and "80 % range" not in dropped:
        notes.append("!: measured outside the range")
    if tuning.measured:
        yield Text(f"{', '.join(notes[:2])}{'; ' if notes[2:] else ''}{'; '.join(notes[2:])}.", style="dim")
    if dropped:
        yield Text("Some columns are left out: widen the terminal to 120 characters, or use --json.", style="dim")


def _failed(tuning: Tuning) -> Iterator[Text]:
    lines = [
        f"{plan_name(each.rank, each.strategy)}, {ended(each)}: {each.reason or 'no reason was told'}"
        for each in tuning.failed
    ]
    yield from _under("Did not run:", lines, most=len(lines))


def _under(heading: str, lines: Sequence[str], *, most: int = _SHOWN_MOST) -> Iterator[Text]:
    # A heading without lines would only make one look for them.
    if lines:
        yield Text(heading, style="bold")
        yield from (Text(f"  {line}") for line in lines[:most])
        if len(lines) > most:
            yield Text(f"  and {len(lines) - most} more in --json")
