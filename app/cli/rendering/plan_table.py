"""Ranked plans as a table for people: the columns that a width affords, over the lines of `app.cli.rendering.plan_footer`.

The table is data and goes to stdout; warnings and hints go to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.rendering.plan_footer import footer
from app.plan_cells import (
    Json,
    degree,
    degrees_above_one,
    gpus_used,
    memory_of_capacity,
    parameter_count,
    recomputed,
    share_of_step,
    shown_plans,
    step_range,
    step_time,
    tensor_parallel,
    throughput,
    worst_tier,
    zero_stage,
)
from app.report.method_words import arithmetic, has_other_arithmetic
from cost_models.errors import InvalidInputError
from cost_models.inputs.fields import WARNINGS
from cost_models.inputs.model import resolve_model
from cost_models.layers.parameters import count_parameters
from cost_models.terms import COMMUNICATION
from planner.answer.step_cost import is_priced, step_cost, total_gpus

PIPED_WIDTH = 120
"""Width in characters if stdout is not a terminal and COLUMNS is not set."""
NARROWEST = 20
"""Width used if COLUMNS says less, such as 0 in some containers."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its heading, and how a plan fills it."""

    heading: str
    cell: Callable[[Json], str]
    justify: Literal["left", "right"] = "right"


DEGREES = (
    Column("tp", tensor_parallel),
    *(Column(name, degree(name)) for name in ("pp", "dp", "cp", "ep", "vpp")),
    Column("zero", zero_stage),
)
SPLIT = Column("split", degrees_above_one, justify="left")
"""Stands for all the degrees if they do not fit one by one."""
_FOLDED = frozenset(column.heading for column in DEGREES)
# What costs least is dropped first: a reader can do without the range and its tier, which --json has, but not without the split,
# the time and the memory of a plan.
DROPS: tuple[frozenset[str], ...] = (
    frozenset({SPLIT.heading}),
    frozenset({SPLIT.heading, "80 % range"}),
    frozenset({SPLIT.heading, "80 % range", "worst tier"}),
    _FOLDED | {"80 % range", "worst tier"},
    _FOLDED | {"80 % range", "worst tier", "bubble", "comm"},
    _FOLDED | {"80 % range", "worst tier", "bubble", "comm", "MFU"},
    _FOLDED | {"80 % range", "worst tier", "bubble", "comm", "MFU", "tok/s/GPU", "tok/s"},
)
"""Sets of columns to leave out, from the widest table to the narrowest; the first table that fits is shown."""


def columns_of(request: Json, plans: Sequence[Json]) -> tuple[Column, ...]:
    """The columns of a table of these plans if it were wide enough.

    If plans differ in the GPUs that they use, or leave some idle, a column counts them and the tokens are those of the whole
    job: a rate per GPU in use would make the plan that uses few look best.
    """
    cluster, objective = request["cluster"], request.get("objective", "step_time")
    everything = {total_gpus(cluster)}
    counted = objective != "step_time" or {plan["evaluation"]["num_gpus_used"] for plan in plans} != everything
    rate = Column("tok/s/GPU", lambda plan: f"{plan['evaluation']['tokens_per_s_per_gpu']:,.0f}")
    cost = Column("cost/step" if is_priced(cluster) else "GPU-s/step", lambda plan: f"{step_cost(plan, cluster):,.4g}")
    return (
        Column("#", lambda plan: str(plan["rank"])),
        *[Column("GPUs", gpus_used)] * counted,
        *DEGREES,
        SPLIT,
        Column("mb", lambda plan: str(plan["strategy"]["micro_batch_size"])),
        Column("recompute", recomputed, justify="left"),
        *[Column("mathematics", arithmetic, justify="left")] * has_other_arithmetic(plans),
        *[cost] * (objective == "cost"),
        Column("step s", step_time),
        Column("80 % range", step_range),
        Column("tok/s", lambda plan: f"{throughput(plan):,.0f}") if counted else rate,
        Column("MFU", lambda plan: f"{plan['evaluation']['mfu']:.1%}"),
        Column("GiB/GPU", memory_of_capacity),
        Column("bubble", share_of_step("pp_bubble")),
        Column("comm", share_of_step(*COMMUNICATION)),
        Column("worst tier", worst_tier, justify="left"),
    )


def print_response(response: Json, *, most: int | None = None, quiet: bool, source: str = "") -> None:
    """Prints the table and its footer on stdout and warnings on stderr.

    Args:
        response: a plan response.
        most: limits the plans, not counting near-copies.
        quiet: whether warnings are left out.
        source: where the request came from, for the header.
    """
    shown = _first_shown(response["plans"], most)
    out = Console(file=sys.stdout, width=console_width(), highlight=False, soft_wrap=False)
    for line in _header(response["request"], source, width=out.width):
        out.print(line, style="bold")
    if shown:
        rows = shown_plans(shown)
        table, dropped = _table(columns_of(response["request"], rows), rows, width=out.width)
        out.print(table)
    else:
        dropped = frozenset()
        out.print(_no_plan(response), style="bold red")
    for line in footer(response, shown, unseen=dropped, most=most):
        print_indented(line, out)
    if dropped:
        out.print("Some columns are left out: widen the terminal to 120 characters, or use --json.", style="dim")
    if not quiet:
        err = Console(file=sys.stderr, width=out.width, highlight=False)
        for warning in response["warnings"]:
            meaning = f": {WARNINGS[warning]}" if warning in WARNINGS else ""
            err.print(Text.assemble(("warning: ", "yellow"), warning, meaning))


