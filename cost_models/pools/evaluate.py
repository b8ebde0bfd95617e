"""Every cost of strategies on the pools of a cluster: what `cost_models.evaluate` says of one kind of node, with every stage
timed and judged by its own pool's GPUs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cost_models.evaluate import (
    DEFAULT_HEADROOM_FRACTION,
    Evaluated,
    PooledMemory,
    PoolMemory,
    Verdict,
    evaluate,
    memory_on_one_pool,
    memory_verdict,
)
from cost_models.job import PooledJob
from cost_models.memory.stage_memory import stage_memory
from cost_models.pools.time import of_pool, pool_by_slot, pooled_step_time
from cost_models.step.exposure import exposure
from cost_models.step.ranges import step_time_range
from cost_models.strategies.layouts import Layouts
from cost_models.strategies.strategy import Floats, Ints, Strategies


def evaluate_on_pools(
    pooled: PooledJob, strategies: Strategies, *, headroom_fraction: float = DEFAULT_HEADROOM_FRACTION
) -> Evaluated:
    """Costs of N legal strategies; where the cluster lists pools, layouts name them and hold every stage. [T-5]"""
    if not pooled.cluster.lists_pools:
        return evaluate(pooled.jobs[0], strategies, headroom_fraction=headroom_fraction)
    time = pooled_step_time(pooled, strategies)
    # The slowest stage's work is most of a step, so its pool's calibration says how uncertain the step is.
    ranges = {
        pool: step_time_range(
            pooled.jobs[pool].calibration,
            time.terms_s,
            time.tiers,
            time.total_s,
            exposed=exposure(pooled.jobs[pool], strategies),
            has_experts=pooled.jobs[pool].model.moe is not None,
        )
        for pool in np.unique(time.slowest_pool).tolist()
    }
    low_s, high_s = (of_pool(time.slowest_pool, {p: each[side] for p, each in ranges.items()}) for side in (0, 1))
    return Evaluated(
        strategies=strategies,
        step_time_s=time.total_s,
        step_time_low_s=low_s,
        step_time_high_s=high_s,
        terms_s=time.terms_s,
        tiers=time.tiers,
        pools=pooled_memory(pooled, strategies, headroom_fraction=headroom_fraction),
    )


def pooled_memory(
    pooled: PooledJob, strategies: Strategies, *, headroom_fraction: float = DEFAULT_HEADROOM_FRACTION
) -> PooledMemory:
    """Memory and verdict of strategies, each pool judged by its own capacity. [M]"""
    if not pooled.cluster.lists_pools:
        return memory_on_one_pool(pooled.jobs[0], strategies, headroom_fraction=headroom_fraction)
    pool_KN = pool_by_slot(pooled, strategies)
    verdict = np.full(len(strategies), Verdict.FITS, np.int8)
    fullest, tightest_pool = np.full(len(strategies), -np.inf), np.zeros(len(strategies), np.int64)
    any_host_exceeded = np.zeros(len(strategies), np.bool_)
    found: dict[int, PoolMemory] = {}
    for pool, job in enumerate(pooled.jobs):
        rows = np.flatnonzero((pool_KN == pool).any(axis=0))
        if not len(rows):
            continue
        memory = stage_memory(job, _only(strategies, pool_KN, pool).take(rows))
        its, host_exceeded = memory_verdict(job, memory, headroom_fraction=headroom_fraction)
        found[pool] = PoolMemory(rows, memory, its, host_exceeded)
        # Verdicts are ordered from fitting to out of memory: one stage that does not fit decides for the plan.
        verdict[rows] = np.maximum(verdict[rows], its)
        any_host_exceeded[rows] |= host_exceeded
        # Shares of capacity compare pools with cards of different sizes, which bytes would not.
        used = memory.device_high / job.cluster.capacity_bytes + host_exceeded  # a full host leaves nothing
        fuller = used > fullest[rows]
        tightest_pool[rows[fuller]] = pool
        fullest[rows] = np.maximum(fullest[rows], used)
    return PooledMemory(found, pool_KN, verdict, tightest_pool, any_host_exceeded)


def _only(strategies: Strategies, pool_KN: Ints, pool: int) -> Strategies:
    """The strategies over layouts in which every slot is a stage of this pool, its first one where it was another's."""
    layouts, count = strategies.layouts, len(strategies.layouts.table)
    kept_LK = np.tile(np.arange(layouts.num_slots), (count, 1))
    for number in np.unique(strategies.layout).tolist():
        mine = pool_KN[:, int(np.argmax(strategies.layout == number))] == pool
        if mine.any():
            last = layouts.table[number].pp - 1  # the last slot is the last stage, where this pool holds it
            kept_LK[number, ~mine] = last if mine[last] else int(np.argmax(mine))
    return replace(strategies, layouts=_taken(layouts, kept_LK))


def _taken(layouts: Layouts, kept_LK: Ints) -> Layouts:
    def at(values: Floats) -> Floats:
        index = kept_LK if values.ndim == 2 else kept_LK[:, :, None]
        return np.take_along_axis(values, index, axis=1)

    return replace(
        layouts,
        slot_stage_LK=np.take_along_axis(layouts.slot_stage_LK, kept_LK, axis=1),
        layers_LKJ=at(layouts.layers_LKJ),
        largest_chunk_layers_LK=at(layouts.largest_chunk_layers_LK),
        has_embedding_LK=np.take_along_axis(layouts.has_embedding_LK, kept_LK, axis=1),
        has_head_LK=np.take_along_axis(layouts.has_head_LK, kept_LK, axis=1),
        recompute_layers_LK=at(layouts.recompute_layers_LK),
    )
