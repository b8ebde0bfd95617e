"""From the best strategies to ranked plans: evaluated with every stage, numbered, and grouped where they are too close to call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cost_models.hardware import Calibration
from cost_models.job import Job, PooledJob
from cost_models.pools.evaluate import evaluate_on_pools
from cost_models.step.ranges import is_tied
from cost_models.strategies.layouts import build_layouts
from cost_models.strategies.strategy import Bools, Ints, Strategies
from cost_models.terms import TIME_NAMES, Tier
from planner.answer.apart import range_factors
from planner.answer.collectives import collectives_of
from planner.answer.comparison import compared, tie_groups
from planner.answer.evaluation import evaluation_dict
from planner.answer.step_cost import gpu_weight
from planner.answer.whole_run import conditions_of
from planner.request.checked_request import CheckedRequest
from planner.schemas.method import method_document
from planner.schemas.plan_request import Objective
from planner.strategies.told import strategy_dict


def ranked_plans(
    pooled: PooledJob, best: Strategies, *, headroom_fraction: float, assumed: dict[str, Any]
) -> list[dict[str, Any]]:
    """The contract's `plans`, best first, with the memory of every stage."""
    # The search prices a few representative stages; only the plans that are shown are worth the detail.
    detailed = with_all_stages(pooled.jobs[0], best)
    evaluated = evaluate_on_pools(pooled, detailed, headroom_fraction=headroom_fraction)

    def tied_with(leader: int) -> Bools:
        # Where any pool's calibration leaves the difference open, it is open.
        terms_s, tiers = evaluated.terms_s, evaluated.tiers
        learnt = evaluated.range_factor
        each = [is_tied(job.calibration, terms_s, tiers, leader=leader, range_factor=learnt) for job in pooled.jobs]
        return np.asarray(np.any(each, axis=0), np.bool_)

    groups, conditions = tie_groups(len(detailed), tied_with), conditions_of(pooled, detailed)
    collectives = collectives_of(pooled, detailed)
    return [
        {
            "rank": index + 1,
            "strategy": strategy_dict(detailed, index) | method_document(pooled.jobs[0].method),
            "evaluation": evaluation_dict(
                evaluated,
                index,
                pooled=pooled,
                assumed=assumed,
                conditions=None if conditions is None else conditions[index],
                collectives=None if collectives is None else collectives[index],
            ),
            "tie_group": groups[index],
        }
        for index in range(len(detailed))
    ]


def compared_plans(plans: list[dict[str, Any]], checked: CheckedRequest) -> list[dict[str, Any]]:
    """The ranked plans, each compared with the next one in the objective asked for."""
    objective, cluster = checked.asked.objective, checked.resolved["cluster"]
    calibrations = [job.calibration for job in checked.job.jobs]
    close = close_plans(plans, calibrations=calibrations, objective=objective, cluster=cluster)
    return compared(plans, objective=objective, cluster=cluster, close=close)


def close_plans(
    plans: Sequence[Mapping[str, Any]],
    *,
    calibrations: Sequence[Calibration],
    objective: Objective,
    cluster: Mapping[str, Any],
) -> Callable[[Ints], Bools]:
    """A function that takes another plan's place for each plan, and tells which pairs are too close to call, shape (N,).

    Args:
        plans: ranked plans with their evaluations.
        calibrations: what the plans were priced with; a pair is close where any of these leaves its order open.
        objective: what the request minimises.
        cluster: the resolved cluster, for its prices.
    """
    # The terms are read back from the answers, so that plans of any search, on one pool or several, are compared by the same code.
    weight = np.array([gpu_weight(plan, cluster) if objective == "cost" else 1.0 for plan in plans])
    evaluations = [plan["evaluation"] for plan in plans]
    terms = {name: weight * np.array([e["time_breakdown_s"][name] for e in evaluations]) for name in TIME_NAMES}
    codes, learnt = {tier.label: tier.value for tier in Tier}, range_factors(evaluations)
    tiers = {name: np.array([codes[e["provenance"]["terms"][name]] for e in evaluations]) for name in TIME_NAMES}

    def close(others: Ints) -> Bools:
        each = [is_tied(c, terms, tiers, leader=others, range_factor=learnt) for c in calibrations]
        return np.asarray(np.any(each, axis=0), np.bool_)

    return close


def with_all_stages(job: Job, strategies: Strategies) -> Strategies:
    """The same strategies over layouts that keep every pipeline stage, where the search keeps only different ones."""
    used, inverse = np.unique(strategies.layout, return_inverse=True)
    table = [strategies.layouts.table[int(number)] for number in used]
    layouts = build_layouts(table, model=job.model, all_stages=True)
    return replace(strategies, layout=inverse.reshape(-1).astype(np.int64), layouts=layouts)
