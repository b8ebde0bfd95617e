"""The whole flow in one function: a request goes in; ranked plans come out, with a proof and the reasons for what was left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from cost_models.calibration import CalibrationDocument
from cost_models.job import PooledJob
from planner.answer.closest import closest_illegal, too_slow
from planner.answer.comparison import ties
from planner.answer.explain import contradiction, nearest_infeasible
from planner.answer.inexpressible import inexpressible_best
from planner.answer.not_searched import not_searched
from planner.answer.ranking import compared_plans, ranked_plans
from planner.answer.response import host_warnings, plan_response, search_report, stop_warnings
from planner.request.checked_request import CheckedRequest, check_request
from planner.request.job_warnings import job_warnings
from planner.request.methods import asks_methods
from planner.rules import rule_codes
from planner.schemas.plan_request import PlanRequest
from planner.search.budget import Budget
from planner.search.found import Found
from planner.search.objective import Goal, build_goal, without_targets
from planner.search.progress import Progress
from planner.search_on_one_kind import SpaceOnOneKind, splits_are_open
from planner.strategies.axes import build_space, given_values
from planner.strategies.parts import Parts
from planner.strategies.told import assumed_fields

OFFLOADED_ONLY = (
    "Nothing fits in the GPUs' memory alone, so every plan keeps a part of the model's state in host memory (strategy.offload), which "
    "costs time on the host link. Without offload the job needs more or larger GPUs."
)

if TYPE_CHECKING:
    from planner.pools.space_on_pools import SpaceOnPools


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
    return plan_checked(checked, on_progress=on_progress, should_stop=should_stop, started=started)


def plan_checked(
    checked: CheckedRequest,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    started: float | None = None,
    without: Parts = frozenset(),
    changed_too: bool = True,
) -> dict[str, Any]:
    """The plan response for a request that has been checked. For the other arguments see `plan`.

    Args:
        started: the time at which the request arrived, on `perf_counter`'s clock; time limits count from there.
        without: parts of the search that are left out, to see what each is worth.
        changed_too: whether `changed_plans` are looked for, which take a search for each way of training.
    """
    asked, job = checked.asked, checked.job.jobs[0]
    searched = _searched(checked, started, without)
    space, goal = searched.space, build_goal(job, asked.objective, asked.targets)
    found = searched.search(goal, asked=asked, on_progress=on_progress, should_stop=should_stop)
    if found.best is None and found.stopped is None and isinstance(searched, SpaceOnOneKind):
        searched, found = _fallen_back(searched, found, goal, checked, on_progress=on_progress, should_stop=should_stop)
        space = searched.space
    response = _response(checked, searched, found)
    if found.stopped is not None:
        return response
    # "No plan reaches the target" alone helps nobody, so the fastest plan without targets tells which target could be reached.
    if not response["plans"] and found.rejected["misses-target"]:
        alone = asked.model_copy(update={"top_k": 1, "include": ()})
        fastest = searched.search(without_targets(), asked=alone, should_stop=should_stop)
        misses = too_slow(checked.job, goal, fastest.best)
        # On pools, a candidate that reaches the targets but does not fit was already named, and stays.
        if misses or not checked.job.cluster.lists_pools:
            response["nearest_infeasible"] = misses or _nearest(checked, searched, fastest)
    # Few requests ask for these, and the others need not load them.
    if "pareto" in asked.include:
        from planner.search.pareto import front_documents, pareto_front

        front = pareto_front(
            space,
            goal=goal,
            headroom_fraction=asked.constraints.memory_headroom_fraction,
            seed=asked.seed,
            should_stop=Budget(asked.time_limit_s, should_stop, started).must_stop,
            known=found.best,
        )
        response["pareto"] = front_documents(front)
        response["search"]["methods"] += ["nsga-ii"] * (front.method == "nsga-ii")
        if front.stopped:
            response["warnings"].append("The search for the front was stopped, so `pareto` may lack points.")
    if (asks_methods(asked) or checked.late is not None) and not checked.job.cluster.lists_pools:
        from planner.method_plans import add_method_plans

        add_method_plans(response, checked, changed_too=changed_too, started=started, should_stop=should_stop)
    if "what_if" in asked.include:
        # The variants share what is left of the time limit: each with a limit of its own, a request would take many times as long.
        add_what_if(response, checked, should_stop=Budget(asked.time_limit_s, should_stop, started).must_stop)
    return response


def add_what_if(response: dict[str, Any], checked: CheckedRequest, *, should_stop: Callable[[], bool]) -> None:
    """Adds the best plans of variants of the request, and what replicas that do not wait would save the best plan.

    Once `should_stop` is true the rest of the variants is left out, which a warning says.
    """
    from planner.answer.asynchrony import asynchrony
    from planner.answer.what_if import what_if

    def solve(changed: Mapping[str, Any]) -> dict[str, Any]:
        # Only the best of `plans` is told of a variant.
        return plan_checked(
            checked.changed(changed), should_stop=should_stop, started=perf_counter(), changed_too=False
        )

    plans = response["plans"]
    if plans:
        response["asynchrony"] = asynchrony(plans[0], seed=checked.asked.seed)
    job = checked.job.jobs[0]
    response["what_if"] = what_if(checked.given, job, plans, solve=solve, should_stop=should_stop)
    if plans and should_stop():
        response["warnings"].append(
            "The time was up before every variant of `what_if` was planned, so it may lack some."
        )


def _fallen_back(
    searched: SpaceOnOneKind,
    found: Found,
    goal: Goal,
    checked: CheckedRequest,
    *,
    on_progress: Callable[[Progress], None] | None,
    should_stop: Callable[[], bool] | None,
) -> tuple[SpaceOnOneKind, Found]:
    """What is found with offload, where nothing fits without and the framework can; else what was found before."""
    offloaded = (
        searched.with_offload() if found.rejected["out-of-memory"] or found.rejected["at-risk-of-memory"] else None
    )
    if offloaded is None:
        return searched, found
    second = offloaded.search(goal, asked=checked.asked, on_progress=on_progress, should_stop=should_stop)
    if second.best is None and second.stopped is None:
        return searched, found
    second.add_counts(found)
    second.warnings.append(OFFLOADED_ONLY)
    return offloaded, second


def _searched(checked: CheckedRequest, started: float | None, without: Parts) -> SpaceOnOneKind | SpaceOnPools:
    if checked.job.cluster.lists_pools:
        # Few requests list pools, and the others need not load a search of their own.
        from planner.pools.space_on_pools import space_on_pools

        return space_on_pools(checked, without=without)
    return SpaceOnOneKind(build_space(checked.job.jobs[0], checked.asked.constraints, without=without), started)


def _response(checked: CheckedRequest, searched: SpaceOnOneKind | SpaceOnPools, found: Found) -> dict[str, Any]:
    headroom = checked.asked.constraints.memory_headroom_fraction
    plans = []
    if found.best is not None:
        assumed = assumed_fields(checked.job, {})
        plans = ranked_plans(checked.job, found.best, headroom_fraction=headroom, assumed=assumed)
        plans = compared_plans(plans, checked)
    nearest = _nearest(checked, searched, found)
    # Nothing was rejected and nothing found: then not even the degrees suit each other, and the reason for that is counted.
    if nearest and not any(found.rejected.values()):
        found.rejected.update(reason["code"] for reason in nearest[0]["reasons"][:1])
        found.total += 1
    return plan_response(
        checked,
        stopped=found.stopped,
        plans=plans,
        ties=ties(plans),
        search=_search_report(checked, searched, found, plans),
        rejected={code: count for code, count in sorted(found.rejected.items()) if count},
        nearest_infeasible=nearest,
        inexpressible_best=inexpressible_best(checked.job.jobs[0], found, plans),
        warnings=_warnings(checked.asked, checked.job, found) + host_warnings(plans),
    )


def _nearest(checked: CheckedRequest, searched: SpaceOnOneKind | SpaceOnPools, found: Found) -> list[dict[str, Any]]:
    """The contract's `nearest_infeasible`."""
    constraints = checked.asked.constraints
    if found.nearest is not None:
        return nearest_infeasible(checked.job, found.nearest, headroom_fraction=constraints.memory_headroom_fraction)
    if found.unplaced or not len(searched.space.degrees):
        if not isinstance(searched, SpaceOnOneKind):
            from planner.pools.explain import no_room_on_pools

            return [no_room_on_pools(searched, found)]
        return [contradiction(checked.job.jobs[0], constraints)]
    ruled_out = any(found.rejected[code] for code in rule_codes())
    return closest_illegal(searched.space) if ruled_out and found.best is None and found.stopped is None else []


