"""From a posted request for a tuning to what is stored: the plan that it tunes, what runs its trials, and what they may take."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from app.errors import NotFoundError, WrongStateError
from app.service.db.plan_result import encoded
from app.service.db.plans import PlanRow, PlanStore
from app.service.db.tunings import TuningLimits, WantedTuning
from app.service.intake.examples import EXAMPLE_AGENT_ID, EXAMPLE_PLAN_ID
from app.tuning.backends import backend_name
from cost_models.calibration import CalibrationDocument
from cost_models.errors import InvalidInputError, Problem
from cost_models.inputs.fields import Count, CountOrZero
from planner.request.checked_request import parse_request
from planner.request.job import resolve_pooled_job
from planner.schemas.base import ContractModel

Document = dict[str, Any]
# As `meshwright tune` has them.
USUAL_TRIALS, MOST_TRIALS = 8, 200
USUAL_BUDGET_S, MOST_BUDGET_S = 600.0, 7 * 86_400.0
MOST_KNOBS = 200
USUAL_TRIAL_S, MOST_TRIAL_S = 120.0, 7200.0
EXAMPLE_TUNING_REQUEST: JsonDict = {"plan_id": EXAMPLE_PLAN_ID, "agent": EXAMPLE_AGENT_ID, "max_trials": 4}
_PRINTED = r"^[^\x00-\x1f\x7f]+$"
_Id = Annotated[str, Field(strict=True, min_length=1, max_length=80, pattern=_PRINTED)]
Backend = Literal["pytorch", "export"]


class TuningRequest(ContractModel):
    """A plan whose best candidates are to be measured on registered agents."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_TUNING_REQUEST]})

    plan_id: _Id | None = None
    """The plan that is tuned. Either this or `request` is given."""
    request: dict[str, Any] | None = None
    """A plan request, which is planned first, as `POST /v1/plans` would; without `top_k`, for 40 plans to choose from."""
    backend: Backend | None = None
    """What runs the trials: `export`, the launch files of the plan's own framework, or `pytorch`, PyTorch's own parallelism,
    which stands for the frameworks that are built on it. Default: `pytorch` for these, `export` for all others."""
    agent: _Id | None = None
    """Id of the only agent that may run the trials. Default: any whose node has the GPUs of the plan."""
    max_trials: Annotated[Count, Field(le=MOST_TRIALS)] = USUAL_TRIALS
    """Number of plans that are tried at most."""
    budget_s: Annotated[float, Field(strict=True, ge=10, le=MOST_BUDGET_S, allow_inf_nan=False)] = USUAL_BUDGET_S
    """Seconds that all trials may take together: none begins after them, nor where the longest so far would not fit."""
    gpu_hours: Annotated[float, Field(strict=True, gt=0, le=1e6, allow_inf_nan=False)] | None = None
    """Number of GPU hours of all trials together after which none begins. Default and most: what the service allows to one tuning."""
    trial_limit_s: Annotated[float, Field(strict=True, ge=5, le=MOST_TRIAL_S, allow_inf_nan=False)] = USUAL_TRIAL_S
    """Seconds after which a trial that has not ended counts as hung."""
    knobs: Annotated[CountOrZero, Field(le=MOST_KNOBS)] = 0
    """Number of further trials of the best plan with other values of its run-time knobs, the framework's own values first. They come on
    top of `max_trials` and `budget_s`; `gpu_hours` bounds them, too."""
    seed: Annotated[CountOrZero, Field(lt=2**31)] = 0
    """Number that starts the random choices."""

    @model_validator(mode="after")
    def _one_plan(self) -> TuningRequest:
        if (self.plan_id is None) == (self.request is None):
            raise ValueError("exactly one of plan_id and request is needed")
        return self


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
    # Its own calibrations travel with the stored request, so that what is resolved here is what was planned.
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
    # Plans use whole nodes of the cluster. Fewer GPUs than one node has are therefore never enough for any of them.
    nodes = parse_request(plan.request).constraints.num_nodes.min or 1
    backend = backend_name(framework, asked.backend)
    return WantedTuning(
        plan_id=plan.id,
        asked=encoded(asked.model_dump(mode="json") | {"backend": backend, "gpu_hours": gpu_hours}),
        backend=backend,
        gpu=job.cluster.gpu.name,
        min_gpus=nodes * job.cluster.gpus_per_node,
        limits=TuningLimits(asked.max_trials, asked.budget_s, gpu_hours, asked.trial_limit_s),
        agent_id=asked.agent,
    )


def _at(asked: TuningRequest, pointer: str) -> str:
    return "/plan_id" if asked.request is None else f"/request{pointer}"
