"""Plans that keep replicas together or update parameters otherwise, where a request allows it: rounded ones beside the exact plans,
changed ones in a list of their own.

Every method has a search of its own, over the same space and under the same constraints. Plans of different methods are ranked by the
objective, but ties and proofs stay within a method: what separates two methods in the number of steps is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from cost_models.job import PooledJob
from cost_models.replicas.groups import within_group_shards
from cost_models.specs.method import Method
from cost_models.strategies.strategy import ARRAY_FIELDS, Strategies
from planner.answer.comparison import ties
from planner.answer.inexpressible import method_gain
from planner.answer.ranking import compared_plans, ranked_plans
from planner.answer.step_cost import step_cost
from planner.request.checked_request import CheckedRequest
from planner.request.methods import with_method
from planner.rules.replicas import UNWRITTEN
from planner.schemas.method import method_of
from planner.schemas.plan_request import PlanRequest
from planner.search.budget import Budget
from planner.search.found import Found
from planner.search.objective import build_goal
from planner.search_on_one_kind import SpaceOnOneKind
from planner.strategies.axes import build_space
from planner.strategies.told import assumed_fields

Document = dict[str, Any]
_SAME_SHARDS = 2
"""Sizes of shards, that of all replicas and that of a group's, which are the same where groups train by themselves."""


@dataclass(frozen=True, slots=True)
class _Way:
    """One way of training that has a search of its own."""

    name: str
    pooled: PooledJob
    asked: PlanRequest
    changes: bool
    """Whether it changes what a step computes."""
    is_written: bool = True
    """Whether launch files here can say it."""


def _ways(checked: CheckedRequest) -> list[_Way]:
    """What a request lists or fixes beyond the framework's own step, and beyond what stands among `plans` already."""
    found = []
    for method in asked_methods(checked.asked):
        pooled, sync = with_method(checked.job, method), method.sync.method
        if pooled is not checked.job:
            name = sync if sync != "every-step" else method.compression.kind
            found.append(_Way(name, pooled, checked.asked, method.mathematics == "changed", sync not in UNWRITTEN))
    if checked.late is not None:
        found.append(_Way("offload.optimizer_overlap 'zenflow'", checked.job, checked.late, changes=True))
    return found


def asked_methods(asked: PlanRequest) -> list[Method]:
    """The methods, other than the plain one, that a request lists or fixes, each once."""
    fixed, allowed = asked.constraints.fixed, asked.constraints.allowed
    syncs, compressions = allowed.sync or (), allowed.compression or ()
    # Pairs of the two are left out: no framework here runs a sync and a compression together.
    found = [method_of(sync, None) for sync in syncs] + [method_of(None, each) for each in compressions]
    found.append(method_of(fixed.sync, fixed.compression))
    return list(dict.fromkeys(method for method in found if not method.is_plain))


