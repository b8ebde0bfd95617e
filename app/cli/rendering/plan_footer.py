"""What stands under the table of ranked plans: where stages are, near-copies, ties, what was searched, and what to do next."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.text import Text

from app.plan_cells import (
    Json,
    degrees_above_one,
    parameter_count,
    recomputed,
    seconds,
    shown_plans,
    throughput,
    worst_tier,
    zero_stage,
)
from app.report.method_words import CHANGED_NOTE, changed_rows
from app.report.run_words import duration
from app.trained_words import tower_sentences, trained_words
from cost_models.units import GIB
from planner.answer.comparison import differing_knobs, listed_ranks, ties
from planner.answer.rejections import rejections
from planner.answer.step_cost import total_gpus

MAX_LISTED, MOST_REASONS = 6, 3
"""Number of reasons and candidates listed if no plan fits, and of reasons if some do."""
TIER_MEANINGS = {
    "measured": "on such hardware",
    "interpolated": "between measurements",
    "extrapolated": "beyond measurements",
    "nominal": "from data sheets",
}
"""What each tier says of a time, best first."""
MOST_TIED = 10
"""Number of plans among which ties are reported, however few are shown."""


def footer(
    response: Json, shown: Sequence[Json], *, unseen: Collection[str] = (), most: int | None = None
) -> list[Text]:
    """The lines under a table that shows these first plans of a response, near-copies left out.

    What is claimed of plans follows from the response alone: it does not change with how many of them are shown. `unseen` are
    the headings of columns for which the terminal is too narrow, and which need no explanation. `most` limits the plans that change the
    mathematics.
    """
    plans = response["plans"]
    lines = [
        *trained(response["request"], plans),
        *_legend(shown_plans(shown), unseen),
        *_duration(response["request"], plans),
        *_idle(response["request"], shown_plans(shown)),
        *_pools(plans),
        *_folded(shown),
        *_first_against_next(plans, shown),
        *_ties(plans, shown),
        *_searched(response),
    ]
    if response["plans"]:
        calibration = response["plans"][0]["evaluation"]["provenance"]["calibration"]
        lines.append(Text(f"Prices from {calibration}." if calibration else "Prices from nominal data sheets."))
        lines += _corrected(response)
    if best := response.get("inexpressible_best"):
        reasons = "; ".join(reason["message"] for reason in best["reasons"])
        lines.append(
            Text(f"A plan {best['gain_fraction']:.1%} faster cannot be expressed in this framework: {reasons}.")
        )
    lines += [*_changed(response, most), *_included(response)]
    if not response["plans"]:
        lines += _nearest(response["nearest_infeasible"])
    return lines


def _corrected(response: Json) -> list[Text]:
    """By which factors measured runs corrected the terms of time and memory, or that what was given corrects nothing."""
    factors = response["plans"][0]["evaluation"]["provenance"].get("corrections")
    if not factors:
        # A document of another framework or GPU has a warning of its own, and so has one for a cluster with pools.
        told = ("corrections-of-another-scope", "corrections-not-on-pools")
        is_idle = isinstance(response["request"].get("corrections"), dict)
        is_idle &= not any(warning in told for warning in response.get("warnings", ()))
        return [Text("Not corrected by measured runs: no correction is kept and switched on.")] * is_idle
    return [Text("Corrected by measured runs: " + ", ".join(f"{term} x {f:.3g}" for term, f in factors.items()) + ".")]


def trained(request: Json, plans: Sequence[Json]) -> list[Text]:
    """What is trained where that is not the whole model, and what this means for the MFU; what towers take."""
    found = plans[0]["evaluation"] if plans else {}
    lines = [Text(sentence) for sentence in tower_sentences(found)]
    if not (what := trained_words(found, request.get("training", {}))):
        return lines
    trained, stored = found["trainable_parameters"], found["stored_parameters"]
    share = f"{100.0 * trained / stored:.2g} %"
    told = Text(
        f"Trains {parameter_count(trained)} of {parameter_count(stored)} parameters ({share}): {what}. "
        "MFU counts what is computed, and so no weight gradients of frozen weights."
    )
    return [told, *lines]


def _changed(response: Json, most: int | None) -> list[Text]:
    """The plans that change the mathematics, and up to how many more steps each is worth its time."""
    rows = list(changed_rows(response, most=most))
    if not rows:
        return []
    told = [f"  {rank}. {how}: {step} s, {split}; pays below {pays}" for rank, how, split, step, pays in rows]
    return [
        Text("Plans that change the mathematics, ranked apart:", style="bold"),
        *map(Text, told),
        Text(CHANGED_NOTE, style="dim"),
    ]


def _included(response: Json) -> list[Text]:
    """What the request's `include` asked for: each what-if answer, and the size of the front, which is too long for a table."""
    lines = []
    if answers := response.get("what_if"):
        lines.append(Text("What if, with the best plan of each:", style="bold"))
        lines += [Text(f"  {_what_if(answer)}") for answer in answers]
    if stale := response.get("asynchrony"):
        never = stale[-1]["saved_fraction"]
        lines.append(
            Text(
                f"Replicas that never wait for each other would save {never:.1%} of a step (simulated); no framework here runs them so, and "
                "it changes the mathematics."
            )
        )
    if front := response.get("pareto"):
        lines.append(
            Text(
                f"The front of time, memory, GPUs and cost has {len(front)} plans; --json prints them, and `meshwright report` draws them."
            )
        )
    return lines


