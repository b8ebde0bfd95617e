"""Whether any choice that a base row leaves open could fit into memory: the leanest choices decide."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from cost_models.strategies.strategy import Bools, Ints, Strategies
from planner.strategies.repetitions import lean_modes
from planner.strategies.space import Space

_FEW_ROWS = 1 << 13
"""Rows that are better asked about at once than one choice after the other."""


def some_choice_fits(space: Space, base: Strategies, fits: Callable[[Strategies], Bools]) -> Bools:
    """Whether some split, ZeRO stage and recomputation of each base row could fit, shape (N,).

    Args:
        space: what the rows stand for.
        base: the rows.
        fits: whether rows whose choices are made could fit.
    """
    possible, num_splits = np.zeros(len(base), np.bool_), space.splits.counts[base.pp.astype(np.int64)]
    modes = lean_modes(space)
    # The first split of each is asked alone, since it mostly fits where any does; then all others at once.
    choices = list(product((False, True), range(len(modes)), sorted(space.zeros, reverse=True)))
    start = 0
    while start < len(choices) and not possible.all():
        rest = np.flatnonzero(~possible)
        # The first choice is the leanest, so that few rows are left behind it, and mostly none of their choices fit.
        several = max(1, _FEW_ROWS // len(rest)) if start else 1
        some = choices[start : start + several]
        parts = [_splits(rest, num_splits[rest], others=others) for others, _, _ in some]
        row, split = (np.concatenate(part) for part in zip(*parts, strict=True))
        if len(row):
            lengths = [len(each) for each, _ in parts]
            mode, zero = (np.repeat([choice[which] for choice in some], lengths) for which in (1, 2))
            lean = space.leanest(base.take(row), zero=zero, modes=modes, mode=mode, split=split)
            possible[row[fits(lean)]] = True
        start += len(some)
    return possible


def _splits(rows: Ints, num_splits: Ints, *, others: bool) -> tuple[Ints, Ints]:
    """Each of these rows with its first split, or with every other one: the rows and the numbers of their splits."""
    each = num_splits - 1 if others else np.ones(len(rows), np.int64)
    row = np.repeat(rows, each)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(each) - each, each) + others
