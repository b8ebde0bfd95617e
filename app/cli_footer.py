"""What stands under the table of ranked plans: where stages lie, near-copies, ties, what was searched, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from app.cli_cells import Json, degrees_above_one, seconds, shown_plans, zero_stage
from cost_models.units import GIB
from planner.comparison import differing_knobs, ties

MAX_LISTED = 6


def footer(response: Json) -> list[Text]:
    """The lines under a table that shows the response's plans but for near-copies."""
    plans = response["plans"]
    lines = [
        *_legend(shown_plans(plans)),
        *_pools(plans),
        *_folded(plans),
        *_first_against_next(plans),
        *_ties(plans),
        *_searched(response),
    ]
    if response["plans"]:
        calibration = response["plans"][0]["evaluation"]["provenance"]["calibration"]
        lines.append(Text(f"Prices from {calibration}." if calibration else "Prices from nominal data sheets."))
    if best := response.get("inexpressible_best"):
        reasons = "; ".join(reason["message"] for reason in best["reasons"])
        lines.append(Text(f"{best['gain_fraction']:.1%} faster, but not expressible here: {reasons}"))
    lines += _included(response)
    if not response["plans"]:
        lines += _nearest(response["nearest_infeasible"])
    return lines


def _included(response: Json) -> list[Text]:
    """What a request's `include` asked for: each what-if answer, and how large the front is, too long for a table."""
    lines = []
    if answers := response.get("what_if"):
        lines.append(Text("What if, with the best plan of each:", style="bold"))
        lines += [Text(f"  {_what_if(answer)}") for answer in answers]
    if front := response.get("pareto"):
        lines.append(Text(f"Front of time, memory, GPUs and cost: {len(front)} plans, with --json."))
    return lines


def _what_if(answer: Json) -> str:
    asked = answer["field"] if answer["value"] is None else f"{answer['field'].partition('.')[2]} {answer['value']}"
    if answer["plan"] is None:
        return f"{asked}: none, {answer['reason']}"
    used = f"{answer['num_gpus']} GPUs, {answer['peak_device_bytes'] / GIB:.1f} GiB/GPU"
    speed = (
        f"{seconds(answer['step_time_s'])} s, {answer['tokens_per_s_per_gpu']:,.0f} tok/s/GPU, MFU {answer['mfu']:.1%}"
    )
    return f"{asked}: {speed}, {used}, {degrees_above_one({'strategy': answer['plan']})}"


def _legend(plans: Sequence[Json]) -> list[Text]:
    """What the short marks of this table mean."""
    notes = []
    if any(plan["strategy"].get("sequence_parallel") for plan in plans):
        notes.append("sp: sequence parallel")
    if any("/" in zero_stage(plan) for plan in plans):
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


def _folded(plans: Sequence[Json]) -> list[Text]:
    """How many plans are left out of the table under which, and what sets them apart."""
    by_rank = {plan["rank"]: plan for plan in plans}
    copies: dict[int, list[Json]] = {}
    for plan in plans:
        if (leader := plan.get("folded_under")) is not None:
            copies.setdefault(leader, []).append(plan)
    told = []
    for leader, members in sorted(copies.items()):
        knobs = dict.fromkeys(knob for plan in members for knob in differing_knobs(by_rank[leader], plan))
        told.append(f"{len(members)} of plan {leader} ({', '.join(knobs) or 'details'})")
    return [Text(f"Ranks left out are near-copies, as fast to within 1 %: {'; '.join(told)}.")] if told else []


def _first_against_next(plans: Sequence[Json]) -> list[Text]:
    """What the best plan gains and loses against the next row, and whether the two are a tie."""
    told = plans[0].get("against_next") if plans else None
    if not told:
        return []
    best, *others = shown_plans(plans)
    total, colon, terms = told.partition(":")
    tied = any(other["tie_group"] == best["tie_group"] for other in others[:1])
    return [Text(f"Plan {best['rank']} is {total}{', too little to tell' if tied else ''}{colon}{terms}.")]


def _ties(plans: Sequence[Json]) -> list[Text]:
    """Which of the shown plans cannot be told apart, and which two of the first such group to measure."""
    groups = ties(shown_plans(plans))
    if not groups:
        return []
    one, other = groups[0]["measure"]
    listed = ", ".join(_listed(group["ranks"]) for group in groups)
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
        axes = " ".join(name for name, values in search["space"].items() if _varied(name, values))
        counted = f"{search['feasible']:,} found to fit, {search['evaluated']:,} priced"
        bounded = proof["optimal"] and search["feasible"] != search["evaluated"]
        rest = ", bounds exclude the rest" if bounded else ""
        lines.append(Text(f"Searched {axes or 'nothing'}: {counted}{rest}, {search['elapsed_s']:.2f} s; {how}."))
    if rejected := response["rejected"]:
        ordered = sorted(rejected.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{code} {count:,}" for code, count in ordered[:MAX_LISTED])
        more = f" and {len(ordered) - MAX_LISTED} other reasons" if len(ordered) > MAX_LISTED else ""
        lines.append(Text(f"Rejected {sum(rejected.values()):,}: {shown}{more}."))
    return lines


def _varied(axis: str, values: Sequence[object]) -> bool:
    """Whether an axis was searched; one text in the place of pools stands for many lists of them."""
    return len(values) > 1 or (axis == "pool_per_stage" and any(isinstance(value, str) for value in values))


def _nearest(candidates: Sequence[Json]) -> list[Text]:
    lines = [Text("Nearest:", style="bold")] if candidates else []
    for candidate in candidates[:MAX_LISTED]:
        reasons = "; ".join(reason["message"] for reason in candidate["reasons"])
        lines.append(
            Text.assemble(
                (f"  {degrees_above_one(candidate)} mb{candidate['strategy'].get('micro_batch_size') or 1}: ", "bold"),
                reasons,
            )
        )
        lines.append(Text(f"    smallest change: {candidate['smallest_change']}"))
    return lines