def _what_if(answer: Json) -> str:
    asked = answer["field"] if answer["value"] is None else f"{answer['field'].partition('.')[2]} {answer['value']}"
    if answer["plan"] is None:
        return f"{asked}: no plan; {answer['reason']}"
    used = f"{answer['num_gpus']} GPUs, {answer['peak_device_bytes'] / GIB:.1f} GiB/GPU"
    speed = (
        f"{seconds(answer['step_time_s'])} s, {answer['tokens_per_s_per_gpu']:,.0f} tok/s/GPU, MFU {answer['mfu']:.1%}"
    )
    return f"{asked}: {speed}, {used}, {degrees_above_one({'strategy': answer['plan']})}"


def _legend(plans: Sequence[Json], unseen: Collection[str]) -> list[Text]:
    """What the short marks and headings of this table mean; those that it does not have are not explained."""
    if not plans:
        return []
    notes = []
    if any(plan["strategy"].get("sequence_parallel") for plan in plans):
        notes.append("sp: sequence parallel")
    if partly := next((mark for plan in plans if "/" in (mark := zero_stage(plan))), None):
        stage, ranks = partly.split("/")
        notes.append(
            f"zero {partly}: ZeRO stage {stage} over groups of {ranks} ranks, each group with a copy of its own"
        )
    notes.append("mb: sequences of a micro-batch")
    if counted := next((text for plan in plans if (text := recomputed(plan)).startswith("full ")), None):
        notes.append(f"{counted}: so many layers of each stage are recomputed")
    notes.append("GiB/GPU: peak memory / what a process can use")
    if any(plan["evaluation"].get("verdict", "fits") != "fits" for plan in plans):
        notes.append("!: may run out of memory")
    # Both columns are left out together where a terminal is narrow.
    if "bubble" not in unseen:
        notes.append("bubble, comm: share of the step spent waiting and communicating")
    if "worst tier" not in unseen:
        tiers = [tier for tier in TIER_MEANINGS if tier in {worst_tier(plan) for plan in plans}]
        notes.append(f"worst tier: how its least certain time is known ({'; '.join(map(_tier, tiers))})")
    return [Text("; ".join(notes) + ".", style="dim")]


def _tier(name: str) -> str:
    return f"{name}: {TIER_MEANINGS[name]}"


def _duration(request: Json, plans: Sequence[Json]) -> list[Text]:
    """How long the best plan takes for the tokens that the request names."""
    tokens = request.get("training", {}).get("total_tokens")
    if not plans or not tokens:
        return []
    run = plans[0]["evaluation"].get("run")
    goodput = run and run["goodput"]
    span = duration(tokens / throughput(plans[0]) / (goodput or 1.0))
    held = f" at a goodput of {goodput:.1%}" if goodput else ", if nothing interrupts it"
    return [Text(f"Plan 1 takes {span} for {tokens:,.0f} tokens{held}{_spent(run)}.")]


def _spent(run: Json | None) -> str:
    """What a run costs and draws, where that is known."""
    if run is None:
        return ""
    # The currency is the user's own, so that none is named.
    said = {
        "gpu_hours": "{:,.0f} GPU-hours", "cost": "a cost of {:,.0f}", "energy_kwh": "{:,.0f} kWh",
        "co2_kg": "{:,.0f} kg of carbon dioxide",
    }  # fmt: skip
    parts = [text.format(run[name]) for name, text in said.items() if run[name] is not None]
    return f": {', '.join(parts)}"


