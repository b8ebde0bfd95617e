"""Strategies on pools as rows: on every site of their base row, and with every number of recomputed layers for which one stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cost_models.job import PooledJob
from cost_models.step.fsdp_comm import is_fsdp
from cost_models.strategies.fields import Recompute, RecomputeMethod
from cost_models.strategies.strategy import Bools, Ints, Strategies
from planner.pools.bounds import RowBound
from planner.pools.placements import Sites
from planner.splits.model import SplitNumbers


def names_of(pooled: PooledJob, pools: Sequence[int]) -> tuple[str, ...]:
    """The names of these pools."""
    return tuple(pooled.names[pool] for pool in pools)


def stands_for_counts(pooled: PooledJob, rows: Strategies, *, counts: bool) -> Bools:
    """Which strategies stand for recomputing any number of layers of every virtual stage, where `counts` are searched, shape (N,)."""
    whole = (rows.recompute == Recompute.FULL) & (rows.recompute_method == RecomputeMethod.EVERY)
    return np.asarray(whole & counts & ~is_fsdp(pooled.jobs[0], rows))


def with_counts(
    pooled: PooledJob,
    rows: Strategies,
    sites: Sites,
    numbers: tuple[SplitNumbers, ...],
    bound: RowBound,
    *,
    wins: Ints,
) -> tuple[Strategies, Sites, tuple[SplitNumbers, ...], RowBound]:
    """These strategies, and those at the positions `wins` once for every number of recomputed layers, with their bounds."""
    if not len(wins):
        return rows, sites, numbers, bound
    layers = pooled.jobs[0].model.num_layers
    every = np.append(np.arange(len(rows)), np.repeat(wins, layers - 1))
    some = slice(len(rows), None)
    rows, sites, numbers = rows.take(every), sites.take(every), tuple(each.take(every) for each in numbers)
    method, count = rows.recompute_method.copy(), rows.recompute_num_layers.copy()
    method[some] = RecomputeMethod.BLOCK
    count[some] = np.tile(np.arange(1.0, layers), len(wins))
    rows = replace(rows, recompute_method=method, recompute_num_layers=count)
    return rows, sites, numbers, bound.take(every).again(pooled, numbers, rows, sites)


def on_sites(origin: Ints, base_of_site: Ints, *, count: int) -> tuple[Ints, Ints]:
    """Each strategy on each site of its base row: positions of strategies, and of sites.

    Args:
        origin: the base row of each strategy.
        base_of_site: the base row of each site.
        count: base rows.
    """
    by_base = np.argsort(origin, kind="stable")
    each = np.bincount(origin, minlength=count)
    start, times = np.cumsum(each) - each, each[base_of_site]
    site = np.repeat(np.arange(len(base_of_site)), times)
    within = np.arange(len(site)) - np.repeat(np.cumsum(times) - times, times)
    return by_base[start[base_of_site][site] + within], site
