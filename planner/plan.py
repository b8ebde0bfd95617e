"""The main job in one function: a request in, ranked plans out, with the proof and the reasons for what was left out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from time import perf_counter
from typing import Any

from cost_models.calibration import CalibrationDocument
from cost_models.errors import InvalidInputError, Problem
from cost_models.job import Job
from cost_models.specs.fields import validated
from planner.axes import build_space, searched_values
from planner.comparison import compared, ties
from planner.explain import contradiction, nearest_infeasible
from planner.expressible import inexpressible_best
from planner.job_of import resolve_job
from planner.ranking import ranked_plans
from planner.resolved import resolved_request
from planner.schemas.plan_request import PlanRequest
from planner.schemas.plan_response import SCHEMA_VERSION
from planner.search.complete import search
from planner.search.found import Found, Progress
from planner.search.objective import build_goal
from planner.search.pareto import front_documents, pareto_front
from planner.search.what_if import what_if
from planner.space import Space
from planner.strategy_input import assumed_fields

PRODUCT_VERSION = version("meshwright")


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
        calibrations: documents that `cluster.calibration` may name, beside the shipped ones.
        allow_files: whether `cluster.calibration` may be a path (on the command line).
        on_progress: called between chunks of the search.
        should_stop: asked between chunks; true ends the search with the best so far.

    Raises:
        InvalidInputError: with every broken rule; CalibrationError where a calibration cannot be used.
    """
    started = perf_counter()
    asked = validated(PlanRequest, request, pointer="")
    job = resolve_job(request, extra=calibrations, allow_files=allow_files)
    check_request(asked, job)
    space = build_space(job, asked.constraints)
    goal = build_goal(job, asked.objective, asked.targets)
    found = search(space, goal=goal, asked=asked, on_progress=on_progress, should_stop=should_stop, started=started)
    response = _response(asked, job, space, found)
    stopped = found.stopped is not None
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


def check_request(asked: PlanRequest, job: Job) -> None:
    """Contradictions that can be named before searching.

    Raises:
        InvalidInputError: naming the fields that contradict.
    """
    problems = []
    least, nodes = asked.constraints.num_nodes.min or 1, job.cluster.num_nodes
    if least > nodes:
        message = f"constraints.num_nodes.min {least} is more than the cluster's {nodes} nodes"
        problems.append(Problem("/constraints/num_nodes/min", message, f"Use at most {nodes}."))
    if asked.targets.deadline_h is not None and job.training.total_tokens is None:
        message = "targets.deadline_h needs training.total_tokens"
        problems.append(Problem("/targets/deadline_h", message, "Add 'total_tokens' to training.", "missing-field"))
    if asked.objective == "fewest_gpus" and asked.targets.deadline_h is None and asked.targets.min_tokens_per_s is None:
        message = "objective fewest_gpus without targets would always choose the smallest cluster that fits"
        problems.append(Problem("/targets", message, "Add deadline_h or min_tokens_per_s.", "missing-field"))
    problems += _contradicted_fields(asked) + _wrong_splits(asked, layers=job.model.num_layers)
    if problems:
        raise InvalidInputError(problems)


def _contradicted_fields(asked: PlanRequest) -> list[Problem]:
    """Fixed strategy fields that nothing could satisfy."""
    fixed, allowed, problems = asked.constraints.fixed, asked.constraints.allowed, []
    if fixed.pool_per_stage is not None:
        message = "constraints.fixed.pool_per_stage is given, but the cluster has one kind of node"
        problems.append(Problem("/constraints/fixed/pool_per_stage", message, "Leave it out."))
    if fixed.recompute_per_stage is not None:
        modes = allowed.recompute or (fixed.recompute or "full",)
        counted = fixed.recompute_method or fixed.recompute_num_layers or allowed.recompute_num_layers
        if "full" not in modes or counted or allowed.recompute_method:
            message = (
                "constraints.fixed.recompute_per_stage counts layers of full recomputation and replaces its method"
            )
            hint = "Leave recompute_method and recompute_num_layers out, and recompute, or make it 'full'."
            problems.append(Problem("/constraints/fixed/recompute_per_stage", message, hint))
    for name in ("recompute_method", "recompute_num_layers"):
        if getattr(fixed, name) is not None and "full" not in (allowed.recompute or (fixed.recompute or "full",)):
            message = f"constraints.fixed.{name} is part of full recomputation, which recompute excludes"
            hint = f"Leave {name} out, or make recompute 'full'."
            problems.append(Problem(f"/constraints/fixed/{name}", message, hint))
    return problems


