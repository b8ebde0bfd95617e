"""From a posted request for a tuning to what is stored: the plan that it tunes, what runs its trials, and what they may take."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from app.errors import NotFoundError, WrongStateError
from app.service.api.tuning_schemas import TuningRequest
from app.service.db.plan_result import encoded
from app.service.db.plans import PlanRow, PlanStore
from app.service.db.tunings import TuningLimits, WantedTuning
from app.tuning.backends import backend_name
from cost_models.calibration import CalibrationDocument
from cost_models.errors import InvalidInputError, Problem
from planner.export.targets import TARGETS
from planner.request.checked_request import parse_request
from planner.request.job import resolve_pooled_job

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TunedPlan:
    """The plan that a tuning refers to: its id, and its request with the calibrations that it names."""

    id: str
    request: Document
    calibrations: Document


def planned(plans: PlanStore, tenant: str, plan_id: str) -> TunedPlan:
    """The tenant's plan.

    Raises:
        InvalidInputError: the tenant has no such plan.
        WrongStateError: it failed or was cancelled.
    """
    try:
        plan = plans.get(tenant, plan_id)
    except NotFoundError as error:
        raise InvalidInputError(
            [Problem("/plan_id", f"there is no plan {plan_id}", "GET /v1/plans lists yours.", "unknown-plan")]
        ) from error
    if plan.status in ("failed", "cancelled"):
        raise WrongStateError(f"plan {plan_id} is {plan.status}", hint="Tune a plan that has succeeded, or ask anew.")
    return tuned_plan(plan)


def tuned_plan(plan: PlanRow) -> TunedPlan:
    """What a tuning needs of a stored plan."""
    stored = json.loads(plan.request)
    return TunedPlan(plan.id, stored["request"], stored["calibrations"])


def wanted_tuning(asked: TuningRequest, plan: TunedPlan, *, most_gpu_hours: float) -> WantedTuning:
    """The tuning that is asked for, checked as far as that can be done without its plan.

    Raises:
        InvalidInputError: trials of this plan cannot be run on one node, or not by this back end, or may not take so much.
    """
    extra = {name: CalibrationDocument.model_validate(each) for name, each in plan.calibrations.items()}
    pooled = resolve_pooled_job(plan.request, extra=extra, allow_files=False, states_version=True)
    if len(pooled.jobs) > 1:
        message = f"the cluster has {len(pooled.jobs)} kinds of node; trials run on the GPUs of one node"
        raise InvalidInputError([Problem(_at(asked, "/cluster"), message, "Tune a plan for one kind of node.")])
    job = pooled.jobs[0]
    framework = job.training.framework
    gpu_hours = most_gpu_hours if asked.gpu_hours is None else asked.gpu_hours
    if gpu_hours > most_gpu_hours:
        message = f"gpu_hours is {gpu_hours:g}; a tuning may take at most {most_gpu_hours:g} here"
        raise InvalidInputError([Problem("/gpu_hours", message, "Ask for less, or whoever runs the service for more.")])
    nodes = parse_request(plan.request).constraints.num_nodes.min or 1
    backend = backend_name(framework, asked.backend)
    target = target_of(framework)
    if backend == "export" and target is None:
        message = f"there are no launch files for {framework}, which the back end export runs"
        raise InvalidInputError([Problem("/backend", message, "Plan for another framework.")])
    return WantedTuning(
        plan_id=plan.id,
        asked=encoded(asked.model_dump(mode="json") | {"backend": backend, "target": target, "gpu_hours": gpu_hours}),
        backend=backend,
        gpu=job.cluster.gpu.name,
        min_gpus=nodes * job.cluster.gpus_per_node,
        limits=TuningLimits(asked.max_trials, asked.budget_s, gpu_hours, asked.trial_limit_s),
        agent_id=asked.agent,
    )


def target_of(framework: str) -> str | None:
    """The target whose launch files run a framework's plans: its own, or the first that says them."""
    if framework in TARGETS:
        return framework
    return next((target.name for target in TARGETS.values() if framework in target.frameworks), None)


def _at(asked: TuningRequest, pointer: str) -> str:
    return "/plan_id" if asked.request is None else f"/request{pointer}"