def _idle(request: Json, plans: Sequence[Json]) -> list[Text]:
    """Which plans leave GPUs of the cluster unused, and what that means for rates per GPU in use."""
    total = total_gpus(request["cluster"])
    idle = {plan["rank"]: total - plan["evaluation"]["num_gpus_used"] for plan in plans}
    leaving = [rank for rank, count in idle.items() if count]
    if not leaving:
        return []
    best = plans[0]
    if best["rank"] not in leaving:
        return [Text(f"{_plans(leaving)} leave{'s' * (len(leaving) == 1)} GPUs idle; tok/s counts the whole job.")]
    used = best["evaluation"]["num_gpus_used"]
    rate = f"{best['evaluation']['tokens_per_s_per_gpu']:,.0f} tok/s on each GPU in use, {throughput(best) / total:,.0f} over all"
    told = f"Plan {best['rank']} uses {used:,} of the {total:,} GPUs and leaves {total - used:,} idle: {rate}."
    if leaving[1:]:
        told += f" {_plans(leaving[1:])} leave{'s' * (len(leaving) == 2)} GPUs idle, too."
    if request.get("objective", "step_time") == "step_time":
        told += " For plans on all GPUs, try another batch size or set constraints.allow_idle_gpus to false."
    return [Text(told)]


def _plans(ranks: Sequence[int], *, capital: bool = True) -> str:
    word = "plan" if len(ranks) == 1 else "plans"
    return f"{word.capitalize() if capital else word} {listed_ranks(ranks)}"


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
    """How many near-copies the table leaves out, and which knobs set them apart from the plan that stands for them."""
    by_rank = {plan["rank"]: plan for plan in plans}
    copies = [plan for plan in plans if plan.get("folded_under") is not None]
    knobs = dict.fromkeys(knob for plan in copies for knob in differing_knobs(by_rank[plan["folded_under"]], plan))
    if not copies:
        return []
    subject = f"{len(copies)} near-copies of plans above" if len(copies) > 1 else "A near-copy of a plan above"
    verb = "are" if len(copies) > 1 else "is"
    return [Text(f"{subject} (other {', '.join(knobs) or 'details'}; as fast to within 1 %) {verb} left out.")]


def _first_against_next(plans: Sequence[Json], shown: Sequence[Json]) -> list[Text]:
    """How the best plan compares with the next different one, which is described if the table does not show it."""
    told = plans[0].get("against_next") if plans else None
    if not told:
        return []
    best, *others = shown_plans(plans)
    line = f"Plan {best['rank']} is {told}."
    if others and others[0]["rank"] not in {plan["rank"] for plan in shown}:
        line += f" Plan {others[0]['rank']}, which is not shown, is {_described(others[0])}."
    return [Text(line)]


def _ties(plans: Sequence[Json], shown: Sequence[Json]) -> list[Text]:
    """Which plans are too close to a shown one to call, and which two of the first such group to measure."""
    in_table = [plan["rank"] for plan in shown_plans(shown)]
    # Ties among at least the first ten: with --top 1 the user still learns that another plan is as good.
    leaders = shown_plans(plans)[: max(len(in_table), MOST_TIED)]
    by_rank = {plan["rank"]: plan for plan in leaders}
    groups = [group for group in ties(leaders) if set(group["ranks"]) & set(in_table)]
    if not groups:
        return []
    first, *rest = [_of_group(group["ranks"], in_table) for group in groups]
    line = f"Too close to call: {'; '.join([first, *rest])}."
    one, other = next(group["measure"] for group in ties(leaders[:MOST_TIED]) or groups)
    unseen = "" if other in in_table else f" ({_described(by_rank[other])})"
    return [Text(f"{line} Measuring plans {one} and {other}{unseen} first would tell you the most.")]


def _of_group(ranks: Sequence[int], in_table: Sequence[int]) -> str:
    """The plans of a tie: those in the table by their rank, and the number of the others."""
    seen = [rank for rank in ranks if rank in in_table]
    more = len(ranks) - len(seen)
    unseen = f"{',' * (len(seen) > 1)} and {more} more not shown" if more else ""
    return _plans(seen, capital=False) + unseen


def _described(plan: Json) -> str:
    return f"{degrees_above_one(plan)} mb{plan['strategy'].get('micro_batch_size') or 1} {recomputed(plan)}"


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
        lines.append(Text(f"Searched {axes or 'nothing'}: {_counts(search)}, {search['elapsed_s']:.2f} s; {how}."))
    if rejected := response["rejected"]:
        most = MOST_REASONS if response["plans"] else MAX_LISTED
        lines.append(Text(f"Of the other strategies, {rejections(rejected, most=most)}."))
    return lines


def _counts(search: Json) -> str:
    """What became of the strategies, but for the rejected ones."""
    counted = f"{search['total']:,} strategies, {search['evaluated']:,} priced"
    if search["feasible"] != search["evaluated"]:
        counted += f" ({search['feasible']:,} feasible)"
    if search["bounded"]:
        counted += f", {search['bounded']:,} excluded by bounds"
    return counted + (f", {search['unsearched']:,} not searched" if search["unsearched"] else "")


def _varied(axis: str, values: Sequence[object]) -> bool:
    """Whether more than one value of an axis was searched. For pools a single text stands for many lists."""
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
