"""Why no degrees find room on the pools: which degrees, limits or properties of the batch contradict each other."""

from __future__ import annotations

from typing import Any

from cost_models.job import PooledJob
from planner.answer.evaluation import Reason
from planner.answer.explain import contradiction, first_values
from planner.pools.placements import NodeLimits
from planner.pools.space_on_pools import SpaceOnPools
from planner.rules.expressible import splits_freely
from planner.schemas.plan_request import Constraints
from planner.search.found import Found
from planner.strategies.on_pools import SAME_WIDTH

_EVEN = frozenset({"layers-not-divisible"})
"""Rules that do not matter to a split by speed, which need not be even."""


def no_room_on_pools(searched: SpaceOnPools, found: Found) -> dict[str, Any]:
    """The contract's `nearest_infeasible` where no degrees suit the batch, the constraints and the pools at once."""
    pooled, constraints, num_gpus = searched.pooled, searched.constraints, searched.pooled.cluster.num_gpus
    if not len(searched.space.degrees):
        return contradiction(
            pooled.whole[0],
            constraints,
            num_gpus=num_gpus,
            apart=_EVEN if splits_freely(pooled.jobs[0]) and not searched.listed_alone else frozenset(),
            otherwise=_no_room(pooled, constraints, searched.limits),
        )
    wide = found.rejected["unequal-data-parallel-shares"] > 0
    reason = _too_wide(pooled) if wide else _no_room(pooled, constraints, searched.limits)
    strategy = first_values(constraints, num_gpus=num_gpus)
    return {"strategy": strategy, "reasons": [reason], "smallest_change": reason["hint"]}


def _too_wide(pooled: PooledJob) -> Reason:
    largest = max(pool.cluster.num_gpus for pool in pooled.cluster.pools)
    return {
        "code": "unequal-data-parallel-shares",
        "message": f"a stage of tp x cp x dp GPUs would need more than any pool has ({largest}): {SAME_WIDTH}",
        "hint": "Lower tp, cp or dp, or raise pp.",
    }


def _no_room(pooled: PooledJob, constraints: Constraints, limits: NodeLimits) -> Reason:
    counts = f"{limits.least} to {limits.most}" if limits.least < limits.most else f"{limits.most}"
    pools = ", ".join(
        f"{pool.name} ({pool.cluster.num_nodes} x {pool.cluster.gpus_per_node})" for pool in pooled.cluster.pools
    )
    named = constraints.fixed.pool_per_stage
    stages = ", ".join(f"{named.count(name)} on {name}" for name in dict.fromkeys(named)) if named else ""
    placed = f" with {stages}" if named else ""
    degrees = " and ".join(
        f"{name} {value}"
        for name in ("tp", "pp", "cp", "dp")
        if (value := getattr(constraints.fixed, name)) is not None and not (named and name == "pp")
    )
    given = f" with {degrees}" if degrees else ""
    return {
        "code": "gpus-not-divisible",
        "message": f"no product tp x cp x dp{given} makes stages of equal width{placed} that fill {counts} whole nodes of {pools}",
        "hint": "Choose degrees whose stages fill whole nodes of a pool, a batch with more divisors, or another num_nodes.",
    }
