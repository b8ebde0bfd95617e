"""Every cost of a batch of strategies: named time terms that sum to the step time, memory per stage, ranges, verdict.

`step.total` sums the time, `step.ranges` makes its 80 % range; `memory.stage_memory` makes the peaks and their range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from cost_models.corrections.applied import corrected_range_s
from cost_models.job import Job
from cost_models.memory.stage_memory import StageMemory, stage_memory
from cost_models.step.exposure import exposure
from cost_models.step.host_range import host_range
from cost_models.step.ranges import step_time_range
from cost_models.step.total import step_time
from cost_models.strategies.strategy import Bools, Codes, Floats, Ints, Strategies

DEFAULT_HEADROOM_FRACTION = 0.03
"""Share of capacity that must stay free for a plan to count as fitting (contract)."""


class Verdict(IntEnum):
    """Whether a plan's memory fits, in rising order of trouble."""

    FITS = 0
    AT_RISK = 1
    OOM = 2

    @property
    def label(self) -> str:
        """Spelling of the verdict in the contract."""
        return ("fits", "at-risk", "oom")[self]


@dataclass(frozen=True, eq=False)
class PoolMemory:
    """Memory of the strategies that have stages on one pool, M of N."""

    rows: Ints
    """Which of the N they are, in rising order, shape (M,)."""
    memory: StageMemory
    """Slots of other pools' stages repeat one of this pool's."""
    verdict: Codes
    """Codes of `Verdict`, shape (M,)."""
    host_exceeded: Bools
    """Where offloaded state exceeds the node's memory or drives: an out-of-memory of its own."""


@dataclass(frozen=True, eq=False)
class PooledMemory:
    """Memory of N strategies, each pool judged by its own GPUs; arrays of shape (N,) unless a suffix says otherwise."""

    by_pool: Mapping[int, PoolMemory]
    """Pools that no strategy uses are left out."""
    pool_KN: Ints | None
    """Pool of every slot's stage, -1 in slots that repeat the last one; None where there is one pool."""
    verdict: Codes
    """The worst of the pools'."""
    tightest_pool: Ints
    """Pool with the least to spare, as a share of its GPU's capacity."""
    host_exceeded: Bools
    """Where any pool's host memory is exceeded."""

    @property
    def device_low(self) -> Floats:
        """Low end of the tightest pool's device memory, bytes."""
        low = np.zeros(len(self.verdict))
        for pool, its in self.by_pool.items():
            low[its.rows] = np.where(self.tightest_pool[its.rows] == pool, its.memory.device_low, low[its.rows])
        return low

    def pool_of(self, stage: int, index: int) -> int:
        """Pool that a stage of strategy `index` lies on."""
        return 0 if self.pool_KN is None else int(self.pool_KN[stage, index])

    def positions(self, index: int) -> dict[int, int]:
        """Where each pool that strategy `index` uses keeps it, by pool."""
        if self.pool_KN is None:
            return {0: index}
        at = {pool: int(np.searchsorted(its.rows, index)) for pool, its in self.by_pool.items()}
        return {
            p: row for p, row in at.items() if row < len(self.by_pool[p].rows) and self.by_pool[p].rows[row] == index
        }

    def lowered(self, device_low: Floats, *, at_risk: Bools) -> PooledMemory:
        """The same with other low ends of the tightest pools, and at risk, not out of memory, where the mask holds."""
        by_pool = {}
        for pool, its in self.by_pool.items():
            own = self.tightest_pool[its.rows] == pool
            memory = replace(its.memory, device_low=np.where(own, device_low[its.rows], its.memory.device_low))
            by_pool[pool] = replace(its, memory=memory, verdict=_at_most_at_risk(its.verdict, at_risk[its.rows]))
        return replace(self, by_pool=by_pool, verdict=_at_most_at_risk(self.verdict, at_risk))


def _at_most_at_risk(verdict: Codes, where: Bools) -> Codes:
    return np.where(where, np.minimum(verdict, Verdict.AT_RISK), verdict).astype(np.int8)