def _wrong_splits(asked: PlanRequest, *, layers: int) -> list[Problem]:
    """Splits, fixed or listed, that hold another number of layers than the model."""
    fixed, listed = asked.constraints.fixed.layers_per_stage, asked.constraints.allowed.layers_per_stage or ()
    splits = {f"allowed/layers_per_stage/{position}": split for position, split in enumerate(listed)}
    if fixed is not None:
        splits["fixed/layers_per_stage"] = fixed
    return [
        Problem(
            f"/constraints/{where}",
            f"layers_per_stage sums to {sum(split)} layers, but the model has {layers}",
            f"Give pp x vpp counts that sum to {layers}.",
            "layers-per-stage-mismatch",
        )
        for where, split in splits.items()
        if sum(split) != layers
    ]


def request_digest(resolved: Mapping[str, Any], *, calibration_id: str) -> str:
    """SHA-256 of all that the ranking follows from: request, product version, calibration."""
    content = {name: value for name, value in resolved.items() if name != "wait_s"}
    text = json.dumps([content, PRODUCT_VERSION, calibration_id], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _response(asked: PlanRequest, job: Job, space: Space, found: Found) -> dict[str, Any]:
    headroom = asked.constraints.memory_headroom_fraction
    assumed = assumed_fields(job, {})
    resolved = resolved_request(asked, job)
    digest = request_digest(resolved, calibration_id=job.calibration.id)
    plans = []
    if found.best is not None:
        plans = compared(ranked_plans(job, found.best, headroom_fraction=headroom, assumed=assumed))
    nearest = []
    if found.nearest is not None:
        nearest = nearest_infeasible(job, found.nearest, headroom_fraction=headroom)
    elif not len(space.degrees):
        nearest = [contradiction(job, asked.constraints)]
        found.rejected.update(reason["code"] for reason in nearest[0]["reasons"][:1])
    return {
        "id": f"plan_{digest[:16]}",
        "status": "cancelled" if found.stopped == "cancelled" else "succeeded",
        "created_at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "product_version": PRODUCT_VERSION,
        "schema_version": SCHEMA_VERSION,
        "request": resolved,
        "plans": plans,
        "ties": ties(plans),
        "search": _search_report(space, found, plans),
        "rejected": {code: count for code, count in sorted(found.rejected.items()) if count},
        "nearest_infeasible": nearest,
        "inexpressible_best": inexpressible_best(job, found, plans),
        "pareto": [],
        "what_if": [],
        "warnings": _warnings(asked, job, found),
        "request_digest": digest,
    }


def _search_report(space: Space, found: Found, plans: list[dict[str, Any]]) -> dict[str, Any]:
    best = min((p["evaluation"]["step_time_s"] for p in plans), default=None)
    bound = found.lower_bound_s
    gap = None
    if best is not None and bound is not None:
        gap = 0.0 if found.optimal else max(0.0, (best - bound) / best)
    values = searched_values(space)
    if "thresholds" in found.methods:
        values["layers_per_stage"] = [*values["layers_per_stage"], "the best of all"]
    return {
        "methods": found.methods,
        "space": values,
        "evaluated": found.evaluated,
        "feasible": found.feasible,
        "elapsed_s": found.elapsed_s,
        "proof": {"optimal": found.optimal, "gap": gap, "lower_bound_s": bound},
    }


def _warnings(asked: PlanRequest, job: Job, found: Found) -> list[str]:
    warnings = [*job.model.warnings, *job.cluster.warnings, *job.training.warnings]
    if found.stopped == "time":
        warnings.append(f"the search stopped at time_limit_s {asked.time_limit_s:g}: the ranking is the best so far")
    elif found.stopped == "cancelled":
        warnings.append("the search was cancelled: the ranking is the best so far")
    warnings += found.warnings
    if asked.include and found.stopped is not None:
        warnings.append(f"not computed, since the search was stopped: {', '.join(asked.include)}")
    return list(dict.fromkeys(warnings))
