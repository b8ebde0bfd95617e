"""Why a strategy does not fit, and the smallest change that would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from cost_models.evaluate import Verdict, evaluate, memory_verdict
from cost_models.job import Job
from cost_models.memory import stage_memory
from cost_models.memory.states import optimizer_state_bytes
from cost_models.memory.traits import memory_traits
from cost_models.parameters import count_parameters
from cost_models.specs.training import BYTES_PER
from cost_models.strategy import Strategies
from cost_models.units import GIB
from planner.evaluation_dict import Reason, memory_reasons
from planner.rules import violations
from planner.rules.rule import divisors
from planner.schemas.plan_request import AllowedValues, Constraints
from planner.schemas.strategy import StrategyInput
from planner.strategy_input import resolve_strategies, strategy_dict

SHOWN = 3
"""Nearest infeasible plans returned."""
Change = tuple[str, dict[str, Any]]


def nearest_infeasible(job: Job, nearest: Strategies, *, headroom_fraction: float) -> list[dict[str, Any]]:
    """The contract's `nearest_infeasible`: the candidates with the least excess, one per split of the GPUs."""
    shown = _different_splits(nearest)
    evaluated = evaluate(job, shown, headroom_fraction=headroom_fraction)
    strategies = [strategy_dict(shown, index) for index in range(len(shown))]
    changes = smallest_changes(job, strategies, headroom_fraction=headroom_fraction)
    return [
        {"strategy": strategy, "reasons": memory_reasons(evaluated, index, job=job), "smallest_change": change}
        for index, (strategy, change) in enumerate(zip(strategies, changes, strict=True))
    ]


def contradiction(
    job: Job,
    constraints: Constraints,
    *,
    num_gpus: int | None = None,
    apart: frozenset[str] = frozenset(),
    otherwise: Reason | None = None,
) -> dict[str, Any]:
    """Why no combination of degrees is left at all: the strategy of the first values given, and what is wrong with it.

    Args:
        job: the job.
        constraints: those of the request.
        num_gpus: GPUs there are; the cluster's own by default.
        apart: codes of rules that do not count.
        otherwise: the reason where that strategy breaks no rule; that no degrees are whole nodes by default.
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
    """A strategy of what the constraints fix and the first of what they list, else the smallest degrees."""
    given = _given(constraints)
    strategy = {"tp": 1, "pp": 1, "cp": 1, "micro_batch_size": 1, **given}
    if strategy["tp"] * strategy["pp"] * strategy["cp"] <= num_gpus:
        strategy = {"dp": 1, **strategy}
    return strategy


def _given(constraints: Constraints) -> dict[str, Any]:
    apart = ("overlap", "offload", "pool_per_stage")
    given = constraints.fixed.model_dump(mode="json", exclude=set(apart), exclude_none=True)
    for name in AllowedValues.model_fields:
        values = getattr(constraints.allowed, name)
        if values is not None and name not in apart:
            given[name] = values[0]
    return given


def _more_than_all(strategy: dict[str, Any], num_gpus: int) -> list[Reason]:
    """That the degrees multiply to more GPUs than there are."""
    names = [name for name in ("tp", "pp", "cp", "dp") if name in strategy]
    world = prod(strategy[name] for name in names)
    if world <= num_gpus:
        return []
    product = " x ".join(f"{name} {strategy[name]}" for name in names)
    message = f"{product} = {world} exceeds the {num_gpus} GPUs of the cluster"
    return [{"code": "world-exceeds-gpus", "message": message, "hint": "Lower a degree."}]


def _not_whole_nodes(job: Job, constraints: Constraints) -> Reason:
    given = _given(constraints)
    nodes, size = job.cluster.num_nodes, job.cluster.gpus_per_node
    most = min(constraints.num_nodes.max or nodes, nodes)
    least = (constraints.num_nodes.min or 1) if constraints.allow_idle_gpus else most
    counts = f"{least} to {most}" if least < most else f"{most}"
    degrees = ", ".join(f"{name} {given[name]}" for name in ("tp", "pp", "cp", "dp") if name in given)
    return {
        "code": "gpus-not-divisible",
        "message": f"no tp x pp x cp x dp{f' with {degrees}' if degrees else ''} is {counts} whole nodes of {size} GPUs",
        "hint": "Choose degrees whose product is whole nodes, a batch with more divisors, or another num_nodes.",
    }


def _different_splits(nearest: Strategies) -> Strategies:
    """The first few candidates that differ in a degree."""
    degrees = np.stack([getattr(nearest, name) for name in ("tp", "pp", "cp", "dp", "ep")], axis=1)
    _, first = np.unique(degrees, axis=0, return_index=True)
    return nearest.take(np.sort(first)[:SHOWN])


def smallest_changes(job: Job, strategies: list[dict[str, Any]], *, headroom_fraction: float) -> list[str]:
    """For each strategy the first single change, mildest first, that makes it legal and fitting; else what is missing."""
    changes = [(index, *change) for index, strategy in enumerate(strategies) for change in _changes(job, strategy)]
    resolved = resolve_strategies(job, [StrategyInput.model_validate(changed) for _, _, changed in changes])
    fitting: dict[int, str] = {}
    closest: dict[int, tuple[float, str]] = {}
    if resolved.strategies is not None:
        legal = violations(job, resolved.strategies).legal
        memory = stage_memory(job, resolved.strategies)
        verdict, _ = memory_verdict(job, memory, headroom_fraction=headroom_fraction)
        excess = (memory.device - job.cluster.capacity_bytes * (1.0 - headroom_fraction)) / GIB
        for row, position in enumerate(resolved.index):
            index, name, _ = changes[int(position)]
            if legal[row] and verdict[row] == Verdict.FITS:
                fitting.setdefault(index, name)
            if legal[row]:
                closest[index] = min(closest.get(index, (np.inf, "")), (float(excess[row]), name))
    advice = _more_memory(job, headroom_fraction=headroom_fraction)
    return [fitting.get(index) or _no_change(closest.get(index), advice) for index in range(len(strategies))]


def _no_change(closest: tuple[float, str] | None, advice: str) -> str:
    if closest is None:
        return advice
    over = f"still over by {closest[0]:.1f} GiB a GPU" if closest[0] > 0 else "still at risk"
    return f"no single change is enough: {closest[1]} comes closest, {over}; {advice}"


def _more_memory(job: Job, *, headroom_fraction: float) -> str:
    """What is missing when no change of the strategy helps: a bound from the model's states where it says anything."""
    training = job.training
    each = BYTES_PER[training.param_dtype] + BYTES_PER[training.main_param_dtype] + BYTES_PER[training.grad_dtype]
    each += optimizer_state_bytes(training, memory_traits(training))
    states = count_parameters(job.model).total * each
    capacity = job.cluster.capacity_bytes * (1.0 - headroom_fraction)
    needed = int(np.ceil(states / capacity))
    if needed <= job.cluster.num_gpus:
        return "use more GPUs, GPUs with more memory, or offload optimizer state (offload.optimizer_fraction)"
    held = f"parameters, gradients and optimizer state ({states / GIB:,.0f} GiB)"
    return f"use more GPUs, or GPUs with more memory: {held} alone need {needed:,} of these"


