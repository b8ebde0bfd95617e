"""One whole search for a request whose cluster lists pools, and its result in the terms of any other search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cost_models.job import PooledJob
from planner.pools.found import PoolsFound
from planner.pools.placements import NodeLimits, node_limits, possible_worlds
from planner.pools.search import PoolSearch
from planner.request.checked_request import CheckedRequest
from planner.rules.expressible import splits_freely
from planner.schemas.plan_request import Constraints, PlanRequest
from planner.search.found import Found
from planner.search.objective import Goal
from planner.search.progress import Progress
from planner.splits.gaps import left_open
from planner.strategies.axes import build_space, searched_values
from planner.strategies.on_pools import together
from planner.strategies.parts import Parts
from planner.strategies.space import Space


@dataclass(frozen=True, eq=False)
class SpaceOnPools:
    """Everything that is searched on the pools of a request."""

    pooled: PooledJob
    asked: PlanRequest
    constraints: Constraints
    limits: NodeLimits
    space: Space
    listed_alone: bool
    """Whether the request gives the splits of the layers; otherwise all splits are searched."""
    one_chunk: bool
    """Whether virtual stages are left out, because chunks with several kinds of layer would have to be told apart."""

    def search(
        self,
        goal: Goal,
        *,
        asked: PlanRequest,
        on_progress: Callable[[Progress], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Found:
        """The k best strategies on the pools, and how sure that is."""
        searcher = PoolSearch(
            self.pooled,
            self.space,
            goal=goal,
            limits=self.limits,
            top_k=asked.top_k,
            headroom_fraction=self.constraints.memory_headroom_fraction,
            pools=self.constraints.fixed.pool_per_stage,
            listed_alone=self.listed_alone,
            time_limit_s=asked.time_limit_s,
            on_progress=on_progress,
            should_stop=should_stop,
        )
        return self._as_found(searcher.run())

    def values(self, _found: Found) -> dict[str, Any]:
        """The values that were searched, by field, for the report."""
        values = searched_values(self.space)
        if splits_freely(self.pooled.jobs[0]) and not self.listed_alone:
            values["layers_per_stage"] = [*values["layers_per_stage"], "the best of all"]
        fixed = self.constraints.fixed.pool_per_stage
        everywhere = "stages of whole nodes on every pool, in every order of the pools"
        return values | {"pool_per_stage": [list(fixed)] if fixed else [everywhere]}

    def _as_found(self, found: PoolsFound) -> Found:
        # A split that the framework cannot be told is worth mentioning only where it beats all that it can.
        best, other = found.best, found.inexpressible
        if other is not None and best and best[0].value <= other.value:
            other = None
        return Found(
            best=together(self.pooled, [plan.row for plan in best]) if best else None,
            rejected=found.rejected,
            total=found.total,
            bounded=found.bounded,
            evaluated=found.evaluated,
            feasible=found.feasible,
            unsearched=found.unsearched,
            nearest=None if best else found.nearest,
            optimal=found.optimal,
            lower_bound_s=found.lower_bound_s,
            elapsed_s=found.elapsed_s,
            stopped=found.stopped,
            methods=["exhaustive", "thresholds"] + ["cp-sat"] * bool(found.solved),
            inexpressible=None if other is None else other.row,
            families=found.families,
            warnings=self._warnings(found),
            best_step_s=np.array([plan.step_s for plan in best]),
            inexpressible_step_s=None if other is None else other.step_s,
            unplaced=found.unplaced,
        )

    def _warnings(self, found: PoolsFound) -> list[str]:
        warnings = ["pools-no-interleaving"] * self.one_chunk
        if found.stopped is None:  # what a stop means is said by a warning of its own
            sure = found.left.sure([plan.value for plan in found.best])
            warnings += [left_open(sure)] * bool(np.isfinite(found.left.value) and sure < self.asked.top_k)
        if any(len(set(plan.layout.pool_per_stage or ())) > 1 for plan in found.best):
            warnings.append("pools-in-order")
        if self.asked.objective == "cost" and any(job.cluster.price_per_gpu_hour is None for job in self.pooled.jobs):
            warnings.append("pools-cost-alike")
        if self.asked.constraints.allow_at_risk:
            warnings.append("pools-no-at-risk")
        return warnings + [f"The best split is not proved to be the best: {failure}" for failure in found.failures]


def space_on_pools(checked: CheckedRequest, *, without: Parts = frozenset()) -> SpaceOnPools:
    """The space to search for a request whose cluster lists pools; `without` as of `build_space`."""
    asked, pooled = checked.asked, checked.job
    fixed, allowed = asked.constraints.fixed, asked.constraints.allowed
    listed_alone = bool(fixed.layers_per_stage or allowed.layers_per_stage)
    one_chunk = len(pooled.jobs[0].model.distinct_kinds) > 1 and not listed_alone and fixed.vpp is None
    constraints, limits = asked.constraints, node_limits(pooled, asked.constraints)
    # A list of pools has one entry per stage, so it fixes the number of stages.
    if fixed.pool_per_stage is not None and fixed.pp is None and allowed.pp is None:
        with_pp = fixed.model_copy(update={"pp": len(fixed.pool_per_stage)})
        constraints = constraints.model_copy(update={"fixed": with_pp})
    if one_chunk:
        constraints = constraints.model_copy(update={"allowed": allowed.model_copy(update={"vpp": (1,)})})
    space = build_space(pooled.whole[0], constraints, worlds=possible_worlds(pooled, limits), without=without)
    return SpaceOnPools(pooled, asked, constraints, limits, space, listed_alone, one_chunk)
