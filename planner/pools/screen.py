"""Which stages on pools could hold the model at all, for many strategies at once, before any split of them is solved.

Of several kinds of layer only the commonest is placed, as if the others took neither time nor room. (N,) over strategies has
no suffix; Q questions are a stage of a strategy each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.job import PooledJob
from cost_models.strategies.strategy import Bools, Floats, Ints, Strategies
from planner.pools.bounds import Work
from planner.pools.placements import Sites
from planner.splits.lone_stages import fits_alone


def could_hold(
    pooled: PooledJob, rows: Strategies, sites: Sites, work: Work, *, slowest_s: Floats, headroom_fraction: float
) -> tuple[Bools, list[Ints]]:
    """Where the stages can hold all layers with none slower than `slowest_s`, shape (N,), and of each strategy the most
    layers on every stage.
    """
    model = pooled.jobs[0].model
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
    questions = _Questions(pooled, rows, row_Q, stage_Q, pool_Q, kind, len(counts_J), headroom_fraction)
    spare = _sum(row_Q, held_Q, len(rows)) - total  # what all stages together may hold less than in time they could
    needed_Q = np.maximum(high_Q - spare[row_Q], 0)
    for early in _first_to_overflow(row_Q, stage_Q, pool_Q):
        here = early[possible[row_Q[early]]]
        possible[row_Q[here[~questions.fit(here, needed_Q[here])]]] = False
    asked = possible[row_Q]
    here = np.flatnonzero(asked)
    held_Q[here] = questions.most_layers(here, needed_Q[here], high_Q[here])
    lost = _sum(row_Q, asked & (held_Q < 0), len(rows)) > 0
    possible = possible & ~lost & (_sum(row_Q, np.maximum(held_Q, 0), len(rows)) >= total)
    return possible, np.split(held_Q, np.cumsum([len(each) for each in pools])[:-1])


def _sum(row_Q: Ints, values: Ints | Bools, count: int) -> Ints:
    return np.bincount(row_Q, weights=values, minlength=count).astype(np.int64)


def _first_to_overflow(row_Q: Ints, stage_Q: Ints, pool_Q: Ints) -> list[Ints]:
    """Questions to ask before all others: each strategy's first stage, then the first one on every other pool."""
    starts = np.ones(len(row_Q), np.bool_)
    starts[1:] = (row_Q[1:] != row_Q[:-1]) | (pool_Q[1:] != pool_Q[:-1])
    return [np.flatnonzero(starts & (stage_Q == 0)), np.flatnonzero(starts & (stage_Q > 0))]


@dataclass(frozen=True, eq=False)
class _Questions:
    """Whether stages hold so many layers of one kind on their pool's GPU."""

    pooled: PooledJob
    rows: Strategies
    row_Q: Ints
    stage_Q: Ints
    pool_Q: Ints
    kind: int
    num_kinds: int
    headroom_fraction: float

    def fit(self, asked: Ints, layers: Ints) -> Bools:
        """Whether these questions' stages hold so many layers, shape of `asked`."""
        found = np.zeros(len(asked), np.bool_)
        for pool in np.unique(self.pool_Q[asked]).tolist():
            here = np.flatnonzero(self.pool_Q[asked] == pool)
            contents = np.zeros((len(here), self.num_kinds), np.int64)
            contents[:, self.kind] = layers[here]
            found[here] = fits_alone(
                self.pooled.jobs[pool],
                self.rows.take(self.row_Q[asked[here]]),
                stage=self.stage_Q[asked[here]],
                contents_NJ=contents,
                recomputed=None,
                headroom_fraction=self.headroom_fraction,
            )
        return found

    def most_layers(self, asked: Ints, least_Q: Ints, most_Q: Ints) -> Ints:
        """The most layers within these limits that each stage holds, -1 where not even the least; shape of `asked`."""
        full = self.fit(asked, most_Q)
        low, high = np.where(full, most_Q, least_Q - 1), np.where(full, most_Q, most_Q - 1)
        while (rest := np.flatnonzero(low < high)).size:
            middle = (low[rest] + high[rest] + 1) // 2
            good = self.fit(asked[rest], middle)
            low[rest[good]] = middle[good]
            high[rest[~good]] = middle[~good] - 1
        return np.where(low < least_Q, -1, low)
