"""The main job on a cluster of several kinds of node: a checked request in, ranked plans on pools out, with the proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cost_models.job import PooledJob
from cost_models.pools.time import pooled_step_time
from cost_models.step.ranges import is_tied
from cost_models.strategies.layouts import build_layouts
from cost_models.strategies.strategy import Bools, Strategies, concatenated
from planner.answer.comparison import tie_groups, ties
from planner.answer.ranking import compared_plans
from planner.answer.response import answered, host_warnings, search_report, stop_warnings
from planner.pools.evaluation import pooled_evaluation
from planner.pools.explain import nearest_on_pools, too_slow_on_pools
from planner.pools.found import Plan, PoolsFound
from planner.pools.placements import node_limits, possible_worlds
from planner.pools.search import PoolSearch
from planner.request.checked_request import CheckedRequest
from planner.request.job_warnings import job_warnings
from planner.schemas.plan_request import Constraints, PlanRequest
from planner.search.expressible import inexpressible_reasons
from planner.search.objective import build_goal, without_targets
from planner.search.progress import Progress
from planner.strategies.axes import build_space, searched_values
from planner.strategies.parse import assumed_fields, strategy_dict
from planner.strategies.space import Space

Document = dict[str, Any]


def plan_on_pools(
    checked: CheckedRequest,
    pooled: PooledJob,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Document:
    """The plan response of the contract for a cluster of several kinds of node; arguments as of `planner.plan.plan`."""
    asked = checked.asked
    listed_alone = bool(asked.constraints.fixed.layers_per_stage or asked.constraints.allowed.layers_per_stage)
    constraints, limits = _with_stages(asked.constraints), node_limits(pooled, asked.constraints)
    one_chunk = len(pooled.jobs[0].model.distinct_kinds) > 1 and not listed_alone and constraints.fixed.vpp is None
    if one_chunk:
        constraints = constraints.model_copy(update={"allowed": constraints.allowed.model_copy(update={"vpp": (1,)})})
    space = build_space(pooled.whole[0], constraints, worlds=possible_worlds(pooled, limits))
    search = partial(
        PoolSearch,
        pooled,
        space,
        limits=limits,
        headroom_fraction=constraints.memory_headroom_fraction,
        pools=constraints.fixed.pool_per_stage,
        listed_alone=listed_alone,
        time_limit_s=asked.time_limit_s,
        should_stop=should_stop,
    )
    goal = build_goal(pooled.jobs[0], asked.objective, asked.targets)
    main = search(goal=goal, top_k=asked.top_k, on_progress=on_progress)
    found = main.run()
    plans = _ranked(pooled, found.best, headroom_fraction=constraints.memory_headroom_fraction)
    plans = compared_plans(plans, checked, calibrations=[job.calibration for job in pooled.jobs])
    nearest = []
    if not plans:
        nearest = nearest_on_pools(pooled, found, constraints, limits, space=space)
        if found.rejected["misses-target"] and found.stopped is None:
            fastest = search(goal=without_targets(), top_k=1).run()
            nearest = too_slow_on_pools(pooled, fastest, wanted_s=goal.slowest_step_s) or nearest
        if nearest and not found.rejected:
            found.rejected.update(reason["code"] for reason in nearest[0]["reasons"][:1])
    return answered(
        checked,
        stopped=found.stopped,
        plans=plans,
        ties=ties(plans),
        search=_report(main, space, found),
        rejected=dict(sorted(found.rejected.items())),
        nearest_infeasible=nearest,
        inexpressible_best=_inexpressible(pooled, found),
        warnings=["pools-no-interleaving"] * one_chunk + _warnings(asked, pooled, found) + host_warnings(plans),
    )


def _with_stages(constraints: Constraints) -> Constraints:
    """The constraints with pp fixed where the pool of every stage is."""
    pools = constraints.fixed.pool_per_stage
    if pools is None or constraints.fixed.pp is not None or constraints.allowed.pp is not None:
        return constraints
    return constraints.model_copy(update={"fixed": constraints.fixed.model_copy(update={"pp": len(pools)})})


def _ranked(pooled: PooledJob, plans: list[Plan], *, headroom_fraction: float) -> list[Document]:
    """The contract's `plans`, best first, with per-stage memory."""
    groups = _tie_groups(pooled, _together(pooled, plans)) if plans else []
    assumed = assumed_fields(pooled, {})
    return [
        {
            "rank": rank,
            "strategy": strategy_dict(plan.row, 0),
            "evaluation": pooled_evaluation(pooled, plan.row, headroom_fraction=headroom_fraction, assumed=assumed),
            "tie_group": group,
        }
        for rank, (plan, group) in enumerate(zip(plans, groups, strict=True), start=1)
    ]


