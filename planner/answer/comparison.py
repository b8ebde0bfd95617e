"""How ranked plans compare: what separates each from the next one, which are near-copies, and which two of a tie to measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cost_models.strategies.strategy import Bools, Ints
from cost_models.terms import TIME_TERMS
from planner.answer.step_cost import gpu_weight, is_priced
from planner.schemas.plan_request import Objective

Document = dict[str, Any]
SPLIT_FIELDS = ("tp", "pp", "dp", "cp", "ep", "etp", "micro_batch_size")
"""Plans that agree in all of these differ only in a knob."""
KNOBS = (
    "vpp", "zero", "zero_shard_size", "sequence_parallel", "recompute", "recompute_num_layers", "schedule",
    "layers_per_stage", "cp_comm", "moe_dispatcher", "flex_backend", "overlap", "offload",
)  # fmt: skip
"""The fields in which variants of a plan can differ; every other field follows from these and SPLIT_FIELDS."""
RUN_TO_RUN = 0.01
"""Share of a step by which two runs of the same plan differ.

Pairs of equal runs in data/measured/own_*.jsonl differ by 0.1 to 1.5 %. A variant that is this close to a better plan gives the
user nothing to choose, so it is folded under that plan.
"""
LEAST_SHARE = 0.002
"""Share of a step below which the difference in a term is not worth mentioning."""
MOST_TERMS = 4
"""Terms that one comparison names; more would bury those that decide."""
_PHRASES = {term.name: term.phrase for term in TIME_TERMS}


def compared(
    plans: Sequence[Document],
    *,
    objective: Objective = "step_time",
    cluster: Mapping[str, Any] | None = None,
    close: Callable[[Ints], Bools] | None = None,
) -> list[Document]:
    """The plans, each with its `variant_of`, `folded_under` and `against_next`.

    Args:
        plans: ranked, best first.
        objective: what the request minimises; plans are compared by it.
        cluster: the resolved cluster, for its prices.
        close: takes the place of another plan for each plan, and tells which pairs are too close to call, shape (N,).
    """
    first_rank: dict[tuple[Any, ...], int] = {}
    leaders: dict[tuple[Any, ...], list[Document]] = {}
    found = []
    for plan in plans:
        split = tuple(plan["strategy"][name] for name in SPLIT_FIELDS)
        first = first_rank.setdefault(split, plan["rank"])
        # Compared with the leaders alone: a chain of near-copies must not drift away from the plan it is folded under.
        near = (other["rank"] for other in leaders.setdefault(split, []) if _alike(other, plan))
        folded = next(near, None)
        if folded is None:
            leaders[split].append(plan)
        found.append(plan | {"variant_of": None if first == plan["rank"] else first, "folded_under": folded})
    next_leader = [_next_leader(found, index) for index in range(len(found))]
    others = np.array([index if after is None else after for index, after in enumerate(next_leader)], np.int64)
    # All pairs are judged in one call, because each call prices the differences of every term.
    tied = np.zeros(len(found), np.bool_) if close is None or not found else close(others)
    for index, (plan, after) in enumerate(zip(found, next_leader, strict=True)):
        plan["against_next"] = None
        if after is not None:
            told = against(plan, found[after], objective=objective, cluster=cluster, close=bool(tied[index]))
            plan["against_next"] = told
    return found


def _next_leader(plans: Sequence[Document], index: int) -> int | None:
    """Place of the next plan that is not a near-copy of this one, None where all that follow are."""
    leader = _leader(plans[index])
    return next((place for place in range(index + 1, len(plans)) if _leader(plans[place]) != leader), None)


def _alike(plan: Document, other: Document) -> bool:
    """Whether two plans have the same verdict and equally long steps, to within what two runs differ by."""
    own, its = plan["evaluation"], other["evaluation"]
    same = own["verdict"] == its["verdict"]
    return bool(same and abs(its["step_time_s"] / own["step_time_s"] - 1.0) <= RUN_TO_RUN)


def differing_knobs(plan: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of the knobs in which two variants differ.

    A different `vpp` brings another schedule, split and overlap with it, so it stands for these.
    """
    own, its = plan["strategy"], other["strategy"]
    names = [name for name in KNOBS if own.get(name) != its.get(name)]
    return [name for name in names if "vpp" not in names or name not in ("schedule", "layers_per_stage", "overlap")]