def _changes(job: Job, strategy: dict[str, Any]) -> Iterator[Change]:
    """Single changes of a strategy, mildest first."""
    yield from _smaller_micro_batches(strategy)
    if strategy["tp"] > 1 and not strategy["sequence_parallel"]:
        yield "sequence_parallel true", {**strategy, "sequence_parallel": True}
    for stage in job.runtime.supports_zero:
        if stage > strategy["zero"]:
            yield f"zero {stage}", {**_without(strategy, "grad_sync"), "zero": stage}
    for mode in ("selective", "full"):
        if mode != strategy["recompute"] and strategy["recompute"] != "full":
            plain = _without(strategy, "recompute_method", "recompute_num_layers", "recompute_modules")
            yield f"recompute {mode}", {**plain, "recompute": mode}
    if strategy["recompute_method"] == "block":
        plain = _without(strategy, "recompute_method", "recompute_num_layers")
        yield "recompute full, every layer", {**plain, "recompute": "full"}
    if strategy["vpp"] > 1:
        yield "vpp 1", {**_without(strategy, "layers_per_stage", "schedule"), "vpp": 1}
    for name in ("pp", "tp", "cp"):
        yield from _larger_degree(strategy, name)


def _smaller_micro_batches(strategy: dict[str, Any]) -> Iterator[Change]:
    for size in sorted(divisors(strategy["micro_batch_size"]), reverse=True)[1:]:
        yield f"micro_batch_size {size}", {**strategy, "micro_batch_size": size}


def _larger_degree(strategy: dict[str, Any], name: str) -> Iterator[Change]:
    """The next multiples of a degree, taken from the data-parallel ranks."""
    for factor in divisors(strategy["dp"])[1:4]:
        degree, replicas = strategy[name] * factor, strategy["dp"] // factor
        plain = _without(strategy, "layers_per_stage", "zero_shard_size", "zero_param_shard_size", "schedule")
        changed = {**plain, name: degree, "dp": replicas, "vpp": 1}
        yield f"{name} {degree} (dp {replicas})", {**changed, "sequence_parallel": changed["tp"] > 1}


def _without(strategy: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in strategy.items() if key not in names}
