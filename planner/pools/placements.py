"""The pools on which the stages of a pipeline lie: every order of the pools, and every number of stages that fills whole nodes.

A *placement* is the pools in the order of the pipeline with the number of stages on each. A *site* is a base row (degrees and
micro-batch) on one placement. Array suffixes: P pools, V placements; arrays of shape (N,) over sites have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, permutations

import numpy as np

from cost_models.errors import SearchBudgetError
from cost_models.job import PooledJob
from cost_models.strategies.strategy import Floats, Ints, Strategies
from planner.schemas.plan_request import Constraints

MOST_SITES = 20_000_000
"""Most sites that are held at a time, a few GiB."""


@dataclass(frozen=True, eq=False)
class Sites:
    """Base rows on placements, shape (N,) unless a suffix says otherwise."""

    base: Ints
    """The position of each site's base row."""
    stages_PN: Ints
    """The number of stages on each pool."""
    order_PN: Ints
    """The pools in the order of the pipeline; those without stages come last."""

    def __len__(self) -> int:
        return len(self.base)

    def take(self, index: Ints) -> Sites:
        """The sites at these positions, or those where the mask is true."""
        return Sites(self.base[index], self.stages_PN[:, index], self.order_PN[:, index])

    @property
    def first_pool(self) -> Ints:
        """The pool of each site's first stage."""
        return np.asarray(self.order_PN[0])

    @property
    def last_pool(self) -> Ints:
        """The pool of each site's last stage."""
        used = (self.stages_PN > 0).sum(axis=0)
        return np.asarray(self.order_PN[used - 1, np.arange(len(self))])

    def pools(self, index: int) -> tuple[int, ...]:
        """The pool of every stage of one site."""
        order = self.order_PN[:, index].tolist()
        return tuple(pool for pool in order for _ in range(int(self.stages_PN[pool, index])))


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """The least and the largest number of nodes that a plan may use."""

    least: int
    most: int


def node_limits(pooled: PooledJob, constraints: Constraints) -> NodeLimits:
    """The limits that a request sets: all nodes where none may be idle."""
    nodes = pooled.cluster.num_nodes
    most = min(constraints.num_nodes.max or nodes, nodes)
    least = constraints.num_nodes.min or 1
    return NodeLimits(least if constraints.allow_idle_gpus else most, most)


def possible_worlds(pooled: PooledJob, limits: NodeLimits) -> Ints:
    """Numbers of GPUs that whole nodes of some pools can add up to within the limits."""
    # A knapsack over the pools: for every number of GPUs the fewest and the most nodes that make it. A number is kept if these two
    # enclose the limits; it may still turn out to have no placement, but none that has one is lost.
    gpus = pooled.cluster.num_gpus + 1
    fewest = np.full(gpus, pooled.cluster.num_nodes + 1, np.int64)
    most = np.full(gpus, -1, np.int64)
    fewest[0] = most[0] = 0
    for pool in pooled.cluster.pools:
        left, part = pool.cluster.num_nodes, 1
        while left > 0:  # parts of 1, 2, 4 … nodes and a rest can be combined to any number of nodes
            part = min(part, left)
            width = part * pool.cluster.gpus_per_node
            fewest[width:] = np.minimum(fewest[width:], fewest[:-width] + part)
            some = most[:-width]
            most[width:] = np.maximum(most[width:], np.where(some >= 0, some + part, -1))
            left, part = left - part, 2 * part
    return np.flatnonzero((most >= limits.least) & (fewest <= limits.most))


