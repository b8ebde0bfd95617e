"""How ranked plans compare: by term against the next one, which are variants of another, which two of a tie to measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Document = dict[str, Any]
SPLIT_FIELDS = ("tp", "pp", "dp", "cp", "ep", "etp", "micro_batch_size")
"""Plans that agree in these differ only in a knob."""
LEAST_SHARE = 0.002
"""Share of a step below which a term's difference is not worth a word."""
_WORDS = {
    "gemm": "matmuls", "tp_comm": "exposed TP communication", "cp_comm": "exposed CP communication",
    "ep_comm": "exposed EP communication", "dp_comm": "exposed DP communication", "pp_comm": "pipeline sends",
    "pp_bubble": "bubble", "recompute": "recomputation",
}  # fmt: skip


def compared(plans: Sequence[Document]) -> list[Document]:
    """The plans with `against_next` and `variant_of`."""
    first_rank: dict[tuple[Any, ...], int] = {}
    found = []
    for index, plan in enumerate(plans):
        split = tuple(plan["strategy"][name] for name in SPLIT_FIELDS)
        first = first_rank.setdefault(split, plan["rank"])
        following = plans[index + 1] if index + 1 < len(plans) else None
        found.append(
            plan
            | {
                "variant_of": None if first == plan["rank"] else first,
                "against_next": None if following is None else against(plan, following),
            }
        )
    return found


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


def ties(plans: Sequence[Mapping[str, Any]]) -> list[Document]:
    """Groups that the model cannot tell apart, each with the two plans whose measurement says most: its leader and the plan
    that differs most from it, term by term.
    """
    groups: dict[int, list[Mapping[str, Any]]] = {}
    for plan in plans:
        groups.setdefault(plan["tie_group"], []).append(plan)
    return [
        {
            "tie_group": group,
            "ranks": [plan["rank"] for plan in members],
            "measure": [members[0]["rank"], max(members[1:], key=lambda plan: _apart_s(members[0], plan))["rank"]],
        }
        for group, members in groups.items()
        if len(members) > 1
    ]


def _apart_s(plan: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    own, its = plan["evaluation"]["time_breakdown_s"], other["evaluation"]["time_breakdown_s"]
    return float(sum(abs(own[name] - its[name]) for name in own))
