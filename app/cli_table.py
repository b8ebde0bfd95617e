"""Ranked plans as a table for people: the columns that a width affords, what was searched, and what to do next.

The table is data (stdout); warnings and hints are not (stderr). Human units appear here and nowhere further inside.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cost_models.specs.fields import WARNINGS
from cost_models.units import GIB
from planner.comparison import differing_knobs

Json = Mapping[str, Any]
COMM_TERMS = ("tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm", "tied_embedding_comm")
"""Time terms that are exposed communication."""
TIERS = ("measured", "interpolated", "extrapolated", "nominal")
"""Best first; the worst one that takes time is shown."""
PIPED_WIDTH = 120
"""Columns where stdout is no terminal and COLUMNS is not set."""
NARROWEST = 20
"""Columns used where COLUMNS says fewer, such as 0 in some containers."""
MAX_LISTED = 6


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its heading, and how a plan fills it."""

    heading: str
    cell: Callable[[Json], str]
    justify: Literal["left", "right"] = "right"


def _degree(name: str) -> Callable[[Json], str]:
    return lambda plan: str(plan["strategy"].get(name) or 1)


def _tp(plan: Json) -> str:
    strategy = plan["strategy"]
    return f"{strategy.get('tp') or 1}{'sp' if strategy.get('sequence_parallel') else ''}"


def _zero(plan: Json) -> str:
    """The ZeRO stage, and over how many ranks where these are not all replicas."""
    strategy = plan["strategy"]
    stage, shard = strategy.get("zero") or 0, strategy.get("zero_shard_size")
    replicas = (strategy.get("dp") or 1) * (strategy.get("cp") or 1)
    return f"{stage}/{shard}" if stage and shard and shard < replicas else str(stage)


def _split(plan: Json) -> str:
    """All degrees above 1 in one cell, for narrow terminals."""
    names = ("pp", "dp", "cp", "ep", "vpp")
    parts = [f"{n}{plan['strategy'][n]}" for n in names if (plan["strategy"].get(n) or 1) > 1]
    tp = _tp(plan)
    return " ".join([*([] if tp == "1" else [f"tp{tp}"]), *parts, f"z{_zero(plan)}"])


def _recompute(plan: Json) -> str:
    strategy = plan["strategy"]
    kind, count = strategy.get("recompute") or "none", strategy.get("recompute_num_layers")
    return f"{kind} {count}" if kind == "full" and count else kind


def _step(plan: Json) -> str:
    return seconds(plan["evaluation"]["step_time_s"])


def _step_range(plan: Json) -> str:
    low, high = plan["evaluation"]["step_time_range_s"]
    return f"{seconds(low)}-{seconds(high)}"


def _memory(plan: Json) -> str:
    memory = plan["evaluation"]["memory"]
    mark = "" if plan["evaluation"]["verdict"] == "fits" else "!"
    return f"{memory['peak_device_bytes'] / GIB:.1f}/{memory['capacity_bytes'] / GIB:.1f}{mark}"


def _share(*terms: str) -> Callable[[Json], str]:
    def cell(plan: Json) -> str:
        breakdown = plan["evaluation"]["time_breakdown_s"]
        share = sum(breakdown.get(term, 0.0) for term in terms) / plan["evaluation"]["step_time_s"]
        return f"{share:.1%}"

    return cell


def _worst_tier(plan: Json) -> str:
    evaluation = plan["evaluation"]
    used = [
        tier for term, tier in evaluation["provenance"]["terms"].items() if evaluation["time_breakdown_s"].get(term)
    ]
    return max(used, key=TIERS.index, default=TIERS[0])


