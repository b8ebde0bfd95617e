"""Memory of stages on pools: every pool's stages by its own GPUs, and the verdict of all. [T-5]"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cost_models.evaluate import DEFAULT_HEADROOM_FRACTION, Verdict, memory_verdict
from cost_models.job import PooledJob
from cost_models.memory import StageMemory, stage_memory
from cost_models.pools.time import pool_by_slot
from cost_models.strategies.layouts import Layouts
from cost_models.strategies.strategy import Bools, Codes, Floats, Ints, Strategies


@dataclass(frozen=True, eq=False)
class PoolMemory:
    """Memory of the strategies that have stages on one pool, M of N."""

    rows: Ints
    """Which they are, shape (M,)."""
    memory: StageMemory
    """Slots of other pools' stages repeat one of this pool's."""
    verdict: Codes
    """Codes of `Verdict`, shape (M,)."""
    host_exceeded: Bools


@dataclass(frozen=True, eq=False)
class PooledMemory:
    """Memory of N strategies on pools."""

    pools: dict[int, PoolMemory]
    """By pool; pools that no strategy uses are left out."""
    pool_KN: Ints
    """Pool of every slot's stage, -1 in slots that repeat the last one."""
    verdict: Codes
    """The worst of the pools', shape (N,)."""
    tightest_pool: Ints
    """Pool with the least to spare, as a share of its GPU's capacity, shape (N,)."""


def pooled_memory(
    pooled: PooledJob, strategies: Strategies, *, headroom_fraction: float = DEFAULT_HEADROOM_FRACTION
) -> PooledMemory:
    """Memory and verdict of stages on pools, each pool judged by its own capacity. [M]"""
    pool_KN = pool_by_slot(pooled, strategies)
    verdict = np.full(len(strategies), Verdict.FITS, np.int8)
    fullest, tightest_pool = np.full(len(strategies), -np.inf), np.zeros(len(strategies), np.int64)
    found: dict[int, PoolMemory] = {}
    for pool, job in enumerate(pooled.jobs):
        rows = np.flatnonzero((pool_KN == pool).any(axis=0))
        if not len(rows):
            continue
        memory = stage_memory(job, _only(strategies, pool_KN, pool).take(rows))
        its, host_exceeded = memory_verdict(job, memory, headroom_fraction=headroom_fraction)
        found[pool] = PoolMemory(rows, memory, its, host_exceeded)
        verdict[rows] = np.maximum(verdict[rows], its)
        used = memory.device_high / job.cluster.capacity_bytes + host_exceeded  # a full host leaves nothing
        fuller = used > fullest[rows]
        tightest_pool[rows[fuller]] = pool
        fullest[rows] = np.maximum(fullest[rows], used)
    return PooledMemory(found, pool_KN, verdict, tightest_pool)


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
