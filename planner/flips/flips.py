"""For each uncertain fact the factor at which another listed plan becomes better than the first, and what it does to the first.

Every factor prices all compared plans in one batch. From 1 outward a grid of factors is walked; where the best plan changes between
two of them, the change is found by bisection. Only listed plans are compared, and near-copies are left out: a plan that the search
did not list could be better still.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from cost_models.strategies.strategy import Floats
from planner.answer.step_cost import gpu_weight
from planner.flips.facts import FACTS, Fact
from planner.flips.memory import memory_flips
from planner.one_plan.listed import ListedPlans, listed_plans
from planner.one_plan.neighbours import SAME_PRICE
from planner.request.job import Documents

Document = dict[str, Any]
PRECISION = 1.005
"""Ratio of the two factors between which a change is found: 0.5 %."""
STEP = 1.45
"""Largest ratio of neighbouring factors of the grid."""
MOST_COMPARED = 32
"""Plans that are compared, the best first: a list of a thousand would price for minutes what nobody reads."""
_NO_EFFECT = 1e-4
"""A fact that moves no plan's time by more than this, relatively and over its whole range, does not matter."""


def flip_conditions(
    response: Mapping[str, Any], *, extra: Documents | None = None, allow_files: bool = False
) -> Document | None:
    """What would make another listed plan better than the first; None where no second plan can be compared.

    Args:
        response: a plan response.
        extra: the caller's own calibration documents, by id and name.
        allow_files: whether `cluster.calibration` may be a path.

    Returns:
        `objective`, `compared` (ranks), `left_out` (ranks of near-copies, of plans of another verdict, and of those beyond
        `MOST_COMPARED`), `facts` and `memory`. Each
        fact has `name`, `assumed` (by pool: `pool, value, tier`), `low` and `high` (the factors between which it was tried),
        `matters`, `below` and `above` (changes on either side of 1, nearest first: `factor`, and `rank` of the plan that is best from
        there on outward), and `step_time_s` (`factors`, and by rank the seconds at each). `memory` is that of `memory_flips`.

    Raises:
        InvalidInputError: the plans can no longer be priced as they were.
    """
    plans = response["plans"]
    compared = _comparable(plans)
    # With one plan there is no order that could change.
    if not plans or len(plans) < 2:
        return None
    listed = listed_plans(response, compared, extra=extra, allow_files=allow_files)
    objective = response["request"].get("objective", "step_time")
    weight = _weights(listed, objective, response["request"]["cluster"])
    return {
        "objective": objective,
        "compared": listed.ranks,
        "left_out": [plan["rank"] for plan in plans if plan["rank"] not in listed.ranks],
        "facts": [_flips(fact, listed, weight) for fact in FACTS if fact.applies(listed.pooled)],
        "memory": memory_flips(response),
    }


def _comparable(plans: list[Document]) -> list[Document]:
    """The plans that can become the first: no near-copies, and none of another verdict, which ranks behind whatever its time."""
    found = [
        plan
        for plan in plans
        if plan.get("folded_under") is None and plan["evaluation"]["verdict"] == plans[0]["evaluation"]["verdict"]
    ]
    return found[:MOST_COMPARED]


def _weights(listed: ListedPlans, objective: str, cluster: Mapping[str, Any]) -> Floats:
    """What a second of each plan counts in the objective, shape (N,); infinite where no time makes a plan the best."""
    if objective == "cost":
        return np.array([gpu_weight(plan, cluster) for plan in listed.plans])
    # Fewer GPUs win whatever the time, so that under fewest_gpus only plans on as many can change places.
    gpus = np.array([plan["evaluation"]["num_gpus_used"] for plan in listed.plans])
    return np.where((gpus == gpus[0]) | (objective == "step_time"), 1.0, np.inf)


def _flips(fact: Fact, listed: ListedPlans, weight: Floats) -> Document:
    # Bisections and the table ask for the same factors, and each costs a pass of the whole model.
    known: dict[float, Floats] = {}

    def seconds(factor: float) -> Floats:
        if factor not in known:
            known[factor] = listed.step_s(fact.on(listed.pooled, factor))
        return known[factor]

    def lead(factor: float, leader: int) -> tuple[float, int]:
        value = seconds(factor) * weight
        others = np.delete(value, leader)
        place = int(others.argmin()) if len(others) else 0
        ahead = others[place] / value[leader] - 1.0 if len(others) else np.inf
        return float(ahead), place + (place >= leader)

    # Times rise or fall throughout with a fact, so that its ends show whether it matters at all.
    ends = np.array([seconds(fact.low), seconds(1.0), seconds(fact.high)])
    matters = bool((np.ptp(ends, axis=0) / ends[1] > _NO_EFFECT).any())
    sides = (("below", fact.low), ("above", fact.high))
    factors = {side: _grid(end) if matters else [end] for side, end in sides}
    found = {
        side: [{"factor": at, "rank": listed.ranks[place]} for at, place in _changes(lead, each)] if matters else []
        for side, each in factors.items()
    }
    told = sorted([*factors["below"], 1.0, *factors["above"]])
    # A change of the best plan is one between grid points too, so the table of times holds those as well.
    table = sorted({*told, *(change["factor"] for changes in found.values() for change in changes)})
    return {
        "name": fact.name,
        "assumed": _assumed(fact, listed),
        "low": fact.low,
        "high": fact.high,
        "matters": matters,
        **found,
        "step_time_s": {
            "factors": table,
            "by_rank": {rank: [float(seconds(x)[n]) for x in table] for n, rank in enumerate(listed.ranks)},
        },
    }


def _grid(end: float) -> list[float]:
    """Factors from 1, which is left out, to the end, at equal ratios."""
    # Equal ratios, since half and twice are equally far from what is assumed.
    steps = max(1, int(np.ceil(abs(np.log(end)) / np.log(STEP))))
    return [float(end ** (n / steps)) for n in range(1, steps)] + [end]


def _changes(lead: Callable[[float, int], tuple[float, int]], grid: list[float]) -> list[tuple[float, int]]:
    """Each factor outward from 1 from which on another plan is the best, and the place of that plan.

    Args:
        lead: by how much the next best plan's value is above that of the plan at a place, relatively, and the place of that next one.
        grid: factors that are walked, from 1 outward.
    """
    found: list[tuple[float, int]] = []
    leader, before = 0, 1.0
    for factor in grid:
        while not _keeps(lead, leader, factor):
            far = _change(partial(_keeps, lead, leader), before, factor)
            leader, before = lead(far, leader)[1], far
            found.append((far, leader))
        before = factor
    return found


def _keeps(lead: Callable[[float, int], tuple[float, int]], leader: int, factor: float) -> bool:
    """Whether a plan is still the best: equal ones do not take turns."""
    return lead(factor, leader)[0] >= -SAME_PRICE


def _change(is_kept: Callable[[float], bool], near: float, far: float) -> float:
    """The factor next to where a lead is lost, at which it is lost, between one at which it is kept and one at which it is not."""
    while max(near, far) / min(near, far) > PRECISION:
        # The geometric mean halves a ratio, as the arithmetic mean halves a distance.
        middle = float(np.sqrt(near * far))
        if is_kept(middle):
            near = middle
        else:
            far = middle
    # At the far end the other plan is better, which it is not yet at the near one.
    return far


def _assumed(fact: Fact, listed: ListedPlans) -> list[Document]:
    pooled, told = listed.pooled, []
    for name, job in zip(pooled.names, pooled.jobs, strict=True):
        value, tier = fact.value(job)
        told.append({"pool": name if pooled.cluster.lists_pools else None, "value": value, "tier": tier.label})
    return told
