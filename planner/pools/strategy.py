"""Strategies on pools as users write them: which pool each stage lies on, checked against what the pools hold.

Every stage lies whole in one pool, the stages of a pool are consecutive, and all stages have the same data-parallel width:
unequal shares of the batch are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from cost_models.job import PooledJob
from cost_models.specs.fields import choice_hint
from cost_models.strategies.layouts import build_layouts
from cost_models.strategies.strategy import Strategies
from planner.answer.evaluation import Reason
from planner.rules import reasons, violations
from planner.schemas.strategy import StrategyInput
from planner.strategies.parse import resolve_strategies

SAME_WIDTH = (
    "replicas of a stage on different kinds of GPU would need unequal shares of the batch, which no framework here can be "
    "told and which is not modelled"
)


@dataclass(frozen=True, eq=False)
class ResolvedOnPools:
    """What became of one strategy input."""

    row: Strategies | None
    """A batch of one whose layout holds every stage; None where it cannot be built or run."""
    assumed: dict[str, Any]
    problems: list[Reason]


def resolve_on_pools(pooled: PooledJob, given: StrategyInput) -> ResolvedOnPools:
    """The strategy with its defaults, or why no framework could run it on these pools."""
    assumed: dict[str, Any] = {}
    pp, each = given.pp or 1, (given.tp or 1) * (given.cp or 1)
    pools = given.pool_per_stage
    problems = pool_problems(pooled, pools, pp=pp) if pools is not None else []
    if problems:
        return ResolvedOnPools(None, assumed, problems)
    dp = given.dp
    if pools is not None and dp is None:
        dp = min(_gpus(pooled, name) // (pools.count(name) * each) for name in dict.fromkeys(pools))
        assumed["dp"] = max(dp, 1)
    if pools is None:
        if dp is None:
            message = "pool_per_stage is required where dp is not given"
            hint = f"Name the pool of each of the pp {pp} stages: {', '.join(pooled.names)}."
            return ResolvedOnPools(None, assumed, [_reason("missing-field", message, hint)])
        pools = assumed["pool_per_stage"] = _in_order(pooled, pp=pp, stage_gpus=each * dp)
    problems = too_large(pooled, pools, pp=pp, stage_gpus=each * max(dp or 1, 1))
    if problems:
        return ResolvedOnPools(None, assumed, problems)
    assert pools is not None
    plain = given.model_copy(update={"pool_per_stage": None, "dp": max(dp or 1, 1)})
    used = [pooled.names.index(name) for name in dict.fromkeys(pools)]
    resolved = resolve_strategies(pooled.whole[used[0]], [plain], all_stages=True)
    assumed = {**resolved.assumed[0], **{name: value for name, value in assumed.items() if value is not None}}
    if resolved.strategies is None:
        return ResolvedOnPools(None, assumed, list(resolved.problems[0]))
    row = on_pools(pooled, resolved.strategies, pools)
    problems = broken_rules(pooled, row, used)
    return ResolvedOnPools(None if problems else row, assumed, problems)


def on_pools(pooled: PooledJob, row: Strategies, pools: Sequence[str]) -> Strategies:
    """One strategy with the pool of every stage in its layout, every stage a slot."""
    layout = replace(row.layouts.table[int(row.layout[0])], pool_per_stage=tuple(pools))
    layouts = build_layouts([layout], model=pooled.jobs[0].model, all_stages=True)
    return replace(row, layout=np.zeros(1, np.int64), layouts=layouts)


def broken_rules(pooled: PooledJob, row: Strategies, used: Sequence[int]) -> list[Reason]:
    """What the framework refuses on any of these pools, each reason once."""
    found: dict[str, Reason] = {}
    for pool in used:
        job = pooled.whole[pool]
        broken = violations(job, row)
        if not broken.legal[0]:
            found |= {reason["message"]: reason for reason in reasons(job, row, 0, found=broken)}
    return list(found.values())


def pool_problems(pooled: PooledJob, pools: Sequence[str], *, pp: int | None) -> list[Reason]:
    """What is wrong with a list of pools, whatever the other degrees; `pp` where it is known."""
    if pp is not None and len(pools) != pp:
        message = f"pool_per_stage lists {len(pools)} stages, but pp is {pp}"
        return [_reason("pool-per-stage-mismatch", message, "Name one pool for each pipeline stage.")]
    unknown = [name for name in dict.fromkeys(pools) if name not in pooled.names]
    if unknown:
        hint = choice_hint(unknown[0], pooled.names)
        return [_reason("pool-unknown", f"pool_per_stage names {unknown[0]!r}, which no pool is called", hint)]
    runs = [name for name, _ in groupby(pools)]
    if len(runs) > len(set(runs)):
        name = next(name for name in runs if runs.count(name) > 1)
        message = f"the stages on pool {name!r} are not consecutive"
        hint = "Put all stages of a pool next to each other: ranks are numbered node by node along the pipeline."
        return [_reason("pool-per-stage-mismatch", message, hint)]
    return []


def too_large(pooled: PooledJob, pools: Sequence[str] | None, *, pp: int, stage_gpus: int) -> list[Reason]:
    """Pools with fewer GPUs than their stages need; None stands for no placement at all."""
    largest = max(pool.cluster.num_gpus for pool in pooled.cluster.pools)
    if stage_gpus > largest:
        message = f"a stage of tp x cp x dp = {stage_gpus} GPUs is more than any pool has ({largest}): {SAME_WIDTH}"
        return [_reason("unequal-data-parallel-shares", message, "Lower dp, tp or cp, and raise pp.")]
    if pools is None:
        message = f"pp {pp} stages of {stage_gpus} GPUs do not find room: " + ", ".join(
            f"pool {pool.name!r} holds {pool.cluster.num_gpus // stage_gpus}" for pool in pooled.cluster.pools
        )
        return [_reason("pool-exceeded", message, "Lower a degree.")]
    return [
        _reason(
            "pool-exceeded",
            f"{pools.count(name)} stages of tp x cp x dp = {stage_gpus} GPUs need {pools.count(name) * stage_gpus}, "
            f"but pool {name!r} has {_gpus(pooled, name)}",
            "Lower a degree, or put fewer stages on it.",
        )
        for name in dict.fromkeys(pools)
        if pools.count(name) * stage_gpus > _gpus(pooled, name)
    ]


def _in_order(pooled: PooledJob, *, pp: int, stage_gpus: int) -> tuple[str, ...] | None:
    """Stages laid on the pools in the order they are listed, as many on each as it holds."""
    found: list[str] = []
    for pool in pooled.cluster.pools:
        found += [pool.name] * min(pool.cluster.num_gpus // stage_gpus, pp - len(found))
    return tuple(found) if len(found) == pp else None


def _gpus(pooled: PooledJob, name: str) -> int:
    return pooled.cluster.pools[pooled.names.index(name)].cluster.num_gpus


def _reason(code: str, message: str, hint: str) -> Reason:
    return {"code": code, "message": message, "hint": hint}
