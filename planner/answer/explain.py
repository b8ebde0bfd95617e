"""Why a strategy does not fit into memory, and the smallest change that would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from cost_models.evaluate import Verdict, memory_verdict
from cost_models.frameworks import memory_traits
from cost_models.job import Job, PooledJob
from cost_models.layers.trained import trained_parameters
from cost_models.memory import stage_memory
from cost_models.memory.adapted import base_bytes, stored_base
from cost_models.memory.states import optimizer_state_bytes
from cost_models.pools.evaluate import evaluate_on_pools
from cost_models.specs.training import BYTES_PER
from cost_models.strategies.fields import GROUPS
from cost_models.strategies.strategy import Ints, Strategies
from cost_models.units import GIB
from planner.answer.changes import Change, adapter_changes, combined_changes, single_changes
from planner.answer.evaluation import Reason, memory_reasons
from planner.rules import violations
from planner.schemas.plan_request import Constraints
from planner.schemas.strategy import AllowedValues, StrategyInput
from planner.strategies.parse import resolve_strategies
from planner.strategies.told import strategy_dict

SHOWN = 3
"""Nearest infeasible plans returned."""
Changes = Callable[[Job, dict[str, Any]], Iterator[Change]]
_FULL_TRAINING: tuple[Changes, ...] = (single_changes, combined_changes)
"""Changes after which the same parameters are trained. A combination is never milder than a single change, so combinations are
tried only where no single change is enough."""
_MORE_ON_POOLS = "recompute more, or use more nodes or GPUs with more memory in the pool that is over"


def nearest_infeasible(pooled: PooledJob, nearest: Strategies, *, headroom_fraction: float) -> list[dict[str, Any]]:
    """The contract's `nearest_infeasible`: the candidates that need the least too much, one per split of the GPUs.

    Those that some change makes fit come first, since they tell the user what to do.
    """
    found = FittingChanges({}, {}, _MORE_ON_POOLS)  # each change would need a placement of its own on the pools
    if not pooled.cluster.lists_pools:
        found = _fitting_splits(pooled.jobs[0], nearest, _FULL_TRAINING, headroom_fraction=headroom_fraction)
        # Adapters train another thing than was asked for: they are proposed where nothing else makes any candidate fit.
        if not found.names:
            adapted = _fitting_splits(pooled.jobs[0], nearest, (adapter_changes,), headroom_fraction=headroom_fraction)
            found.names.update(adapted.names)
    shown = _different_splits(nearest, first=[index in found.names for index in range(len(nearest))])
    evaluated = evaluate_on_pools(pooled, nearest.take(shown), headroom_fraction=headroom_fraction)
    return [
        {
            "strategy": strategy_dict(nearest, index),
            "reasons": memory_reasons(evaluated, position, pooled=pooled),
            "smallest_change": found.told(index),
        }
        for position, index in enumerate(shown.tolist())
    ]


def contradiction(
    job: Job,
    constraints: Constraints,
    *,
    num_gpus: int | None = None,
    apart: frozenset[str] = frozenset(),
    otherwise: Reason | None = None,
) -> dict[str, Any]:
    """Why no combination of degrees is left at all: the strategy made of the first values given, and what is wrong with it.

    Args:
        job: what is planned.
        constraints: the constraints of the request.
        num_gpus: how many GPUs there are; those of the job's cluster by default.
        apart: codes of rules that are disregarded.
        otherwise: the reason to give where that strategy breaks no rule; by default, that no degrees make whole nodes.
    """
    gpus = job.cluster.num_gpus if num_gpus is None else num_gpus
    strategy = first_values(constraints, num_gpus=gpus)
    reasons = _more_than_all(strategy, gpus)
    if not reasons:
        found = resolve_strategies(job, [StrategyInput.model_validate(strategy)]).problems[0]
        reasons = [reason for reason in found if reason["code"] not in apart]
    reasons = reasons or [otherwise or _not_whole_nodes(job, constraints)]
    return {"strategy": strategy, "reasons": reasons, "smallest_change": reasons[0]["hint"]}


def first_values(constraints: Constraints, *, num_gpus: int) -> dict[str, Any]:
    """A strategy made of what the constraints fix, the first of what they list, and the smallest degrees otherwise."""
    given = _given(constraints)
    # The smallest degrees are the least likely to add a contradiction of their own to what the request gives.
    strategy = {"tp": 1, "pp": 1, "cp": 1, "micro_batch_size": 1, **given}
    if strategy["tp"] * strategy["pp"] * strategy["cp"] <= num_gpus:
        strategy = {"dp": 1, **strategy}
    return strategy


def _given(constraints: Constraints) -> dict[str, Any]:
    apart = (*GROUPS, "pool_per_stage")
    given = constraints.fixed.model_dump(mode="json", exclude=set(apart), exclude_none=True)
    for name in AllowedValues.model_fields:
        values = getattr(constraints.allowed, name)
        if values is not None and name not in apart:
            given[name] = values[0]
    return given


def _more_than_all(strategy: dict[str, Any], num_gpus: int) -> list[Reason]:
    """The reason that the degrees multiply to more GPUs than there are; empty where they do not."""
    names = [name for name in ("tp", "pp", "cp", "dp") if name in strategy]
    world = prod(strategy[name] for name in names)
    if world <= num_gpus:
        return []
    product = " x ".join(f"{name} {strategy[name]}" for name in names)
    message = f"{product} needs {world} GPUs, but the cluster has only {num_gpus}"
    hint = "Lower one of these degrees, or add nodes."
    return [{"code": "world-exceeds-gpus", "message": message, "hint": hint}]


def _not_whole_nodes(job: Job, constraints: Constraints) -> Reason:
    given = _given(constraints)
    nodes, size = job.cluster.num_nodes, job.cluster.gpus_per_node
    most = min(constraints.num_nodes.max or nodes, nodes)
    least = (constraints.num_nodes.min or 1) if constraints.allow_idle_gpus else most
    counts = f"{least} to {most}" if least < most else f"{most}"
    degrees = ", ".join(f"{name} {given[name]}" for name in ("tp", "pp", "cp", "dp") if name in given)
    return {
        "code": "gpus-not-divisible",
        "message": f"no product tp x pp x cp x dp{f' with {degrees}' if degrees else ''} fills {counts} whole nodes of {size} GPUs",
        "hint": "Choose degrees whose product fills whole nodes, a batch with more divisors, or another num_nodes.",
    }


def _different_splits(nearest: Strategies, *, first: list[bool]) -> Ints:
    """Positions of the first few candidates that differ in a degree, those marked in `first` before the others."""
    order = np.argsort(~np.array(first, np.bool_), kind="stable")
    # Candidates that share their degrees mostly share their remedy too, so one of each split is shown.
    _, at = np.unique(_degrees(nearest)[order], axis=0, return_index=True)
    return np.asarray(order[np.sort(at)[:SHOWN]])


def _degrees(nearest: Strategies) -> Ints:
    """The degrees that tell splits of the GPUs apart, shape (N, 5)."""
    return np.stack([getattr(nearest, name) for name in ("tp", "pp", "cp", "dp", "ep")], axis=1)


@dataclass(frozen=True, slots=True)
class FittingChanges:
    """For each strategy the mildest change that makes it fit, and what comes closest where none does."""

    names: dict[int, str]
    """The change by position of the strategy; strategies that no change makes fit are absent."""
    closest: dict[int, tuple[float, str]]
    """GiB too many per GPU under the legal change that comes closest, and its name, by position of the strategy."""
    advice: str
    """What to do where no change is enough."""

    def told(self, index: int) -> str:
        """The change that makes strategy `index` fit, or what is missing."""
        return self.names.get(index) or _no_change(self.closest.get(index), self.advice)


def _fitting_splits(
    job: Job, nearest: Strategies, kinds: tuple[Changes, ...], *, headroom_fraction: float
) -> FittingChanges:
    """The fitting changes, of these kinds, of as many candidates as decide which ones are shown, in their order.

    A candidate is passed over once an earlier one of its split fits after a change, and all are once enough splits do: in
    `_different_splits` these come before it.
    """
    splits = [tuple(row) for row in _degrees(nearest).tolist()]
    settled: set[tuple[int, ...]] = set()
    found = FittingChanges({}, {}, _more_memory(job, headroom_fraction=headroom_fraction))
    start, size = 0, SHOWN
    while start < len(splits) and len(settled) < SHOWN:
        some = [index for index in range(start, min(start + size, len(splits))) if splits[index] not in settled]
        given = [strategy_dict(nearest, index) for index in some]
        its = fitting_changes(job, given, kinds, headroom_fraction=headroom_fraction)
        found.names.update((some[index], name) for index, name in its.names.items())
        found.closest.update((some[index], change) for index, change in its.closest.items())
        settled |= {splits[some[index]] for index in its.names}
        start, size = start + size, 2 * size
    return found


def fitting_changes(
    job: Job,
    strategies: list[dict[str, Any]],
    kinds: tuple[Changes, ...] = _FULL_TRAINING,
    *,
    headroom_fraction: float,
) -> FittingChanges:
    """Which change makes each strategy legal and fitting, or what is missing where none does."""
    found = FittingChanges({}, {}, _more_memory(job, headroom_fraction=headroom_fraction))
    for kind in kinds:
        unfit = [index for index in range(len(strategies)) if index not in found.names]
        _try(
            [(index, change) for index in unfit for change in kind(job, strategies[index])],
            found,
            job,
            headroom_fraction,
        )
    return found


def _try(tried: list[tuple[int, Change]], found: FittingChanges, job: Job, headroom_fraction: float) -> None:
    """Notes in `found` the first of these changes that fits and the one that comes closest, by position of the strategy."""
    fitting: dict[int, tuple[int, str]] = {}
    # A few changes are fields of the job and all others are fields of the strategy, so one batch for each of these prices all.
    for edit in dict.fromkeys(change.edit for _, change in tried):
        some = [position for position, (_, change) in enumerate(tried) if change.edit == edit]
        changed = tried[some[0]][1].job(job)
        inputs = [StrategyInput.model_validate(tried[position][1].strategy) for position in some]
        resolved = resolve_strategies(changed, inputs)
        if resolved.strategies is None:
            continue
        legal = violations(changed, resolved.strategies).legal
        memory = stage_memory(changed, resolved.strategies)
        verdict, _ = memory_verdict(changed, memory, headroom_fraction=headroom_fraction)
        excess = (memory.device - job.cluster.capacity_bytes * (1.0 - headroom_fraction)) / GIB
        for row in np.flatnonzero(legal).tolist():
            position = some[int(resolved.index[row])]
            index, change = tried[position]
            if verdict[row] == Verdict.FITS:
                name = change.name + _on_the_host(float(memory.host_bytes_per_node[row]), job)
                if job.training.adapter is None:
                    name += _share_trained(changed)
                fitting[index] = min(fitting.get(index, (len(tried), "")), (position, name))
            closest = found.closest.get(index, (np.inf, ""))
            found.closest[index] = min(closest, (float(excess[row]), change.name))
    found.names.update((index, name) for index, (_, name) in fitting.items())


def _share_trained(job: Job) -> str:
    """What part of the parameters an adapter trains, in parentheses; empty where there is none."""
    if job.training.adapter is None:
        return ""
    return f" (which trains {100.0 * trained_parameters(job.model, job.training).share:.2g} % of the parameters)"


def _on_the_host(needed_bytes: float, job: Job) -> str:
    """What a change needs of the nodes' host memory, in parentheses; empty where it needs none."""
    if not needed_bytes:
        return ""
    unknown = "" if job.cluster.host_memory_bytes is not None else "; host_memory_gib is not given"
    return f" (which needs {needed_bytes / GIB:,.0f} GiB of host memory a node{unknown})"


