"""How ranked plans compare: by term against the next one, which are variants of another, which two of a tie to measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cost_models.strategy import Bools

Document = dict[str, Any]
SPLIT_FIELDS = ("tp", "pp", "dp", "cp", "ep", "etp", "micro_batch_size")
"""Plans that agree in these differ only in a knob."""
KNOBS = (
    "vpp", "zero", "zero_shard_size", "sequence_parallel", "recompute", "recompute_num_layers", "schedule",
    "layers_per_stage", "cp_comm", "moe_dispatcher", "overlap", "offload",
)  # fmt: skip
"""What variants can differ in; the others follow from these."""
RUN_TO_RUN = 0.01
"""Share of a step that two runs of one plan differ by: of the pairs of equal runs in data/measured/own_*.jsonl, between 0.1
and 1.5 %. A variant this close to a better plan is no choice of its own."""
LEAST_SHARE = 0.002
"""Share of a step below which a term's difference is not worth a word."""
_WORDS = {
    "gemm": "matmuls", "tp_comm": "exposed TP communication", "cp_comm": "exposed CP communication",
    "ep_comm": "exposed EP communication", "dp_comm": "exposed DP communication", "pp_comm": "pipeline sends",
    "pp_bubble": "bubble", "recompute": "recomputation",
}  # fmt: skip


def compared(plans: Sequence[Document]) -> list[Document]:
    """The plans with `variant_of`, `folded_under` and `against_next`."""
    first_rank: dict[tuple[Any, ...], int] = {}
    leaders: dict[tuple[Any, ...], list[Document]] = {}
    found = []
    for plan in plans:
        split = tuple(plan["strategy"][name] for name in SPLIT_FIELDS)
        first = first_rank.setdefault(split, plan["rank"])
        near = (other["rank"] for other in leaders.setdefault(split, []) if _alike(other, plan))
        folded = next(near, None)
        if folded is None:
            leaders[split].append(plan)
        found.append(plan | {"variant_of": None if first == plan["rank"] else first, "folded_under": folded})
    for index, plan in enumerate(found):
        following = next((other for other in found[index + 1 :] if _leader(other) != _leader(plan)), None)
        plan["against_next"] = None if following is None else against(plan, following)
    return found


def _alike(plan: Document, other: Document) -> bool:
    """Whether both fit alike and take as long, to within what runs differ by."""
    own, its = plan["evaluation"], other["evaluation"]
    same = own["verdict"] == its["verdict"]
    return bool(same and abs(its["step_time_s"] / own["step_time_s"] - 1.0) <= RUN_TO_RUN)


def differing_knobs(plan: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of the knobs that two variants differ in; virtual stages bring their schedule and split along."""
    own, its = plan["strategy"], other["strategy"]
    names = [name for name in KNOBS if own.get(name) != its.get(name)]
    return [name for name in names if "vpp" not in names or name not in ("schedule", "layers_per_stage", "overlap")]


def against(plan: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What a plan gains and loses by term against another, in percent of the other's step, largest first."""
    own, its = plan["evaluation"], other["evaluation"]
    step_s = its["step_time_s"]
    shares = {
        name: (its["time_breakdown_s"][name] - seconds) / step_s for name, seconds in own["time_breakdown_s"].items()
    }
    told = sorted((name for name in shares if abs(shares[name]) >= LEAST_SHARE), key=lambda name: -abs(shares[name]))
    parts = [
        f"{'gains' if shares[name] > 0 else 'loses'} {abs(shares[name]):.1%} in {_WORDS.get(name, name.replace('_', ' '))}"
        for name in told[:4]
    ]
    total = (step_s - own["step_time_s"]) / step_s
    return f"{total:.1%} faster than plan {other['rank']}" + (f": {', '.join(parts)}" if parts else "")


def tie_groups(count: int, tied_with: Callable[[int], Bools]) -> list[int]:
    """Group number of each of `count` plans, best first: every plan that cannot be told from its group's first, however many
    that can lie between them, such as near-copies that are certainly a little slower.

    Args:
        count: how many plans are ranked, N.
        tied_with: for the place of a plan, which plans cannot be told from it, shape (N,).
    """
    groups, number = np.zeros(count, np.int64), 0
    for place in range(count):
        if not groups[place]:
            number += 1
            groups[(groups == 0) & tied_with(place)] = number
    return [int(group) for group in groups]


def ties(plans: Sequence[Mapping[str, Any]]) -> list[Document]:
    """Groups that the model cannot tell apart, each with the two plans whose measurement says most: its leader and the plan
    that differs most from it, term by term; one that is folded under the same plan only where there is no other.
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
