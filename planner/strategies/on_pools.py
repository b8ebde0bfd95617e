"""Strategies on pools as users write them, checked against what the pools can hold.

Every stage lies entirely in one pool, the stages of a pool are consecutive, and all stages have the same data-parallel width:
unequal shares of the batch are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from cost_models.hints import choice_hint
from cost_models.job import PooledJob
from cost_models.strategies.layouts import build_layouts
from cost_models.strategies.strategy import Bools, Strategies, concatenated
from planner.rules import Violations, reasons, violations
from planner.schemas.strategy import StrategyInput
from planner.strategies.parse import Reason, ResolvedStrategies, resolve_strategies

SAME_WIDTH = (
    "replicas of a stage on different kinds of GPU would need unequal shares of the batch, which no framework here can be told "
    "to use and which is not modelled"
)


def resolve_on_pools(jobs: Sequence[PooledJob], inputs: Sequence[StrategyInput]) -> ResolvedStrategies:
    """The batch of all inputs that can be built, every stage a slot of its layout.

    Args:
        jobs: the job of each input; these differ at most in their global batch.
        inputs: the strategies as they were given.
    """
    if not jobs[0].cluster.lists_pools:
        only = [job.jobs[0] for job in jobs]
        return resolve_strategies(only[0], inputs, all_stages=True, jobs=only)
    found = [_resolve_one(job, given) for job, given in zip(jobs, inputs, strict=True)]
    rows = [row for row, _, _ in found if row is not None]
    return ResolvedStrategies(
        strategies=together(jobs[0], rows) if rows else None,
        index=np.array([position for position, (row, _, _) in enumerate(found) if row is not None], np.int64),
        assumed=tuple(assumed for _, assumed, _ in found),
        problems=tuple(problems for _, _, problems in found),
    )


def _resolve_one(pooled: PooledJob, given: StrategyInput) -> tuple[Strategies | None, dict[str, Any], list[Reason]]:
    """The strategy with its defaults, a batch of one (None where it cannot be built), these defaults, and what is wrong."""
    assumed: dict[str, Any] = {}
    pp, each = given.pp or 1, (given.tp or 1) * (given.cp or 1)
    pools = given.pool_per_stage
    problems = pool_problems(pooled, pools, pp=pp) if pools is not None else []
    if problems:
        return None, assumed, problems
    dp = given.dp
    if pools is not None and dp is None:
        dp = min(_gpus(pooled, name) // (pools.count(name) * each) for name in dict.fromkeys(pools))
        assumed["dp"] = max(dp, 1)
    if pools is None:
        if dp is None:
            message = "pool_per_stage is required unless dp is given"
            hint = f"Name the pool of each of the pp {pp} stages: {', '.join(pooled.names)}."
            return None, assumed, [_reason("missing-field", message, hint)]
        pools = assumed["pool_per_stage"] = _in_order(pooled, pp=pp, stage_gpus=each * dp)
    problems = too_large(pooled, pools, pp=pp, stage_gpus=each * max(dp or 1, 1))
    if problems:
        return None, assumed, problems
    assert pools is not None
    if given.mtp_stage is not None:
        message = "mtp_stage is not modelled on a cluster that lists pools"
        return None, assumed, [_reason("split-unsupported", message, "Leave mtp_stage out.")]
    plain = given.model_copy(update={"pool_per_stage": None, "dp": max(dp or 1, 1)})
    resolved = resolve_strategies(pooled.whole[pooled.names.index(pools[0])], [plain], all_stages=True)
    assumed = {**resolved.assumed[0], **{name: value for name, value in assumed.items() if value is not None}}
    if resolved.strategies is None:
        return None, assumed, list(resolved.problems[0])
    layout = replace(resolved.strategies.layouts.table[0], pool_per_stage=tuple(pools))
    layouts = build_layouts([layout], model=pooled.jobs[0].model, all_stages=True)
    return replace(resolved.strategies, layouts=layouts), assumed, []


def together(pooled: PooledJob, rows: Sequence[Strategies]) -> Strategies:
    """Several batches of one as one batch, over a table of layouts that keeps every stage."""
    table = [row.layouts.table[int(row.layout[0])] for row in rows]
    layouts = build_layouts(table, model=pooled.jobs[0].model, all_stages=True)
    return concatenated([replace(row, layouts=layouts, layout=np.array([n])) for n, row in enumerate(rows)])


@dataclass(frozen=True, eq=False)
class PooledViolations:
    """The rules that N strategies break on the pools that they use."""

    pooled: PooledJob
    strategies: Strategies
    by_pool: tuple[Violations, ...]

    @property
    def legal(self) -> Bools:
        """Which strategies break no rule, shape (N,)."""
        legal_PN = np.stack([broken.legal for broken in self.by_pool])
        if not self.pooled.cluster.lists_pools:
            return np.asarray(legal_PN[0])
        each = [all(legal_PN[pool, n] for pool in self._pools(n)) for n in range(len(self.strategies))]
        return np.array(each, np.bool_)

    def reasons(self, index: int) -> list[Reason]:
        """Why the framework refuses strategy `index` on any of its pools, each reason once."""
        found: dict[str, Reason] = {}
        for pool in self._pools(index):
            job, broken = self.pooled.whole[pool], self.by_pool[pool]
            if not broken.legal[index]:
                found |= {reason["message"]: reason for reason in reasons(job, self.strategies, index, found=broken)}
        return list(found.values())

    def _pools(self, index: int) -> list[int]:
        names = self.strategies.layouts.table[int(self.strategies.layout[index])].pool_per_stage
        return [0] if names is None else [self.pooled.names.index(name) for name in dict.fromkeys(names)]


def violations_on_pools(pooled: PooledJob, strategies: Strategies) -> PooledViolations:
    """Every rule on every pool. For a strategy only the pools on which its stages lie count."""
    # Rules may look at the GPU and at the NVLink domain, so one strategy can be legal on one pool and illegal on another.
    return PooledViolations(pooled, strategies, tuple(violations(job, strategies) for job in pooled.whole))


def pool_problems(pooled: PooledJob, pools: Sequence[str], *, pp: int | None) -> list[Reason]:
    """What is wrong with a list of pools by itself; `pp` is given where it is known."""
    if pp is not None and len(pools) != pp:
        message = f"pool_per_stage lists {len(pools)} stages, but pp is {pp}"
        return [_reason("pool-per-stage-mismatch", message, "Name one pool for each pipeline stage.")]
    unknown = [name for name in dict.fromkeys(pools) if name not in pooled.names]
    if unknown:
        hint = choice_hint(unknown[0], pooled.names)
        return [_reason("pool-unknown", f"pool_per_stage names {unknown[0]!r}, but no pool has that name", hint)]
    runs = [name for name, _ in groupby(pools)]
    if len(runs) > len(set(runs)):
        name = next(name for name in runs if runs.count(name) > 1)
        message = f"the stages on pool {name!r} are not consecutive"
        hint = "Put all stages of a pool next to each other, since ranks are numbered node by node along the pipeline."
        return [_reason("pool-per-stage-mismatch", message, hint)]
    return []


def too_large(pooled: PooledJob, pools: Sequence[str] | None, *, pp: int, stage_gpus: int) -> list[Reason]:
    """Reasons for pools that have fewer GPUs than their stages need; `pools` is None where there is no placement at all."""
    largest = max(pool.cluster.num_gpus for pool in pooled.cluster.pools)
    if stage_gpus > largest:
        message = f"a stage of tp x cp x dp = {stage_gpus} GPUs needs more than any pool has ({largest}): {SAME_WIDTH}"
        return [_reason("unequal-data-parallel-shares", message, "Lower dp, tp or cp, and raise pp.")]
    if pools is None:
        message = f"the pools have no room for {pp} stages of {stage_gpus} GPUs: " + ", ".join(
            f"pool {pool.name!r} holds {pool.cluster.num_gpus // stage_gpus}" for pool in pooled.cluster.pools
        )
        return [_reason("pool-exceeded", message, "Lower pp, tp, cp or dp.")]
    return [
        _reason(
            "pool-exceeded",
            f"{pools.count(name)} stages of tp x cp x dp = {stage_gpus} GPUs need {pools.count(name) * stage_gpus}, "
            f"but pool {name!r} has {_gpus(pooled, name)}",
            "Lower tp, cp or dp, or put fewer stages on this pool.",
        )
        for name in dict.fromkeys(pools)
        if pools.count(name) * stage_gpus > _gpus(pooled, name)
    ]


def _in_order(pooled: PooledJob, *, pp: int, stage_gpus: int) -> tuple[str, ...] | None:
    """Stages laid on the pools in the order in which these are listed, on each as many as it holds; None if there is no room."""
    found: list[str] = []
    for pool in pooled.cluster.pools:
        found += [pool.name] * min(pool.cluster.num_gpus // stage_gpus, pp - len(found))
    return tuple(found) if len(found) == pp else None


def _gpus(pooled: PooledJob, name: str) -> int:
    return pooled.cluster.pools[pooled.names.index(name)].cluster.num_gpus


def _reason(code: str, message: str, hint: str) -> Reason:
    return {"code": code, "message": message, "hint": hint}
