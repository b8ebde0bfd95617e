"""What one stage may hold of a model's layers, and how many of them a strategy recomputes. Array suffixes: C contents, J layer
kinds.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np

from cost_models.strategies.fields import Recompute, RecomputeMethod
from cost_models.strategies.strategy import Ints, Strategies
from planner.splits.chunks import recomputed_counts


# Every strategy of a search asks for the runs of the same model.
@lru_cache(maxsize=8)
def runs_of(kinds: tuple[int, ...]) -> Ints:
    """Different contents of all runs of consecutive layers, shape (C, J)."""
    num_kinds = max(kinds) + 1
    before = np.zeros((len(kinds) + 1, num_kinds), np.int64)
    before[1:] = np.cumsum(np.eye(num_kinds, dtype=np.int64)[list(kinds)], axis=0)
    if num_kinds == 1:
        return before
    # A run of layers is what lies between two positions; different runs with equal contents cost the same.
    start, stop = np.triu_indices(len(before))
    return np.unique(before[stop] - before[start], axis=0)


def products_of(counts_J: Ints) -> Ints:
    """Contents of any so many layers of each kind, shape (C, J)."""
    return np.array(list(product(*(range(count + 1) for count in counts_J))), np.int64)


def own_counts(row: Strategies, totals: Ints) -> tuple[Ints, Ints]:
    """What a strategy may recompute in full on a stage with so many layers: positions in `totals`, and counts, in rising order.

    Where the strategy counts by chunk, that depends on how the layers lie on the chunks.
    """
    each = np.arange(len(totals))
    if row.recompute[0] != Recompute.FULL:
        return each, np.zeros_like(totals)
    if row.recompute_method[0] != RecomputeMethod.BLOCK:
        return each, totals
    count, vpp = int(row.recompute_num_layers[0]), int(row.vpp[0])
    if vpp == 1:
        return each, np.minimum(totals, count)
    ranges = [recomputed_counts(total, vpp, block=count) for total in totals.tolist()]
    return np.repeat(each, [len(counts) for counts in ranges]), np.array(
        [r for counts in ranges for r in counts], np.int64
    )
