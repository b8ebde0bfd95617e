"""Contradictions in a plan request that can be named before anything is searched."""

from __future__ import annotations

from cost_models.errors import InvalidInputError, NotModelledError, Problem
from cost_models.hints import shown
from cost_models.job import Job, PooledJob
from cost_models.strategies.fields import FIELD
from planner.request.late_updates import late_updates_not_run
from planner.request.methods import methods_not_run
from planner.schemas.plan_request import PlanRequest
from planner.splits.model import PRICED_SCHEDULES
from planner.strategies.on_pools import pool_problems

ANALYSES = ("pareto", "what_if")
"""Extra analyses that can handle only one kind of node."""


def refuse_contradictions(asked: PlanRequest, job: PooledJob) -> None:
    """Refuses a request that contradicts itself.

    Raises:
        InvalidInputError: fields contradict each other; the error names them.
        NotModelledError: the request asks for something that is not modelled on pools.
    """
    if job.cluster.lists_pools:
        _refuse_on_pools(asked, job.jobs[0])
        problems = _wrong_pools(asked, job)
    else:
        problems = _pools_of_one_kind(asked)
    nodes, training = job.cluster.num_nodes, job.jobs[0].training
    least = asked.constraints.num_nodes.min or 1
    if least > nodes:
        message = f"constraints.num_nodes.min is {least}, but the cluster has only {nodes} nodes"
        hint = f"Set it to at most {nodes}."
        problems.append(Problem("/constraints/num_nodes/min", message, hint))
    if asked.targets.deadline_h is not None and training.total_tokens is None:
        message = "targets.deadline_h is given without training.total_tokens, from which the time is computed"
        problems.append(Problem("/targets/deadline_h", message, "Add 'total_tokens' to training.", "missing-field"))
    # Without a target no number of GPUs is too few, however slow they are.
    if asked.objective == "fewest_gpus" and asked.targets.deadline_h is None and asked.targets.min_tokens_per_s is None:
        message = (
            "objective 'fewest_gpus' is given without a target, so the smallest cluster that fits would always win"
        )
        problems.append(
            Problem("/targets", message, "Add targets.deadline_h or targets.min_tokens_per_s.", "missing-field")
        )
    if "open_splits" in asked.include and job.jobs[0].corrections.factors:
        message = "include asks for open_splits, which are searched with the models' own seconds and bytes, and corrections change these"
        problems.append(Problem("/include", message, "Leave open_splits out, or set corrections to 'none'."))
    problems += _modules_apart(asked)
    problems += methods_not_run(asked, job)
    problems += late_updates_not_run(asked, job)
    problems += _contradicted_fields(asked) + _wrong_splits(asked, layers=job.jobs[0].model.num_layers)
    if problems:
        raise InvalidInputError(problems)


def _contradicted_fields(asked: PlanRequest) -> list[Problem]:
    """Problems with strategy fields that no strategy could satisfy together."""
    fixed, allowed, problems = asked.constraints.fixed, asked.constraints.allowed, []
    if fixed.recompute_per_stage is not None:
        modes = allowed.recompute or (fixed.recompute or "full",)
        counted = fixed.recompute_method or fixed.recompute_num_layers or allowed.recompute_num_layers
        if "full" not in modes or counted or allowed.recompute_method:
            message = "constraints.fixed.recompute_per_stage counts layers of full recomputation, which the other fields exclude"
            hint = "Leave recompute_method and recompute_num_layers out, and leave recompute out or set it to 'full'."
            problems.append(Problem("/constraints/fixed/recompute_per_stage", message, hint))
    backends = allowed.flex_backend or (fixed.flex_backend and (fixed.flex_backend,))
    dispatchers = allowed.moe_dispatcher or (fixed.moe_dispatcher and (fixed.moe_dispatcher,)) or ("flex",)
    if backends and "flex" not in dispatchers:
        where = "allowed" if allowed.flex_backend else "fixed"
        message = f"flex_backend is {shown(backends[0])}, but moe_dispatcher is {shown(dispatchers[0])}"
        hint = "Set moe_dispatcher to 'flex', or leave flex_backend out."
        problems.append(Problem(f"/constraints/{where}/flex_backend", message, hint))
    for name in ("recompute_method", "recompute_num_layers"):
        if getattr(fixed, name) is not None and "full" not in (allowed.recompute or (fixed.recompute or "full",)):
            message = f"constraints.fixed.{name} describes full recomputation, which recompute excludes"
            hint = f"Leave {name} out, or set recompute to 'full'."
            problems.append(Problem(f"/constraints/fixed/{name}", message, hint))
    return problems


def _wrong_splits(asked: PlanRequest, *, layers: int) -> list[Problem]:
    """Problems with splits, fixed or listed, whose layers do not add up to the model's."""
    fixed, listed = asked.constraints.fixed.layers_per_stage, asked.constraints.allowed.layers_per_stage or ()
    splits = {f"allowed/layers_per_stage/{position}": split for position, split in enumerate(listed)}
    if fixed is not None:
        splits["fixed/layers_per_stage"] = fixed
    return [
        Problem(
            f"/constraints/{where}",
            f"layers_per_stage sums to {sum(split)} layers, but the model has {layers}",
            f"Give pp x vpp counts whose sum is {layers}.",
            "layers-per-stage-mismatch",
        )
        for where, split in splits.items()
        if sum(split) != layers
    ]