@dataclass(frozen=True, eq=False)
class Evaluated:
    """Costs of N strategies, arrays of shape (N,) unless a suffix says otherwise."""

    strategies: Strategies
    step_time_s: Floats
    step_time_low_s: Floats
    """Low end of the 80 % interval of the step time."""
    step_time_high_s: Floats
    terms_s: Mapping[str, Floats]
    """One entry per name of `terms.TIME_NAMES`; they sum to step_time_s."""
    tiers: Mapping[str, Codes]
    """`terms.Tier` of each time term."""
    pools: PooledMemory
    range_factor: Floats | None = None
    """What measured runs multiply half-widths of ranges by; None where there are no corrections. [T-6]"""

    @property
    def memory(self) -> StageMemory:
        """Memory on the only pool."""
        (only,) = self.pools.by_pool.values()
        return only.memory

    @property
    def verdict(self) -> Codes:
        """Codes of `Verdict`."""
        return self.pools.verdict

    @property
    def host_exceeded(self) -> Bools:
        """Where offloaded state exceeds a node's memory: an out-of-memory of its own."""
        return self.pools.host_exceeded


def evaluate(job: Job, strategies: Strategies, *, headroom_fraction: float = DEFAULT_HEADROOM_FRACTION) -> Evaluated:
    """Costs of N strategies on one kind of node. They must be legal: `planner.rules` decides that, and nothing is checked here.

    Args:
        job: model, cluster, training and prices.
        strategies: shape (N,).
        headroom_fraction: share of the GPU's capacity that must stay free.
    """
    # Memory comes first: a large batch then takes some 5 % less time than the other way round, by how arrays are allocated.
    pools = memory_on_one_pool(job, strategies, headroom_fraction=headroom_fraction)
    time = step_time(job, strategies)
    # Of corrected predictions the range is learnt, from that of the models.
    modelled = time.modelled
    low, high = step_time_range(
        job.calibration,
        modelled.terms_s,
        modelled.tiers,
        modelled.total_s,
        exposed=exposure(job, strategies),
        has_experts=job.model.moe is not None,
        host=host_range(job, strategies, modelled.terms_s),
    )
    factor = None
    if job.corrections:
        factor = job.corrections.range_factor(modelled.terms_s, modelled.total_s)
        low, high = corrected_range_s((low, high), modelled.total_s, time.total_s, factor)
    return Evaluated(
        strategies=strategies,
        step_time_s=time.total_s,
        step_time_low_s=low,
        step_time_high_s=high,
        terms_s=time.terms_s,
        tiers=time.tiers,
        pools=pools,
        range_factor=factor,
    )


def memory_on_one_pool(job: Job, strategies: Strategies, *, headroom_fraction: float) -> PooledMemory:
    """Memory and verdict of strategies on a cluster of one kind of node. [M]"""
    memory = stage_memory(job, strategies)
    verdict, host_exceeded = memory_verdict(job, memory, headroom_fraction=headroom_fraction)
    rows = np.arange(len(strategies))
    only = PoolMemory(rows, memory, verdict, host_exceeded)
    return PooledMemory({0: only}, None, verdict, np.zeros_like(rows), host_exceeded)


def memory_verdict(job: Job, memory: StageMemory, *, headroom_fraction: float) -> tuple[Codes, Bools]:
    """Verdict by the contract's rule, and whether host memory is what overflows; shape (N,) each.

    A plan `fits` when the high end of its memory's interval is within the limit, and is `oom` when the low end is above capacity.
    """
    capacity = job.cluster.capacity_bytes
    limit = capacity * (1.0 - headroom_fraction)
    host = job.cluster.host_memory_bytes
    host_exceeded = np.zeros(len(memory.device), np.bool_) if host is None else memory.host_bytes_per_node > host
    drives = job.cluster.nvme
    if drives is not None and drives.capacity_bytes is not None:
        host_exceeded = host_exceeded | (memory.nvme_bytes_per_node > drives.capacity_bytes)
    # The headroom applies to fitting only: a plan that would just fill the card is a risk, not a certain
    # out-of-memory.
    over = (memory.device_low > capacity) | host_exceeded
    verdict = np.where(over, Verdict.OOM, np.where(memory.device_high <= limit, Verdict.FITS, Verdict.AT_RISK))
    return verdict.astype(np.int8), host_exceeded