def against(
    plan: Mapping[str, Any],
    other: Mapping[str, Any],
    *,
    objective: Objective = "step_time",
    cluster: Mapping[str, Any] | None = None,
    close: bool = False,
) -> str:
    """How a plan compares with another, to follow "Plan 1 is"; the terms that make the difference come largest first.

    Args:
        plan: the better one.
        other: the plan it is compared with.
        objective: what the request minimises.
        cluster: the resolved cluster, for prices.
        close: whether the two are too close to call.
    """
    cluster = cluster or {}
    own, its = plan["evaluation"], other["evaluation"]
    number = f"plan {other['rank']}"
    weigh = objective == "cost"
    own_weight, its_weight = (gpu_weight(p, cluster) if weigh else 1.0 for p in (plan, other))
    ratio = own["step_time_s"] * own_weight / (its["step_time_s"] * its_weight) if its_weight else 1.0
    if objective == "fewest_gpus" and own["num_gpus_used"] < its["num_gpus_used"]:
        claim = f"on {own['num_gpus_used']:,} GPUs where {number} is on {its['num_gpus_used']:,}, and {_slower(ratio)}"
    elif weigh:
        costs = [f"{gpu_weight(p, cluster) * p['evaluation']['step_time_s']:,.4g}" for p in (plan, other)]
        unit = "a step" if is_priced(cluster) else "GPU-seconds a step"
        than = f"{abs(1.0 - ratio):.1%} {'cheaper' if ratio <= 1.0 else 'dearer'} than {number}"
        claim = (
            f"{than if _tells(ratio) else f'as cheap as {number} to within 0.1%'}, {costs[0]} against {costs[1]} {unit}"
        )
    else:
        claim = f"{_slower(ratio)} than {number}" if _tells(ratio) else f"as fast as {number} to within 0.1%"
    claim += ", which may not fit" if its["verdict"] == "at-risk" != own["verdict"] else ""
    claim += ", too close to call" if close else ""
    # Shares of the other plan's step, so that the differences of all terms add up to the difference that was claimed.
    shares = {
        name: (seconds * own_weight - its["time_breakdown_s"][name] * its_weight) / (its["step_time_s"] * its_weight)
        for name, seconds in own["time_breakdown_s"].items()
    } if its_weight else {}  # fmt: skip
    told = sorted((name for name in shares if abs(shares[name]) >= LEAST_SHARE), key=lambda name: -abs(shares[name]))
    parts = [
        f"{abs(shares[name]):.1%} {'more' if shares[name] > 0 else 'less'} on {_PHRASES[name]}"
        for name in told[:MOST_TERMS]
    ]
    if not parts:
        return claim
    whole = "cost" if weigh else "step"
    return f"{claim}: relative to that plan's {whole}, it spends {_listed(parts)}"


def _tells(ratio: float) -> bool:
    """Whether a difference is left once it is rounded to the tenth of a percent that is written."""
    return round(abs(1.0 - ratio), 3) > 0.0


def _slower(ratio: float) -> str:
    """How a step compares with another, of which it takes the share `ratio`."""
    if not _tells(ratio):
        return "as fast to within 0.1%"
    return f"{1.0 - ratio:.1%} faster" if ratio <= 1.0 else f"{ratio - 1.0:.1%} slower"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def tie_groups(count: int, tied_with: Callable[[int], Bools]) -> list[int]:
    """Group number of each of `count` plans, best first: a group holds every plan that is too close to call against its first.

    Its members need not be neighbours. A near-copy that is certainly a little slower may lie between two plans that are too
    close to call, since what two plans share cancels in their difference.

    Args:
        count: how many plans are ranked, N.
        tied_with: takes the place of a plan and tells which plans are too close to call against it, shape (N,).
    """
    # Each group is led by its best plan and everything is compared with that leader. Comparing with the last member instead would
    # chain plans together until the first and the last of a group are clearly different.
    groups, number = np.zeros(count, np.int64), 0
    for place in range(count):
        if not groups[place]:
            number += 1
            groups[(groups == 0) & tied_with(place)] = number
    return [int(group) for group in groups]


def ties(plans: Sequence[Mapping[str, Any]]) -> list[Document]:
    """The groups of plans that are too close to call, each with the two plans whose measurement would tell the most.

    These are the leader and the plan that differs most from it, term by term: the more two plans differ, the more of the
    model's error their measured difference reveals. A near-copy of the leader is taken only where there is nothing else.
    """
    groups: dict[int, list[Mapping[str, Any]]] = {}
    for plan in plans:
        groups.setdefault(plan["tie_group"], []).append(plan)
    return [
        {
            "tie_group": group,
            "ranks": [plan["rank"] for plan in members],
            "measure": [members[0]["rank"], _other_to_measure(members)["rank"]],
        }
        for group, members in groups.items()
        if len(members) > 1
    ]


def _other_to_measure(members: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    first, *others = members
    different = [plan for plan in others if _leader(plan) != _leader(first)]
    return max(different or others, key=lambda plan: _apart_s(first, plan))


def _leader(plan: Mapping[str, Any]) -> int:
    return int(plan.get("folded_under") or plan["rank"])


def _apart_s(plan: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    own, its = plan["evaluation"]["time_breakdown_s"], other["evaluation"]["time_breakdown_s"]
    return float(sum(abs(own[name] - its[name]) for name in own))


def listed_ranks(ranks: Sequence[int]) -> str:
    """Ranks in words: "4", "2 and 5", or "1-10" where they follow each other."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    words = [str(rank) for rank in ranks]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