def _modules_apart(asked: PlanRequest) -> list[Problem]:
    if asked.constraints.fixed.mtp_stage is None:
        return []
    message = "constraints.fixed.mtp_stage is given, but a search places multi-token prediction beside the output layer"
    return [
        Problem(
            "/constraints/fixed/mtp_stage", message, "Leave it out, and evaluate a row with strategy.mtp_stage instead."
        )
    ]


def _pools_of_one_kind(asked: PlanRequest) -> list[Problem]:
    if asked.constraints.fixed.pool_per_stage is None:
        return []
    message = "constraints.fixed.pool_per_stage is given, but the cluster has only one kind of node"
    return [Problem("/constraints/fixed/pool_per_stage", message, "Leave pool_per_stage out.")]


def _wrong_pools(asked: PlanRequest, pooled: PooledJob) -> list[Problem]:
    """Problems with a list of pools: unknown names, or another number of stages than pp or the split has."""
    fixed = asked.constraints.fixed
    pools, split = fixed.pool_per_stage, fixed.layers_per_stage
    if pools is None:
        return []
    found = [
        Problem("/constraints/fixed/pool_per_stage", reason["message"], reason["hint"], reason["code"])
        for reason in pool_problems(pooled, pools, pp=fixed.pp)
    ]
    stages = asked.constraints.allowed.pp
    if stages is not None and len(pools) not in stages:
        message = f"pool_per_stage lists {len(pools)} stages, a number that allowed.pp does not list"
        hint = "Add that number to allowed.pp, or leave one of the two out."
        found.append(Problem("/constraints/fixed/pool_per_stage", message, hint, "pool-per-stage-mismatch"))
    if split is not None and len(split) % len(pools):
        message = (
            f"layers_per_stage lists {len(split)} virtual stages, not a multiple of the {len(pools)} in pool_per_stage"
        )
        at = "/constraints/fixed/layers_per_stage"
        found.append(
            Problem(at, message, "Give one count for each of the pp x vpp virtual stages.", "layers-per-stage-mismatch")
        )
    return found


def _refuse_on_pools(asked: PlanRequest, job: Job) -> None:
    """Refuses what can handle only one kind of node."""
    fixed, allowed = asked.constraints.fixed, asked.constraints.allowed
    hint = "Leave it out, or plan each pool as a cluster of its own."
    problems = [
        Problem(
            f"/include/{asked.include.index(name)}",
            f"include asks for {name!r}, which is not modelled on pools",
            hint,
            "pools-not-supported",
        )
        for name in ANALYSES
        if name in asked.include
    ]
    if fixed.recompute_per_stage is not None:
        given = shown(fixed.recompute_per_stage)
        message = f"recompute_per_stage is {given}, but counts that differ by stage are not modelled on pools"
        problems.append(Problem("/constraints/fixed/recompute_per_stage", message, hint, "pools-not-supported"))
    schedules = allowed.schedule or (() if fixed.schedule is None else (fixed.schedule,))
    unpriced = [name for name in schedules if FIELD["schedule"].encoded(name) not in PRICED_SCHEDULES]
    if unpriced:
        where = "allowed" if allowed.schedule else "fixed"
        message = f"schedule is {unpriced[0]!r}, which is not modelled on pools"
        problems.append(Problem(f"/constraints/{where}/schedule", message, hint, "pools-not-supported"))
    problems += _modules_on_pools(asked, hint)
    if _offloads_activations(asked):
        message = "offload.activation_layers is above 0, but offloading activations is not modelled on pools"
        where = "allowed" if allowed.offload and allowed.offload.activation_layers else "fixed"
        at = f"/constraints/{where}/offload/activation_layers"
        problems.append(Problem(at, message, hint, "pools-not-supported"))
    largest = max(allowed.vpp or (fixed.vpp or 1,))
    if largest > 1 and len(job.model.distinct_kinds) > 1 and not (fixed.layers_per_stage or allowed.layers_per_stage):
        where = "allowed" if allowed.vpp else "fixed"
        message = (
            f"vpp is {largest}, but on pools virtual stages are not searched for a model with several kinds of layer"
        )
        other = "Set vpp to 1, or give layers_per_stage."
        problems.append(Problem(f"/constraints/{where}/vpp", message, other, "pools-not-supported"))
    if problems:
        raise NotModelledError(problems)


def _modules_on_pools(asked: PlanRequest, hint: str) -> list[Problem]:
    """The problem of modules whose activations go to the host on a cluster of several kinds of node."""
    for where in ("allowed", "fixed"):
        offload = getattr(asked.constraints, where).offload
        if offload is not None and offload.activation_modules:
            message = "offload.activation_modules names modules, but offloading activations is not modelled on pools"
            at = f"/constraints/{where}/offload/activation_modules"
            return [Problem(at, message, hint, "pools-not-supported")]
    return []


def _offloads_activations(asked: PlanRequest) -> bool:
    """Whether the request fixes or lists layers whose activations go to the host."""
    fixed, allowed = asked.constraints.fixed.offload, asked.constraints.allowed.offload
    listed = (allowed.activation_layers if allowed else None) or ((fixed.activation_layers if fixed else None) or 0,)
    return max(listed) > 0
