"""Which stages on pools could hold the model at all, for many strategies at once, before any split of them is solved.

Of several kinds of layer only the commonest is placed, as if the others took neither time nor room. (N,) over strategies has
no suffix; Q questions are a stage of a strategy each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_models.mixed import MixedJob
from cost_models.strategy import Bools, Floats, Ints, Strategies
from planner.pools.bounds import Work
from planner.pools.placements import Sites
from planner.search.lone_stages import fits_alone


def could_hold(
    mixed: MixedJob, rows: Strategies, sites: Sites, work: Work, *, slowest_s: Floats, headroom_fraction: float
) -> tuple[Bools, list[Ints]]:
    """Where the stages can hold all layers with none slower than `slowest_s`, shape (N,), and of each strategy the most
    layers on every stage.
    """
    model = mixed.jobs[0].model
    counts_J = np.array([model.layer_kinds.count(kind) for kind in model.distinct_kinds])
    kind = int(counts_J.argmax())
    total = int(counts_J[kind])
    pools = [sites.pools(index) for index in range(len(sites))]
    row_Q = np.repeat(np.arange(len(rows)), [len(each) for each in pools])
    stage_Q = np.concatenate([np.arange(len(each)) for each in pools]) if pools else np.zeros(0, np.int64)
    pool_Q = np.array([pool for each in pools for pool in each], np.int64)
    ends = work.first[pool_Q, row_Q] * (stage_Q == 0) + work.last[pool_Q, row_Q] * (stage_Q == rows.pp[row_Q] - 1)
    in_time = np.floor((slowest_s[row_Q] - ends) / work.layer_PJN[pool_Q, kind, row_Q] + 1e-9)
    high_Q = np.clip(in_time, -1.0, float(total)).astype(np.int64)
    possible = _sum(row_Q, np.maximum(high_Q, 0), len(rows)) >= total
    possible &= ~(_sum(row_Q, high_Q < 0, len(rows)) > 0)  # an end alone takes too long
    held_Q = np.maximum(high_Q, 0)
    asked = possible[row_Q]
    for pool in np.unique(pool_Q[asked]).tolist():
        here = np.flatnonzero(asked & (pool_Q == pool))
        held_Q[here] = _most_layers(
            mixed, pool, rows, row_Q[here], stage_Q[here], high_Q[here], kind, len(counts_J), headroom_fraction
        )
    lost = _sum(row_Q, asked & (held_Q < 0), len(rows)) > 0
    possible = possible & ~lost & (_sum(row_Q, np.maximum(held_Q, 0), len(rows)) >= total)
    return possible, np.split(held_Q, np.cumsum([len(each) for each in pools])[:-1])


def _sum(row_Q: Ints, values: Ints | Bools, count: int) -> Ints:
    return np.bincount(row_Q, weights=values, minlength=count).astype(np.int64)


def _most_layers(
    mixed: MixedJob,
    pool: int,
    rows: Strategies,
    row_Q: Ints,
    stage_Q: Ints,
    high_Q: Ints,
    kind: int,
    num_kinds: int,
    headroom_fraction: float,
) -> Ints:
    """The most layers that each stage holds on its pool's GPU, -1 where not even none; shape (Q,)."""

    def fits(which: Ints, layers: Ints) -> Bools:
        contents = np.zeros((len(which), num_kinds), np.int64)
        contents[:, kind] = layers
        return fits_alone(
            mixed.jobs[pool],
            rows.take(row_Q[which]),
            stage=stage_Q[which],
            contents_NJ=contents,
            recomputed=None,
            headroom_fraction=headroom_fraction,
        )

    everything = np.arange(len(row_Q))
    full = fits(everything, high_Q)
    low, high = np.where(full, high_Q, -1), np.where(full, high_Q, high_Q - 1)
    while (rest := np.flatnonzero(low < high)).size:
        middle = (low[rest] + high[rest] + 1) // 2
        good = fits(rest, middle)
        low[rest[good]] = middle[good]
        high[rest[~good]] = middle[~good] - 1
    return low


def in_parts(sizes: Sequence[int], most: int) -> list[slice]:
    """Consecutive parts of at most so much together, at least one each."""
    parts, start, total = [], 0, 0
    for index, size in enumerate(sizes):
        if index > start and total + size > most:
            parts.append(slice(start, index))
            start, total = index, 0
        total += size
    return [*parts, slice(start, len(sizes))] if len(sizes) else []
