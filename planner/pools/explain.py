"""Why no plan on pools is left: the strategy that comes closest, or which degrees, batch or limits contradict each other.

Where rules alone ruled out every strategy, those that break the fewest; where targets did, the fastest plan that fits.
"""

from __future__ import annotations

from typing import Any

from cost_models.job import PooledJob
from planner.answer.closest import closest_illegal, reachable, target_reason
from planner.answer.evaluation import Reason
from planner.answer.explain import contradiction, first_values
from planner.pools.evaluation import pooled_evaluation
from planner.pools.found import PoolsFound
from planner.pools.placements import NodeLimits
from planner.pools.strategy import SAME_WIDTH
from planner.rules import rule_codes
from planner.schemas.plan_request import Constraints
from planner.search.expressible import splits_freely
from planner.strategies.parse import strategy_dict
from planner.strategies.space import Space

Document = dict[str, Any]
_EVEN = frozenset({"layers-not-divisible"})
"""What a split by speed need not care for."""
_MORE_MEMORY = "recompute more, or use more nodes or GPUs with more memory in the pool that is over"


def nearest_on_pools(
    pooled: PooledJob, found: PoolsFound, constraints: Constraints, limits: NodeLimits, *, space: Space
) -> list[Document]:
    """The contract's `nearest_infeasible` of a search that found no plan.

    Args:
        pooled: the pools.
        found: what the search found.
        constraints: those of the request.
        limits: nodes that a plan may use.
        space: what was searched, its degrees those that agree with the batch, the GPUs and the constraints.
    """
    if found.nearest is not None:
        headroom = constraints.memory_headroom_fraction
        reasons = pooled_evaluation(pooled, found.nearest, headroom_fraction=headroom)["reasons"]
        return [{"strategy": strategy_dict(found.nearest, 0), "reasons": reasons, "smallest_change": _MORE_MEMORY}]
    if not len(space.degrees):
        given = constraints.fixed.layers_per_stage or constraints.allowed.layers_per_stage
        open_split = splits_freely(pooled.jobs[0]) and not given
        return [
            contradiction(
                pooled.whole[0],
                constraints,
                num_gpus=pooled.cluster.num_gpus,
                apart=_EVEN if open_split else frozenset(),
                otherwise=_no_room(pooled, constraints, limits),
            )
        ]
    if not found.unplaced:
        ruled_out = found.stopped is None and found.rejected.keys() & set(rule_codes())
        return closest_illegal(space) if ruled_out else []
    wide = found.rejected["unequal-data-parallel-shares"] > 0
    reason = _too_wide(pooled) if wide else _no_room(pooled, constraints, limits)
    strategy = first_values(constraints, num_gpus=pooled.cluster.num_gpus)
    return [{"strategy": strategy, "reasons": [reason], "smallest_change": reason["hint"]}]


def too_slow_on_pools(pooled: PooledJob, fastest: PoolsFound, *, wanted_s: float) -> list[Document]:
    """The contract's `nearest_infeasible` where targets leave nothing: the fastest plan that fits, if any does."""
    if not fastest.best:
        return []
    plan, training = fastest.best[0], pooled.jobs[0].training
    tokens = float(training.seq_length) * training.global_batch_size
    reason = target_reason(plan.step_s, wanted_s=wanted_s, tokens=tokens)
    return [
        {"strategy": strategy_dict(plan.row, 0), "reasons": [reason], "smallest_change": reachable(plan.step_s, tokens)}
    ]


def _too_wide(pooled: PooledJob) -> Reason:
    largest = max(pool.cluster.num_gpus for pool in pooled.cluster.pools)
    return {
        "code": "unequal-data-parallel-shares",
        "message": f"a stage of tp x cp x dp GPUs would be more than any pool has ({largest}): {SAME_WIDTH}",
        "hint": "Lower tp, cp or dp, or raise pp.",
    }


def _no_room(pooled: PooledJob, constraints: Constraints, limits: NodeLimits) -> Reason:
    counts = f"{limits.least} to {limits.most}" if limits.least < limits.most else f"{limits.most}"
    pools = ", ".join(
        f"{pool.name} ({pool.cluster.num_nodes} x {pool.cluster.gpus_per_node})" for pool in pooled.cluster.pools
    )
    named = constraints.fixed.pool_per_stage
    placed = "" if named is None else f" with {_stages_of(named)}"
    degrees = " and ".join(
        f"{name} {value}"
        for name in ("tp", "pp", "cp", "dp")
        if (value := getattr(constraints.fixed, name)) is not None and not (named and name == "pp")
    )
    given = f" with {degrees}" if degrees else ""
    return {
        "code": "gpus-not-divisible",
        "message": f"no tp x cp x dp{given} makes stages of equal width{placed} that fill {counts} whole nodes of {pools}",
        "hint": "Choose degrees whose stages are whole nodes of a pool, a batch with more divisors, or another num_nodes.",
    }


def _stages_of(pools: tuple[str, ...]) -> str:
    return ", ".join(f"{pools.count(name)} on {name}" for name in dict.fromkeys(pools))