def add_method_plans(
    response: Document,
    checked: CheckedRequest,
    *,
    changed_too: bool = True,
    started: float | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> None:
    """Adds to a response what the methods that its request allows would give.

    Args:
        response: of the search without them; its `plans`, `ties`, `search`, `changed_plans` and `warnings` are brought up to date.
        checked: the request.
        changed_too: whether `changed_plans` are looked for.
        started: when it was taken up, on `perf_counter`'s clock; its time limit counts from there.
        should_stop: asked between chunks of each search.
    """
    changed: list[list[Document]] = []
    beside: list[list[Document]] = []
    for way in _ways(checked):
        if way.changes and not changed_too:
            continue
        budget = Budget(checked.asked.time_limit_s, should_stop, started)
        if budget.must_stop():
            response["warnings"].append(
                "The search was stopped before it tried every way of training that the request allows."
            )
            break
        found, plans = _search(way, started=started, should_stop=should_stop)
        _count(response["search"], found)
        if not plans:
            response["warnings"].append(_nothing(way.name, found))
        elif way.changes:
            changed.append(plans)
        elif not way.is_written:
            _better(response, plans)
        else:
            beside.append(plans)
    # The fastest exact plan is what others are compared with, also where rounded ones leave it no rank.
    exact = [
        plan for plans in (response["plans"], *beside) for plan in plans if plan["evaluation"]["mathematics"] == "exact"
    ]
    if changed and (not exact or checked.asked.objective != "step_time"):
        exact += _fastest_exact(checked, started=started, should_stop=should_stop)
    # Rounded plans and exact ones are launched alike; what they compute differs in digits alone, so that one ranking holds both.
    if beside:
        merged = _merged([response["plans"], *beside], checked)
        response["plans"] = compared_plans(merged, checked)
        response["ties"] = ties(response["plans"])
    response["changed_plans"] = _broken_even(_merged(changed, checked), exact)


def _search(
    way: _Way, *, started: float | None, should_stop: Callable[[], bool] | None
) -> tuple[Found, list[Document]]:
    """What is found when training one way, and its ranked plans."""
    job, asked = way.pooled.jobs[0], way.asked
    # A search of its own: its bounds hold for its own exchange, and its limit must not be that of another method.
    searched = SpaceOnOneKind(build_space(job, asked.constraints), started)
    # Shards end at the boundary of a group, so that several sizes of the space are one strategy.
    most = asked.top_k * (_SAME_SHARDS if job.method.is_local else 1)
    wider = asked.model_copy(update={"top_k": most})
    found = searched.search(build_goal(job, asked.objective, asked.targets), asked=wider, should_stop=should_stop)
    if found.best is None:
        return found, []
    best = _distinct(within_group_shards(job, found.best)) if job.method.is_local else found.best
    headroom = asked.constraints.memory_headroom_fraction
    plans = ranked_plans(way.pooled, best, headroom_fraction=headroom, assumed=assumed_fields(way.pooled, {}))
    return found, plans[: asked.top_k]


def _fastest_exact(
    checked: CheckedRequest, *, started: float | None, should_stop: Callable[[], bool] | None
) -> list[Document]:
    """The fastest exact plan, where rounded ones may fill all ranks or another objective orders them; empty where there is none."""
    constraints = checked.asked.constraints
    whole = {
        name: (False,) for name in ("zero_quantized_weights", "zero_quantized_gradients")
        if False in (getattr(constraints.allowed, name) or ())
    }  # fmt: skip
    constraints = constraints.model_copy(update={"allowed": constraints.allowed.model_copy(update=whole)})
    asked = checked.asked.model_copy(update={"constraints": constraints, "objective": "step_time", "top_k": 1})
    if Budget(asked.time_limit_s, should_stop, started).must_stop():
        return []
    _, plans = _search(_Way("exact", checked.job, asked, changes=False), started=started, should_stop=should_stop)
    return [plan for plan in plans if plan["evaluation"]["mathematics"] == "exact"]


# Rows that differ only in what a group cuts off are the same once it is cut off.
def _distinct(strategies: Strategies) -> Strategies:
    """The strategies that differ, in their order."""
    columns = np.stack([getattr(strategies, name).astype(np.float64) for name in ARRAY_FIELDS])
    _, first = np.unique(columns, axis=1, return_index=True)
    return strategies.take(np.sort(first))


def _count(report: Document, found: Found) -> None:
    """Adds a search to the report of those before it."""
    for name in ("total", "bounded", "evaluated", "feasible", "unsearched"):
        report[name] += getattr(found, name)
    report["elapsed_s"] = max(report["elapsed_s"], found.elapsed_s)  # all of them count from the same start
    report["rejected_by_methods"] = report.get("rejected_by_methods", 0) + found.rejected.total()


def _nothing(name: str, found: Found) -> str:
    reasons = ", ".join(f"{code} {count}" for code, count in found.rejected.most_common(2) if count)
    return f"No plan is legal and fits with {name} ({reasons or 'nothing to search'})."


def _value(plan: Document, checked: CheckedRequest) -> tuple[float, float]:
    """What plans are ordered by: the objective, then the step."""
    step_s, objective = float(plan["evaluation"]["step_time_s"]), checked.asked.objective
    if objective == "cost":
        return step_cost(plan, checked.resolved["cluster"]), step_s
    return (float(plan["evaluation"]["num_gpus_used"]) if objective == "fewest_gpus" else step_s), step_s


def _merged(groups: Sequence[Sequence[Document]], checked: CheckedRequest) -> list[Document]:
    """The best plans of several methods in one ranking; plans of two methods never share a tie group."""
    numbered = chain.from_iterable(
        (((number, plan["tie_group"]), plan) for plan in plans) for number, plans in enumerate(groups)
    )
    best = sorted(numbered, key=lambda each: (each[1]["evaluation"]["verdict"] != "fits", *_value(each[1], checked)))[
        : checked.asked.top_k
    ]
    ties_seen = {key: number for number, key in enumerate(dict.fromkeys(key for key, _ in best), 1)}
    return [plan | {"rank": rank, "tie_group": ties_seen[key]} for rank, (key, plan) in enumerate(best, 1)]


def _broken_even(changed: list[Document], exact: Sequence[Mapping[str, Any]]) -> list[Document]:
    """Changed plans with the share of extra steps at which each stops being faster than the fastest exact plan."""
    # Steps of rounded plans may count as well, but nobody has shown that as many of them are needed.
    exact_s = [plan["evaluation"]["step_time_s"] for plan in exact]
    found = []
    for plan in changed:
        own_s = plan["evaluation"]["step_time_s"]
        # How many steps a method needs is for its user to say; without that nothing is claimed but the break-even.
        factor = plan["strategy"].get("sync", {}).get("steps_factor")
        found.append(
            {name: plan[name] for name in ("rank", "strategy", "evaluation", "tie_group")}
            | {
                "break_even_extra_steps": min(exact_s) / own_s - 1.0 if exact_s else None,
                "stated_time_ratio": factor * own_s / min(exact_s) if factor and exact_s else None,
            }
        )
    return found


def _better(response: Document, plans: Sequence[Document]) -> None:
    """Tells of an exact method that no launch file here can say, where it is faster than every plan and than what was told before."""
    told = method_gain(plans[0], response["plans"])
    before = response["inexpressible_best"]
    if told["gain_fraction"] > 0 and (before is None or told["step_time_s"] < before["step_time_s"]):
        response["inexpressible_best"] = told
