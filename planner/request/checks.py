"""Contradictions of a plan request that can be named before searching."""

from __future__ import annotations

from cost_models.errors import InvalidInputError, NotModelledError, Problem
from cost_models.job import Job, PooledJob
from cost_models.specs.fields import shown
from cost_models.strategies.strategy import NAMES
from planner.pools.strategy import pool_problems
from planner.schemas.plan_request import PlanRequest
from planner.splits.model import PRICED_SCHEDULES

ANALYSES = ("pareto", "what_if")
"""Extra analyses that know one kind of node."""


def check_request(asked: PlanRequest, job: Job | PooledJob) -> None:
    """Contradictions that can be named before searching.

    Raises:
        InvalidInputError: naming the fields that contradict; NotModelledError for what is not modelled on pools.
    """
    if isinstance(job, PooledJob):
        _refuse_on_pools(asked, job.jobs[0])
        _check(asked, job.jobs[0], nodes=job.cluster.num_nodes, problems=_wrong_pools(asked, job))
    else:
        _check(asked, job, nodes=job.cluster.num_nodes, problems=_pools_of_one_kind(asked))


def _check(asked: PlanRequest, job: Job, *, nodes: int, problems: list[Problem]) -> None:
    least = asked.constraints.num_nodes.min or 1
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
    if fixed.recompute_per_stage is not None:
        modes = allowed.recompute or (fixed.recompute or "full",)
        counted = fixed.recompute_method or fixed.recompute_num_layers or allowed.recompute_num_layers
        if "full" not in modes or counted or allowed.recompute_method:
            message = (
                "constraints.fixed.recompute_per_stage counts layers of full recomputation and replaces its method"
            )
            hint = "Leave recompute_method and recompute_num_layers out, and recompute, or make it 'full'."
            problems.append(Problem("/constraints/fixed/recompute_per_stage", message, hint))
    backends = allowed.flex_backend or (fixed.flex_backend and (fixed.flex_backend,))
    dispatchers = allowed.moe_dispatcher or (fixed.moe_dispatcher and (fixed.moe_dispatcher,)) or ("flex",)
    if backends and "flex" not in dispatchers:
        where = "allowed" if allowed.flex_backend else "fixed"
        message = f"flex_backend is {shown(backends[0])}, but moe_dispatcher is {shown(dispatchers[0])}"
        hint = "Let moe_dispatcher be 'flex', or leave flex_backend out."
        problems.append(Problem(f"/constraints/{where}/flex_backend", message, hint))
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


def _pools_of_one_kind(asked: PlanRequest) -> list[Problem]:
    if asked.constraints.fixed.pool_per_stage is None:
        return []
    message = "constraints.fixed.pool_per_stage is given, but the cluster has one kind of node"
    return [Problem("/constraints/fixed/pool_per_stage", message, "Leave it out.")]


def _wrong_pools(asked: PlanRequest, pooled: PooledJob) -> list[Problem]:
    """A list of pools that names others, or another number of stages than the split or pp."""
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
        message = f"pool_per_stage lists {len(pools)} stages, which allowed.pp does not"
        hint = "List that number in allowed.pp, or leave one of them out."
        found.append(Problem("/constraints/fixed/pool_per_stage", message, hint, "pool-per-stage-mismatch"))
    if split is not None and len(split) % len(pools):
        message = f"layers_per_stage lists {len(split)} virtual stages, no multiple of pool_per_stage's {len(pools)}"
        at = "/constraints/fixed/layers_per_stage"
        found.append(Problem(at, message, "Give pp x vpp counts.", "layers-per-stage-mismatch"))
    return found


def _refuse_on_pools(asked: PlanRequest, job: Job) -> None:
    """What knows one kind of node only."""
    fixed, allowed = asked.constraints.fixed, asked.constraints.allowed
    hint = "Leave it out, or plan each pool as a cluster of its own."
    problems = [
        Problem(
            f"/include/{asked.include.index(name)}",
            f"include names {name!r}, which is not modelled on pools",
            hint,
            "pools-not-supported",
        )
        for name in ANALYSES
        if name in asked.include
    ]
    if fixed.recompute_per_stage is not None:
        given = shown(fixed.recompute_per_stage)
        message = f"recompute_per_stage is {given}: counts of each stage's own are not modelled on pools"
        problems.append(Problem("/constraints/fixed/recompute_per_stage", message, hint, "pools-not-supported"))
    schedules = allowed.schedule or (() if fixed.schedule is None else (fixed.schedule,))
    unpriced = [name for name in schedules if NAMES["schedule"].index(name) not in PRICED_SCHEDULES]
    if unpriced:
        where = "allowed" if allowed.schedule else "fixed"
        message = f"schedule is {unpriced[0]!r}, which is not modelled on pools"
        problems.append(Problem(f"/constraints/{where}/schedule", message, hint, "pools-not-supported"))
    if _offloads_activations(asked):
        message = "offload.activation_layers is above 0: activation offload is not searched on pools"
        where = "allowed" if allowed.offload and allowed.offload.activation_layers else "fixed"
        at = f"/constraints/{where}/offload/activation_layers"
        problems.append(Problem(at, message, hint, "pools-not-supported"))
    largest = max(allowed.vpp or (fixed.vpp or 1,))
    if largest > 1 and len(job.model.distinct_kinds) > 1 and not (fixed.layers_per_stage or allowed.layers_per_stage):
        where = "allowed" if allowed.vpp else "fixed"
        message = f"vpp is {largest}: virtual stages of a model with several kinds of layer are not searched on pools"
        other = "Make it 1, or give layers_per_stage."
        problems.append(Problem(f"/constraints/{where}/vpp", message, other, "pools-not-supported"))
    if problems:
        raise NotModelledError(problems)


def _offloads_activations(asked: PlanRequest) -> bool:
    """Whether the request fixes or lists layers whose activations go to the host."""
    fixed, allowed = asked.constraints.fixed.offload, asked.constraints.allowed.offload
    listed = (allowed.activation_layers if allowed else None) or ((fixed.activation_layers if fixed else None) or 0,)
    return max(listed) > 0
