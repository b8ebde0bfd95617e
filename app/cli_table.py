"""Ranked plans as a table for people: the columns that a width affords, over the lines of `app.cli_footer`.

The table is data (stdout); warnings and hints are not (stderr).
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

from app.cli_cells import (
    COMM_TERMS,
    Json,
    degree,
    degrees_above_one,
    memory_of_capacity,
    recomputed,
    share_of_step,
    shown_plans,
    step_range,
    step_time,
    tensor_parallel,
    worst_tier,
    zero_stage,
)
from app.cli_footer import footer
from cost_models.specs.fields import WARNINGS

PIPED_WIDTH = 120
"""Columns where stdout is no terminal and COLUMNS is not set."""
NARROWEST = 20
"""Columns used where COLUMNS says fewer, such as 0 in some containers."""


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
"""Stands for all the degrees where they do not fit."""
COLUMNS = (
    Column("#", lambda plan: str(plan["rank"])),
    *DEGREES,
    SPLIT,
    Column("mb", lambda plan: str(plan["strategy"]["micro_batch_size"])),
    Column("recompute", recomputed, justify="left"),
    Column("step s", step_time),
    Column("80 % range", step_range),
    Column("tok/s/GPU", lambda plan: f"{plan['evaluation']['tokens_per_s_per_gpu']:,.0f}"),
    Column("MFU", lambda plan: f"{plan['evaluation']['mfu']:.1%}"),
    Column("GiB/GPU", memory_of_capacity),
    Column("bubble", share_of_step("pp_bubble")),
    Column("comm", share_of_step(*COMM_TERMS)),
    Column("worst tier", worst_tier, justify="left"),
)
DROPS: tuple[frozenset[str], ...] = (
    frozenset({SPLIT.heading}),
    frozenset({SPLIT.heading, "80 % range"}),
    frozenset({SPLIT.heading, "80 % range", "worst tier"}),
    frozenset({*(column.heading for column in DEGREES), "80 % range", "worst tier"}),
    frozenset({*(column.heading for column in DEGREES), "80 % range", "worst tier", "bubble", "comm"}),
    frozenset({*(column.heading for column in DEGREES), "80 % range", "worst tier", "bubble", "comm", "MFU"}),
    frozenset(
        {*(column.heading for column in DEGREES), *("80 % range", "worst tier", "bubble", "comm", "MFU", "tok/s/GPU")}
    ),
)
"""Columns left out, from the widest table to the narrowest; the first that fits is shown."""


def print_response(response: Json, *, most: int | None = None, quiet: bool) -> None:
    """Prints the table and its footer on stdout, warnings on stderr; at most so many plans, near-copies not counted."""
    response = _first_shown(response, most)
    out = Console(file=sys.stdout, width=_width(), highlight=False, soft_wrap=False)
    out.print(_title(response["request"]), style="bold")
    if response["plans"]:
        table, dropped = _table(shown_plans(response["plans"]), width=out.width)
        out.print(table)
    else:
        dropped = frozenset()
        out.print("No plan fits.", style="bold red")
    for line in footer(response):
        out.print(line)
    if dropped:
        out.print("Some columns are left out: widen the terminal to 120, or use --json.", style="dim")
    if not quiet:
        err = Console(file=sys.stderr, width=out.width, highlight=False)
        for warning in response["warnings"]:
            meaning = f": {WARNINGS[warning]}" if warning in WARNINGS else ""
            err.print(Text.assemble(("warning: ", "yellow"), warning, meaning))


def _width() -> int | None:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal():
        return max(int(columns), NARROWEST)
    return None if sys.stdout.isatty() else PIPED_WIDTH


def _table(plans: Sequence[Json], *, width: int) -> tuple[Table, frozenset[str]]:
    """The widest table that fits, and the headings it leaves out."""
    cells = {column.heading: [column.cell(plan) for plan in plans] for column in COLUMNS}
    widths = {heading: max(map(len, (heading, *texts))) for heading, texts in cells.items()}
    tried = [(DROPS[0], 2), *((drop, 1) for drop in DROPS)]
    fitting = (
        (drop, gap)
        for drop, gap in tried
        if sum(w + gap for heading, w in widths.items() if heading not in drop) + 1 <= width
    )
    dropped, gap = next(fitting, (DROPS[-1], 1))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False, header_style="bold")
    columns = [column for column in COLUMNS if column.heading not in dropped]
    for column in columns:
        table.add_column(column.heading, justify=column.justify, no_wrap=True)
    for index, plan in enumerate(plans):
        style = "yellow" if plan["evaluation"]["verdict"] != "fits" else ""
        table.add_row(*(Text(cells[column.heading][index]) for column in columns), style=style)
    return table, dropped - {SPLIT.heading}


def _title(request: Json) -> Text:
    model, cluster, training = request["model"], request["cluster"], request["training"]
    name = model.get("name") or model.get("preset") or "model"
    nodes = " + ".join(_nodes(pool) for pool in cluster.get("pools") or [cluster])
    framework = " ".join(str(training[key]) for key in ("framework", "framework_version") if training.get(key))
    return Text(
        f"{name} on {nodes}, "
        f"sequence {training['seq_length']}, batch {training.get('global_batch_size', '?')}, "
        f"{training.get('precision', '')}, {framework}"
    )


def _nodes(cluster: Json) -> str:
    """The nodes of one kind: how many, of how many of which GPU."""
    gpu = cluster.get("gpu")
    gpu_name = gpu.get("name", "GPU") if isinstance(gpu, Mapping) else gpu or cluster.get("preset", "GPU")
    return f"{cluster.get('num_nodes', '?')} x {cluster.get('gpus_per_node', '?')} {gpu_name}"


def _first_shown(response: Json, most: int | None) -> Json:
    """The response without the plans that come after so many shown ones."""
    shown = shown_plans(response["plans"])
    if most is None or len(shown) <= most:
        return response
    end = shown[most]["rank"]
    return {**response, "plans": [plan for plan in response["plans"] if plan["rank"] < end]}