def build_sites(
    pooled: PooledJob, base: Strategies, *, limits: NodeLimits, fixed: Sequence[str] | None
) -> tuple[Sites, Ints]:
    """Every base row on every placement that has room for it, and the base rows for which no pool has room.

    Args:
        pooled: the pools.
        base: base rows, of which pp and tp * cp * dp decide where they have room.
        limits: how many nodes may be used.
        fixed: the pool of every stage, where the request fixes it.

    Raises:
        SearchBudgetError: there are more sites than can be held.
    """
    stage_gpus = (base.world / base.pp).astype(np.int64)
    largest = max(pool.cluster.num_gpus for pool in pooled.cluster.pools)
    parts: list[tuple[Ints, Ints, Ints]] = []
    size = 0
    for gpus in np.unique(stage_gpus[stage_gpus <= largest]).tolist():
        rows = np.flatnonzero(stage_gpus == gpus)
        stages_PV, order_PV = _placements(pooled, gpus, limits, most=int(base.pp[rows].max()), fixed=fixed)
        if not stages_PV.shape[1]:
            continue
        by_pp = np.argsort(stages_PV.sum(axis=0), kind="stable")
        stages_PV, order_PV = stages_PV[:, by_pp], order_PV[:, by_pp]
        total_V, pp = stages_PV.sum(axis=0), base.pp[rows].astype(np.int64)
        start = np.searchsorted(total_V, pp, "left")
        count = np.searchsorted(total_V, pp, "right") - start
        size += int(count.sum())
        if size > MOST_SITES:
            message = (
                f"there are more than {MOST_SITES:,} combinations of degrees and pools, which is too many to search"
            )
            raise SearchBudgetError(message, hint="Fix or list tp, pp, dp, cp, ep or micro_batch_size in constraints.")
        which = np.repeat(np.arange(len(rows)), count)
        within = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        at = start[which] + within
        parts.append((rows[which], stages_PV[:, at], order_PV[:, at]))
    pools = len(pooled.jobs)
    if not parts:
        none = np.zeros((pools, 0), np.int64)
        return Sites(np.zeros(0, np.int64), none, none), np.flatnonzero(stage_gpus > largest)
    sites = Sites(
        np.concatenate([rows for rows, _, _ in parts]),
        np.concatenate([stages for _, stages, _ in parts], axis=1),
        np.concatenate([order for _, _, order in parts], axis=1),
    )
    return sites, np.flatnonzero(stage_gpus > largest)


def _placements(
    pooled: PooledJob, stage_gpus: int, limits: NodeLimits, *, most: int, fixed: Sequence[str] | None
) -> tuple[Ints, Ints]:
    """For every placement the stages on each pool and the pools in pipeline order, shape (P, V) each."""
    # The order matters: the first stage also holds the embedding and keeps the most micro-batches in flight, the last one holds
    # the head, and only the sends between neighbours cross from one pool to another.
    if fixed is not None:
        counts = np.array([[fixed.count(name)] for name in pooled.names])
    else:
        counts = _counts(pooled, stage_gpus, most=most)
    nodes = np.zeros(counts.shape[1])
    for pool, stages_V in zip(pooled.cluster.pools, counts, strict=True):
        used = stages_V * stage_gpus / pool.cluster.gpus_per_node
        nodes += np.where((used % 1 == 0) & (used <= pool.cluster.num_nodes), used, np.inf)
    counts = counts[:, (nodes >= limits.least) & (nodes <= limits.most)]
    stages: list[Ints] = []
    orders: list[Ints] = []
    pools = range(len(pooled.jobs))
    for used_P in np.unique(counts > 0, axis=1).T:
        same = counts[:, ((counts > 0) == used_P[:, None]).all(axis=0)]
        mine, idle = [pool for pool in pools if used_P[pool]], [pool for pool in pools if not used_P[pool]]
        for order in permutations(mine):
            if fixed is not None and [pooled.names[pool] for pool in order] != [name for name, _ in groupby(fixed)]:
                continue
            stages.append(same)
            orders.append(np.tile(np.array([*order, *idle])[:, None], same.shape[1]))
    if not stages:
        return np.zeros((len(pools), 0), np.int64), np.zeros((len(pools), 0), np.int64)
    return np.concatenate(stages, axis=1), np.concatenate(orders, axis=1)


def _counts(pooled: PooledJob, stage_gpus: int, *, most: int) -> Ints:
    """Every choice of stages per pool that fills whole nodes and has at least one stage, shape (P, V)."""
    found = np.zeros((0, 1), np.int64)
    for pool in pooled.cluster.pools:
        room = np.arange(min(pool.cluster.num_gpus // stage_gpus, most) + 1)
        room = room[room * stage_gpus % pool.cluster.gpus_per_node == 0]
        if found.shape[1] * len(room) > MOST_SITES:
            message = f"there are more than {MOST_SITES:,} ways to lay stages on {len(pooled.jobs)} pools, which is too many to search"
            raise SearchBudgetError(message, hint="Fix dp, tp or pp in constraints.")
        found = np.concatenate([np.repeat(found, len(room), axis=1), np.tile(room, found.shape[1])[None]])
        found = found[:, found.sum(axis=0) <= most]
    return found[:, found.sum(axis=0) > 0]


def price_weight(pooled: PooledJob, stages_PN: Ints, stage_gpus: Floats) -> Floats:
    """The factor by which the objective `cost` multiplies the step time, shape (N,).

    It is the price per hour of the GPUs in use, or their number where not every pool has a price.
    """
    prices = [job.cluster.price_per_gpu_hour for job in pooled.jobs]
    each = np.ones(len(prices)) if None in prices else np.array(prices, np.float64)
    return np.asarray((each @ stages_PN) * stage_gpus)