def print_indented(line: Text, out: Console) -> None:
    """Prints a line; where it begins with blanks and is too long, it goes on two characters further in."""
    indent = len(line.plain) - len(line.plain.lstrip())
    if not indent:
        out.print(line)
        return
    # The first piece may be as wide as the others, so that one width serves all of them.
    for place, piece in enumerate(line[indent:].wrap(out, max(out.width - indent - 2, NARROWEST))):
        piece.rstrip()
        out.print(Text(" " * (indent + 2 * (place > 0))) + piece, overflow="fold")


def _no_plan(response: Json) -> str:
    """That there is no plan, which a search that was stopped cannot know."""
    search = response["search"]
    return "No plan was found before the search was stopped." if search and search["unsearched"] else "No plan fits."


def console_width() -> int | None:
    """Characters of a line on stdout; None leaves it to the terminal."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal():
        return max(int(columns), NARROWEST)
    return None if sys.stdout.isatty() else PIPED_WIDTH


def _table(columns: Sequence[Column], plans: Sequence[Json], *, width: int) -> tuple[Table, frozenset[str]]:
    """The widest table that fits, and the headings that it leaves out."""
    cells = {column.heading: [column.cell(plan) for plan in plans] for column in columns}
    widths = {heading: max(map(len, (heading, *texts))) for heading, texts in cells.items()}
    tried = [(DROPS[0], 2), *((drop, 1) for drop in DROPS)]
    fitting = (
        (drop, gap)
        for drop, gap in tried
        if sum(w + gap for heading, w in widths.items() if heading not in drop) + 1 <= width
    )
    dropped, gap = next(fitting, (DROPS[-1], 1))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False, header_style="bold")
    kept = [column for column in columns if column.heading not in dropped]
    for column in kept:
        table.add_column(column.heading, justify=column.justify, no_wrap=True)
    for index, plan in enumerate(plans):
        style = "yellow" if plan["evaluation"]["verdict"] != "fits" else ""
        table.add_row(*(Text(cells[column.heading][index]) for column in kept), style=style)
    return table, (dropped & cells.keys()) - {SPLIT.heading}


def _header(request: Json, source: str, *, width: int) -> list[Text]:
    """The title with where the request came from behind it, or below it where a line is too short for both."""
    line, origin = title(request), f"({source})" if source else ""
    if not origin or len(line.plain) > width or len(line.plain) + len(origin) < width:
        return [Text(f"{line.plain} {origin}".rstrip())]
    return [line, Text(origin)]


def title(request: Json) -> Text:
    """What a request asks about: model with its parameters, nodes, sequence, batch, precision, framework."""
    model, cluster, training = request["model"], request["cluster"], request["training"]
    name = f"{model.get('name') or 'model'}{_size(model, towers=bool(training.get('towers')))}"
    nodes = " + ".join(_nodes(pool) for pool in cluster.get("pools") or [cluster])
    framework = " ".join(str(training[key]) for key in ("framework", "framework_version") if training.get(key))
    parts = [
        f"{name} on {nodes}",
        f"sequence {_counted(training['seq_length'])}",
        f"batch {_counted(training.get('global_batch_size', '?'))}",
        training.get("precision", ""),
        framework,
    ]
    return Text(", ".join(part for part in parts if part))


def _counted(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _nodes(cluster: Json) -> str:
    """The nodes of one kind, as `2 x 8 H100-SXM-80GB`."""
    gpu = cluster.get("gpu")
    gpu_name = gpu.get("name", "GPU") if isinstance(gpu, Mapping) else gpu or cluster.get("preset", "GPU")
    return f"{cluster.get('num_nodes', '?')} x {cluster.get('gpus_per_node', '?')} {gpu_name}"


def _size(model: Json, *, towers: bool) -> str:
    """The parameters in brackets, with three digits, and of experts those that a token uses; empty for half a description.

    A tower has its own sentence, so that here it is said that it is not counted.
    """
    try:
        resolved = resolve_model(model)
    except InvalidInputError:
        return ""
    counts = count_parameters(resolved)
    active = f", {parameter_count(counts.active)} active" if resolved.moe is not None else ""
    others = " without towers" if towers else ""
    return f" ({parameter_count(counts.total)} parameters{active}{others})"


def _first_shown(plans: Sequence[Json], most: int | None) -> Sequence[Json]:
    """The plans up to the last that is shown, near-copies among them included."""
    shown = shown_plans(plans)
    if most is None or len(shown) <= most:
        return plans
    return [plan for plan in plans if plan["rank"] < shown[most]["rank"]]