def _search_report(
    checked: CheckedRequest, searched: SpaceOnOneKind | SpaceOnPools, found: Found, plans: list[dict[str, Any]]
) -> dict[str, Any]:
    steps_s, on_one_kind = found.best_step_s, isinstance(searched, SpaceOnOneKind)
    if steps_s is None:
        steps_s = np.array([plan["evaluation"]["step_time_s"] for plan in plans])
    return search_report(
        best_s=float(steps_s.min()) if len(steps_s) else None,
        bound_s=found.lower_bound_s,
        optimal=found.optimal,
        methods=found.methods,
        space=searched.values(found),
        total=found.total,
        bounded=found.bounded,
        not_searched=not_searched(
            searched.space,
            on_pools=not on_one_kind,
            splits_are_open=not on_one_kind or splits_are_open(checked.asked),
            given=given_values(checked.asked.constraints),
        ),
        evaluated=found.evaluated,
        feasible=found.feasible,
        unsearched=found.unsearched,
        elapsed_s=found.elapsed_s,
    )


def _warnings(asked: PlanRequest, job: PooledJob, found: Found) -> list[str]:
    warnings = job_warnings(job)
    warnings += stop_warnings(found.stopped, time_limit_s=asked.time_limit_s) + found.warnings
    if asked.include and found.stopped is not None:
        warnings.append(f"The search was stopped before it computed: {', '.join(asked.include)}.")
    return list(dict.fromkeys(warnings))
