"""Requests that list or fix ZenFlow, whose updates come late: a search of exact plans is made without it, another with nothing else."""

from __future__ import annotations

from collections.abc import Callable

from cost_models.errors import Problem
from cost_models.frameworks.deepspeed import ZENFLOW_SINCE
from cost_models.job import PooledJob
from cost_models.strategies.fields import OptimizerOverlap
from planner.schemas.plan_request import PlanRequest

_NAME = OptimizerOverlap.ZENFLOW.label


def with_late_updates(asked: PlanRequest) -> PlanRequest | None:
    """The request for plans that update late and for no others; None where it neither lists nor fixes them."""
    if not _places(asked):
        return None
    return _changed(asked, fixed=lambda _: _NAME, allowed=lambda _: (_NAME,))


def without_late_updates(asked: PlanRequest) -> PlanRequest:
    """The request for exact plans: the same object where nothing was to be left out."""
    if not _places(asked):
        return asked
    # A fixed value leaves the field's default, so that there is something exact to compare with.
    return _changed(asked, fixed=lambda _: None, allowed=lambda listed: tuple(v for v in listed if v != _NAME) or None)


def late_updates_not_run(asked: PlanRequest, pooled: PooledJob) -> list[Problem]:
    """Problems of updates that come late where the framework has none, or where nobody priced them."""
    found = []
    choices = pooled.jobs[0].framework.choices
    for where in _places(asked):
        at = f"/constraints/{where}/offload/optimizer_overlap"
        hint = f"Take {_NAME!r} out of offload.optimizer_overlap."
        if pooled.cluster.lists_pools:
            message = f"offload.optimizer_overlap {_NAME!r} is not modelled on a cluster that lists pools"
            found.append(Problem(at, message, hint, "not-modelled"))
        elif OptimizerOverlap.ZENFLOW not in choices.offload_overlaps:
            message = f"{pooled.jobs[0].training.framework} does not have ZenFlow, which is DeepSpeed's alone (from {ZENFLOW_SINCE} on)"
            found.append(Problem(at, message, hint, "offload-unsupported"))
    return found


def _places(asked: PlanRequest) -> list[str]:
    """Where a request names them: "fixed", "allowed", both or neither."""
    fixed, allowed = asked.constraints.fixed.offload, asked.constraints.allowed.offload
    found = ["fixed"] if fixed is not None and fixed.optimizer_overlap == _NAME else []
    return found + (["allowed"] if allowed is not None and _NAME in (allowed.optimizer_overlap or ()) else [])


def _changed(
    asked: PlanRequest,
    *,
    fixed: Callable[[str], str | None],
    allowed: Callable[[tuple[str, ...]], tuple[str, ...] | None],
) -> PlanRequest:
    """The request with other values of the field, at the places that name late updates."""
    made = {}
    for where in _places(asked):
        part = getattr(asked.constraints, where)
        change = fixed if where == "fixed" else allowed
        overlap = change(part.offload.optimizer_overlap)
        made[where] = part.model_copy(
            update={"offload": part.offload.model_copy(update={"optimizer_overlap": overlap})}
        )
    return asked.model_copy(update={"constraints": asked.constraints.model_copy(update=made)})