def _no_change(closest: tuple[float, str] | None, advice: str) -> str:
    if closest is None:
        return advice
    over = f"is still {closest[0]:.1f} GiB per GPU too large" if closest[0] > 0 else "is still at risk"
    return f"no change is enough, alone or with others: {closest[1]} comes closest and {over}; {advice}"


def _more_memory(job: Job, *, headroom_fraction: float) -> str:
    """What is missing where no change of the strategy is enough."""
    # However they are sharded, the states of the whole model must fit into all GPUs together. The bound is worth stating
    # only where it already asks for more GPUs than there are.
    training = job.training
    each = BYTES_PER[training.param_dtype] + BYTES_PER[training.main_param_dtype] + BYTES_PER[training.grad_dtype]
    each += optimizer_state_bytes(training, memory_traits(training))
    each += BYTES_PER[training.param_dtype] * (training.ema is not None and training.ema.device == "gpu")
    count = trained_parameters(job.model, training)
    states = count.trainable * each
    if count.trainable < count.total:
        states += (count.total - count.trainable) * min(stored_base(job).weight, base_bytes(job))
    capacity = job.cluster.capacity_bytes * (1.0 - headroom_fraction)
    needed = int(np.ceil(states / capacity))
    if needed <= job.cluster.num_gpus:
        return "use more GPUs, or GPUs with more memory"
    held = f"parameters, gradients and optimizer state ({states / GIB:,.0f} GiB)"
    return f"use more GPUs, or GPUs with more memory: {held} alone need {needed:,} of this kind"
