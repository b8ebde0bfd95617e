"""The whole flow in one function: a request goes in; ranked plans come out, with a proof and the reasons for what was left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from cost_models.calibration import CalibrationDocument
from cost_models.job import Job, PooledJob
from planner.answer.closest import closest_illegal, too_slow
from planner.answer.comparison import ties
from planner.answer.explain import contradiction, nearest_infeasible
from planner.answer.ranking import compared_plans, ranked_plans
from planner.answer.response import answered, host_warnings, search_report, stop_warnings
from planner.pools.plan import plan_on_pools
from planner.request.checked_request import CheckedRequest, check_request
from planner.request.job_warnings import job_warnings
from planner.schemas.plan_request import PlanRequest
from planner.search.complete import search
from planner.search.expressible import inexpressible_best
from planner.search.found import Found
from planner.search.objective import build_goal, without_targets
from planner.search.pareto import front_documents, pareto_front
from planner.search.progress import Progress
from planner.search.what_if import what_if
from planner.strategies.axes import build_space, searched_values
from planner.strategies.parse import assumed_fields
from planner.strategies.space import Space


def plan(
    request: Mapping[str, Any],
    *,
    calibrations: Mapping[str, CalibrationDocument] | None = None,
    allow_files: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """The plan response of the contract, as plain data.

    Args:
        request: a plan request in the contract's names.
        calibrations: documents that `cluster.calibration` may name, in addition to the shipped ones.
        allow_files: whether `cluster.calibration` may be a path, as on the command line.
        on_progress: called between chunks of the search.
        should_stop: asked between chunks of the search; true ends it with the best plans so far.

    Raises:
        InvalidInputError: something in the request is wrong; the error lists every problem.
        CalibrationError: a calibration cannot be used.
    """
    started = perf_counter()
    checked = check_request(request, calibrations=calibrations, allow_files=allow_files)
    asked = checked.asked
    if checked.job.cluster.lists_pools:
        return plan_on_pools(checked, checked.job, on_progress=on_progress, should_stop=should_stop)
    job = checked.job.jobs[0]
    space = build_space(job, asked.constraints)
    goal = build_goal(job, asked.objective, asked.targets)
    found = search(space, goal=goal, asked=asked, on_progress=on_progress, should_stop=should_stop, started=started)
    response = _response(checked, job, space, found)
    stopped = found.stopped is not None
    # "No plan reaches the target" alone helps nobody, so the fastest plan without targets tells which target could be reached.
    if not response["plans"] and found.rejected["misses-target"] and not stopped:
        alone = asked.model_copy(update={"top_k": 1, "include": ()})
        fastest = search(space, goal=without_targets(), asked=alone, should_stop=should_stop, started=started)
        response["nearest_infeasible"] = too_slow(job, goal, fastest.best) or _nearest(asked, job, space, fastest)
    if "pareto" in asked.include and not stopped:
        headroom = asked.constraints.memory_headroom_fraction
        front = pareto_front(space, goal=goal, headroom_fraction=headroom, seed=asked.seed, should_stop=should_stop)
        response["pareto"] = front_documents(front)
        response["search"]["methods"] += ["nsga-ii"] * (front.method == "nsga-ii")
    if "what_if" in asked.include and not stopped:

        def solve(changed: Mapping[str, Any]) -> dict[str, Any]:
            return plan(changed, calibrations=calibrations, allow_files=allow_files, should_stop=should_stop)

        response["what_if"] = what_if(request, job, response["plans"], solve=solve, should_stop=should_stop)
    return response


def _response(checked: CheckedRequest, job: Job, space: Space, found: Found) -> dict[str, Any]:
    asked = checked.asked
    headroom = asked.constraints.memory_headroom_fraction
    assumed = assumed_fields(checked.job, {})
    plans = []
    if found.best is not None:
        plans = ranked_plans(checked.job, found.best, headroom_fraction=headroom, assumed=assumed)
        plans = compared_plans(plans, checked, calibrations=[job.calibration])
    nearest = _nearest(asked, job, space, found)
    if not len(space.degrees):
        found.rejected.update(reason["code"] for reason in nearest[0]["reasons"][:1])
    return answered(
        checked,
        stopped=found.stopped,
        plans=plans,
        ties=ties(plans),
        search=_search_report(space, found, plans),
        rejected={code: count for code, count in sorted(found.rejected.items()) if count},
        nearest_infeasible=nearest,
        inexpressible_best=inexpressible_best(job, found, plans),
        warnings=_warnings(asked, checked.job, found) + host_warnings(plans),
    )


def _nearest(asked: PlanRequest, job: Job, space: Space, found: Found) -> list[dict[str, Any]]:
    """The contract's `nearest_infeasible`."""
    if found.nearest is not None:
        headroom = asked.constraints.memory_headroom_fraction
        return nearest_infeasible(job, found.nearest, headroom_fraction=headroom)
    if not len(space.degrees):
        return [contradiction(job, asked.constraints)]
    ruled_out = found.best is None and found.stopped is None and not found.rejected["misses-target"]
    return closest_illegal(space) if ruled_out else []


def _search_report(space: Space, found: Found, plans: list[dict[str, Any]]) -> dict[str, Any]:
    values = searched_values(space)
    if "thresholds" in found.methods:
        values["layers_per_stage"] = [*values["layers_per_stage"], "the best of all"]
    return search_report(
        best_s=min((p["evaluation"]["step_time_s"] for p in plans), default=None),
        bound_s=found.lower_bound_s,
        optimal=found.optimal,
        methods=found.methods,
        space=values,
        evaluated=found.evaluated,
        feasible=found.feasible,
        elapsed_s=found.elapsed_s,
    )


def _warnings(asked: PlanRequest, job: PooledJob, found: Found) -> list[str]:
    warnings = job_warnings(job)
    warnings += stop_warnings(found.stopped, time_limit_s=asked.time_limit_s) + found.warnings
    if asked.include and found.stopped is not None:
        warnings.append(f"The search was stopped before it computed: {', '.join(asked.include)}.")
    return list(dict.fromkeys(warnings))