def _together(pooled: PooledJob, plans: list[Plan]) -> Strategies:
    """All plans as one batch over one table of layouts."""
    layouts = build_layouts([plan.layout for plan in plans], model=pooled.jobs[0].model, all_stages=True)
    return concatenated([replace(plan.row, layouts=layouts, layout=np.array([n])) for n, plan in enumerate(plans)])


def _tie_groups(pooled: PooledJob, plans: Strategies) -> list[int]:
    """Group number of each plan; two tie where any pool's calibration leaves their difference uncertain."""
    time = pooled_step_time(pooled, plans)

    def tied_with(leader: int) -> Bools:
        each = [is_tied(job.calibration, time.terms_s, time.tiers, leader=leader) for job in pooled.jobs]
        return np.asarray(np.any(each, axis=0), np.bool_)

    return tie_groups(len(plans), tied_with)


def _inexpressible(pooled: PooledJob, found: PoolsFound) -> Document | None:
    """The contract's `inexpressible_best`: a better plan that cannot be launched, with its gain in step time."""
    plan = found.inexpressible
    if plan is None or (found.best and found.best[0].value <= plan.value):
        return None
    gain = (found.best[0].step_s - plan.step_s) / found.best[0].step_s if found.best else 1.0
    return {
        "strategy": strategy_dict(plan.row, 0),
        "reasons": inexpressible_reasons(pooled.jobs[0], plan.row),
        "step_time_s": plan.step_s,
        "gain_fraction": gain,
    }


def _report(search: PoolSearch, space: Space, found: PoolsFound) -> Document:
    values = searched_values(space)
    if search.freely and not search.listed_alone:
        values["layers_per_stage"] = [*values["layers_per_stage"], "the best of all"]
    values["pool_per_stage"] = (
        [list(search.pools)] if search.pools else ["stages of whole nodes on every pool, in every order of the pools"]
    )
    return search_report(
        best_s=found.best_s if found.best else None,
        bound_s=found.lower_bound_s,
        optimal=found.optimal,
        methods=["exhaustive", "thresholds"] + ["cp-sat"] * bool(found.solved),
        space=values,
        evaluated=found.families,
        feasible=found.feasible,
        elapsed_s=found.elapsed_s,
    )


def _warnings(asked: PlanRequest, pooled: PooledJob, found: PoolsFound) -> list[str]:
    warnings = job_warnings(pooled)
    if any(len(set(plan.layout.pool_per_stage or ())) > 1 for plan in found.best):
        warnings.append("pools-in-order")
    if asked.objective == "cost" and any(job.cluster.price_per_gpu_hour is None for job in pooled.jobs):
        warnings.append("pools-cost-alike")
    if asked.constraints.allow_at_risk:
        warnings.append("pools-no-at-risk")
    warnings += stop_warnings(found.stopped, time_limit_s=asked.time_limit_s)
    warnings += [
        f"CP-SAT could not be used, so splits by thresholds stand unproven: {failure}" for failure in found.failures
    ]
    return list(dict.fromkeys(warnings))