DEGREES = (
    Column("tp", _tp),
    *(Column(name, _degree(name)) for name in ("pp", "dp", "cp", "ep", "vpp")),
    Column("zero", _zero),
)
SPLIT = Column("split", _split, justify="left")
"""Stands for all the degrees where they do not fit."""
COLUMNS = (
    Column("#", lambda plan: str(plan["rank"])),
    *DEGREES,
    SPLIT,
    Column("mb", lambda plan: str(plan["strategy"]["micro_batch_size"])),
    Column("recompute", _recompute, justify="left"),
    Column("step s", _step),
    Column("80 % range", _step_range),
    Column("tok/s/GPU", lambda plan: f"{plan['evaluation']['tokens_per_s_per_gpu']:,.0f}"),
    Column("MFU", lambda plan: f"{plan['evaluation']['mfu']:.1%}"),
    Column("GiB/GPU", _memory),
    Column("bubble", _share("pp_bubble")),
    Column("comm", _share(*COMM_TERMS)),
    Column("worst tier", _worst_tier, justify="left"),
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
        table, dropped = _table(_shown(response["plans"]), width=out.width)
        out.print(table)
    else:
        dropped = frozenset()
        out.print("No plan fits.", style="bold red")
    for line in _footer(response):
        out.print(line)
    if dropped:
        out.print("Some columns are left out: widen the terminal to 120, or use --json.", style="dim")
    if not quiet:
        err = Console(file=sys.stderr, width=out.width, highlight=False)
        for warning in response["warnings"]:
            meaning = f": {WARNINGS[warning]}" if warning in WARNINGS else ""
            err.print(Text.assemble(("warning: ", "yellow"), warning, meaning))


def seconds(value: float) -> str:
    """Seconds with three significant digits and no unit."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:#.3g}"


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


def _footer(response: Json) -> list[Text]:
    plans = response["plans"]
    lines = [
        *_legend(_shown(plans)),
        *_pools(plans),
        *_folded(plans),
        *_first_against_next(plans),
        *_ties(response),
        *_searched(response),
    ]
    if response["plans"]:
        calibration = response["plans"][0]["evaluation"]["provenance"]["calibration"]
        lines.append(Text(f"Prices from {calibration}." if calibration else "Prices from nominal data sheets."))
    if best := response.get("inexpressible_best"):
        reasons = "; ".join(reason["message"] for reason in best["reasons"])
        lines.append(Text(f"{best['gain_fraction']:.1%} faster, but not expressible here: {reasons}"))
    if not response["plans"]:
        lines += _nearest(response["nearest_infeasible"])
    return lines


def _legend(plans: Sequence[Json]) -> list[Text]:
    """What the short marks of this table mean."""
    notes = []
    if any(plan["strategy"].get("sequence_parallel") for plan in plans):
        notes.append("sp: sequence parallel")
    if any("/" in _zero(plan) for plan in plans):
        notes.append("zero 1/8: state sharded over 8 ranks, replicated beyond")
    return [Text("; ".join(notes) + ".", style="dim")] if notes else []


def _pools(plans: Sequence[Json]) -> list[Text]:
    """Where the stages of the best plan lie, with the layers of each."""
    best = plans[0]["strategy"] if plans else {}
    pools = best.get("pool_per_stage")
    if not pools:
        return []
    stages, split = len(pools), best["layers_per_stage"]
    held = [sum(split[stage::stages]) for stage in range(stages)]
    parts = [
        f"{pools.count(pool)} {'stage' if pools.count(pool) == 1 else 'stages'} on {pool} "
        f"({'+'.join(str(held[stage]) for stage in range(stages) if pools[stage] == pool)} layers)"
        for pool in dict.fromkeys(pools)
    ]
    return [Text(f"Plan 1 puts {', then '.join(parts)}.")]


def _shown(plans: Sequence[Json]) -> list[Json]:
    """The plans that are no near-copy of a better one."""
    return [plan for plan in plans if plan.get("folded_under") is None]


def _first_shown(response: Json, most: int | None) -> Json:
    """The response without the plans, and the ties among them, that come after so many shown ones."""
    shown = _shown(response["plans"])
    if most is None or len(shown) <= most:
        return response
    end = shown[most]["rank"]
    ties = [tie | {"ranks": [rank for rank in tie["ranks"] if rank < end]} for tie in response.get("ties") or []]
    return {
        **response,
        "plans": [plan for plan in response["plans"] if plan["rank"] < end],
        "ties": [tie for tie in ties if len(tie["ranks"]) > 1 and max(tie["measure"]) < end],
    }


def _folded(plans: Sequence[Json]) -> list[Text]:
    """How many plans are left out of the table under which, and what sets them apart."""
    by_rank = {plan["rank"]: plan for plan in plans}
    copies: dict[int, list[Json]] = {}
    for plan in plans:
        if (leader := plan.get("folded_under")) is not None:
            copies.setdefault(leader, []).append(plan)
    told = []
    for leader, members in copies.items():
        knobs = dict.fromkeys(knob for plan in members for knob in differing_knobs(by_rank[leader], plan))
        told.append(f"{len(members)} of plan {leader} ({', '.join(knobs) or 'details'})")
    return [Text(f"Near-copies, as fast to within 1 %, left out: {'; '.join(told)}.")] if told else []


def _first_against_next(plans: Sequence[Json]) -> list[Text]:
    told = plans[0].get("against_next") if plans else None
    return [Text(f"Plan {plans[0]['rank']} is {told}.")] if told else []


def _ties(response: Json) -> list[Text]:
    ties = response.get("ties") or []
    if not ties:
        return []
    shown = {plan["rank"] for plan in _shown(response["plans"])}
    one, other = next((tie["measure"] for tie in ties if shown.issuperset(tie["measure"])), ties[0]["measure"])
    listed = ", ".join(_listed(tie["ranks"]) for tie in ties)
    return [Text(f"Cannot be told apart: {listed}; measuring {one} against {other} would tell most.")]


def _listed(ranks: Sequence[int]) -> str:
    return f"{ranks[0]}-{ranks[-1]}" if _run(ranks) else "/".join(map(str, ranks))


def _run(ranks: Sequence[int]) -> bool:
    return len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1))


def _searched(response: Json) -> list[Text]:
    search = response["search"]
    lines = []
    if search is not None:
        proof = search["proof"]
        complete = "optimal in the searched space" if response["plans"] else "all of the searched space"
        how = complete if proof["optimal"] else "not proved optimal"
        if not proof["optimal"] and proof["gap"] is not None:
            how += f", gap {proof['gap']:.1%}"
        axes = " ".join(name for name, values in search["space"].items() if len(values) > 1)
        lines.append(
            Text(
                f"Searched {axes or 'nothing'}: {search['evaluated']:,} evaluated, {search['feasible']:,} fit, "
                f"{search['elapsed_s']:.2f} s; {how}."
            )
        )
    if rejected := response["rejected"]:
        ordered = sorted(rejected.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{code} {count:,}" for code, count in ordered[:MAX_LISTED])
        more = f" and {len(ordered) - MAX_LISTED} other reasons" if len(ordered) > MAX_LISTED else ""
        lines.append(Text(f"Rejected {sum(rejected.values()):,}: {shown}{more}."))
    return lines


def _nearest(candidates: Sequence[Json]) -> list[Text]:
    lines = [Text("Nearest:", style="bold")] if candidates else []
    for candidate in candidates[:MAX_LISTED]:
        reasons = "; ".join(reason["message"] for reason in candidate["reasons"])
        lines.append(
            Text.assemble(
                (f"  {_split(candidate)} mb{candidate['strategy'].get('micro_batch_size') or 1}: ", "bold"), reasons
            )
        )
        lines.append(Text(f"    smallest change: {candidate['smallest_change']}"))
    return lines
