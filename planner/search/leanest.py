"""The least memory of what a base row stands for: whether any of it could fit, and how many bytes nothing undercuts.

Of all pairs of a base row that share ZeRO stage, mode of recomputation and layers on each stage, the leanest one is priced: the
one with the fewest virtual stages that recomputes all it can. Array suffixes: C cells, which are base rows times different splits;
Z ZeRO stages, R modes of recomputation, L splits of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from cost_models.evaluate import DEFAULT_HEADROOM_FRACTION, Verdict, memory_verdict
from cost_models.frameworks import memory_traits
from cost_models.job import Job
from cost_models.memory import StageMemory, stage_memory
from cost_models.strategies.fields import Recompute, RecomputeMethod
from cost_models.strategies.layouts import Layouts
from cost_models.strategies.strategy import Bools, Floats, Ints, Strategies
from planner.strategies.expansion import Pairs
from planner.strategies.repetitions import lean_modes, leanest_modes
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
    modes = leanest_modes(space)
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
            possible[row[_any_fits(space, lean, fits)]] = True
        start += len(some)
    return possible


def _any_fits(space: Space, lean: Strategies, fits: Callable[[Strategies], Bools]) -> Bools:
    """Whether these rows fit, or the same with one layer that is kept, shape (N,)."""
    found = np.array(fits(lean))
    full = np.flatnonzero(~found & (lean.recompute == Recompute.FULL))
    for kept in _may_need_less(space, lean.take(full)) if len(full) else ():
        found[full] |= fits(kept)
    return found


def _splits(rows: Ints, num_splits: Ints, *, others: bool) -> tuple[Ints, Ints]:
    """Each of these rows with its first split, or with every other one: the rows and the numbers of their splits."""
    each = num_splits - 1 if others else np.ones(len(rows), np.int64)
    row = np.repeat(rows, each)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(each) - each, each) + others


@dataclass(frozen=True, eq=False)
class LeastMemory:
    """Bytes of device memory that nothing undercuts."""

    space: Space
    of_rows: Floats
    """Of each base row, shape (N,)."""
    first: Ints
    """The first cell of each base row, shape (N,)."""
    least_ZRC: Floats

    def of_pairs(self, pairs: Pairs) -> Floats:
        """Of each pair, in the shape of `pairs`."""
        space, at = self.space, pairs.option
        zero = np.searchsorted(sorted(space.zeros), space.options["zero"][at])
        # The sets of modules of one mode follow each other in the order of their numbers, which begin with 1.
        modes = [each.recompute for each in lean_modes(space)]
        first = np.array([modes.index(mode) if mode in modes else 0 for mode in Recompute])
        mode = first[space.options["recompute"][at]] + np.maximum(space.options["repeats"][at] - 1, 0)
        cell = self.first[pairs.origin] + space.splits.number[space.options["layout"][at]]
        return np.asarray(self.least_ZRC[zero, mode, cell])

    def take(self, index: Ints | NDArray[np.bool_]) -> LeastMemory:
        """The bounds of these base rows."""
        return LeastMemory(self.space, self.of_rows[index], self.first[index], self.least_ZRC)


def least_memory(space: Space, base: Strategies) -> LeastMemory:
    """The bounds of these base rows; zero where it is not known what the leanest choices are."""
    num_splits, modes = space.splits.counts[base.pp.astype(np.int64)], lean_modes(space)
    first = np.cumsum(num_splits) - num_splits
    row = np.repeat(np.arange(len(base)), num_splits)
    least_ZRC = np.zeros((len(space.zeros), len(modes), len(row)))
    if not space.leanest_is_known:
        return LeastMemory(space, np.zeros(len(base)), first, least_ZRC)
    each, split = base.take(row), np.arange(len(row)) - first[row]
    job, least_factor = space.job.uncorrected, space.job.corrections.least_memory_factor
    for (z, zero), (r, mode) in product(enumerate(sorted(space.zeros)), enumerate(modes)):
        rows = space.leanest(each, zero=zero, modes=[mode], split=split)
        memory = stage_memory(job, rows)
        least_KC = memory.device_KN
        for kept in _may_need_less(space, rows) if mode.recompute == Recompute.FULL else ():
            least_KC = np.minimum(least_KC, stage_memory(job, kept).device_KN)
        # What else a pair chooses only adds to this. That may end the peak of the loss, and with it the hole that the logits leave.
        least_ZRC[z, r] = (least_KC.max(axis=0) - memory.hole) * least_factor
    of_rows = np.minimum.reduceat(least_ZRC.min(axis=(0, 1)), first) if len(first) else np.zeros(0)
    return LeastMemory(space, of_rows, first, least_ZRC)


def _may_need_less(space: Space, rows: Strategies) -> Iterator[Strategies]:
    """What may need less than these rows, which recompute all layers: all layers of a stage, or of a chunk, but one recomputed, in as
    many batches as there are different stages and chunks in one of the splits.

    A layer that is made again counts as one of the largest kind, one that is kept as the average of its stage. So where there are
    several kinds, or where gradients only appear as the backward frees activations, so that its end may be the peak, a stage may
    need less if it keeps a single layer; with every further one it needs more.
    """
    counted = {"recompute_num_layers", "recompute_method"}.intersection(space.chosen)
    grows = not memory_traits(space.job.training).gradients_persist
    if len(space.job.model.distinct_kinds) == 1 and not (grows and counted):
        return
    held_LS, layout = rows.layouts.held_LS, rows.layout
    counts = {index: _several_layers(rows.layouts, index) for index in np.unique(layout).tolist()}
    for which in range(max(map(len, counts.values()), default=0)):
        number = np.ones(len(held_LS))
        for index, held in counts.items():
            number[index] = held[min(which, len(held) - 1)] - 1 if len(held) else 1
        block = np.full_like(rows.recompute_method, RecomputeMethod.BLOCK)
        yield replace(rows, recompute_method=block, recompute_num_layers=number[layout])


def _several_layers(layouts: Layouts, layout: int) -> Floats:
    """The numbers above 1 of layers that a stage, or one of its chunks, holds in this layout."""
    held = np.union1d(layouts.held_LS[layout], layouts.table[layout].layers)
    return held[held > 1]


def could_fit(job: Job, rows: Strategies) -> Bools:
    """Whether strategies might fit that need at least as much as these, shape (N,)."""
    memory = least_of_groups(job, stage_memory(job, rows))
    verdict, _ = memory_verdict(job, memory, headroom_fraction=DEFAULT_HEADROOM_FRACTION)
    return np.asarray((verdict != Verdict.OOM) | (memory.device_low - memory.hole <= job.cluster.capacity_bytes))


def least_of_groups(job: Job, memory: StageMemory) -> StageMemory:
    """Memory that nothing undercuts which needs as much as these strategies before it is corrected.

    Corrections may make less of what one strategy has more of, so that only the least of them holds for all.
    """
    if not job.corrections.changes_memory:
        return memory
    plain, factor = stage_memory(job.uncorrected, memory.strategies), job.corrections.least_memory_factor
    least = {name: getattr(plain, name) * factor for name in ("device", "device_low", "device_high", "hole")}
    return replace(plain, **least)


def may_fit_in_groups(job: Job, memory: StageMemory, headroom_fraction: float, *, allow_at_risk: bool) -> Bools:
    """Where groups of fewer ranks might fit although all replicas together do not, shape (N,).

    The hole that the logits leave counts only while the loss is the peak, which more state may end.
    """
    capacity = job.cluster.capacity_bytes
    if allow_at_risk:
        return np.asarray(memory.device_low - memory.hole <= capacity)
    return np.asarray(memory.device_high - memory.hole <= capacity * (1.0 - headroom_fraction))
