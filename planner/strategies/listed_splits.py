"""The splits that a space lists: which schedules each can run, and which of them need the least memory.

A pair is (vpp, layout), the layout as a number in the table. A V-shaped schedule places the second chunk of a stage the other way
round, so that its split is a layout of its own, a folded one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cost_models.constants import WGRAD_SHARE
from cost_models.strategies.fields import SPLIT_BACKWARD, V_SHAPED, Schedule
from cost_models.strategies.layouts import Layout, Layouts, folds

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Pair = tuple[int, int]

# By the micro-batches that the fullest stage has in flight: p - s, p or p + 1/2, all.
_LEANEST_FIRST = (
    Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.ZB_V, Schedule.ZB_H1, Schedule.DUALPIPE_V, Schedule.GPIPE,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ListedSplits:
    """The (vpp, layout) pairs of every number of stages."""

    layouts: Layouts
    index: Mapping[int, tuple[Pair, ...]]
    given: tuple[int, ...] | None
    """The schedules that the request fixes or lists."""
    searched: tuple[int, ...]
    """Those that are searched where it does not."""

    def schedules(self, layout: int) -> tuple[int, ...]:
        """The schedules that are tried on a split. Of given ones, also those that cannot run it: the rules say why."""
        split = self.layouts.table[layout]
        if self.given is not None:
            return tuple(value for value in self.given if is_split_of(split, value))
        if split.pp == 1:
            return (Schedule.ONE_F_ONE_B,)
        if split.folded:
            return tuple(value for value in self.searched if value in V_SHAPED)
        if split.vpp > 1:
            return (Schedule.INTERLEAVED,)
        return tuple(value for value in self.searched if value not in V_SHAPED and value != Schedule.INTERLEAVED)

    @property
    def schedules_tried(self) -> list[int]:
        """The given schedules, or those that are searched on some split."""
        tried = {value for pairs in self.index.values() for _, layout in pairs for value in self.schedules(layout)}
        return list(self.given if self.given is not None else sorted(tried))

    @cached_property
    def leanest_schedule(self) -> NDArray[np.int8]:
        """Of the schedules of every layout the one that needs the least memory, shape (L,)."""
        of_layout = (self.schedules(layout) for layout in range(len(self.layouts.table)))
        return np.array([min(each, key=_LEANEST_FIRST.index, default=0) for each in of_layout], np.int8)

    @property
    def different(self) -> Mapping[int, tuple[Pair, ...]]:
        """The pairs by number of stages of which the leanest of a stage's memory may be one."""
        return self._unequal[0]

    @property
    def number(self) -> Ints:
        """Which pair in `different` stands for each layout, by its position among those of its number of stages; shape (L,)."""
        return self._unequal[1]

    @cached_property
    def _unequal(self) -> tuple[Mapping[int, tuple[Pair, ...]], Ints]:
        # Splits whose ranks hold the same layers need the same memory for states and differ only in what is in flight, of
        # which 1F1B needs the least. So one split stands for them when memory is bounded.
        found: dict[int, tuple[Pair, ...]] = {}
        number = np.zeros(len(self.layouts.table), np.int64)
        for pp, pairs in self.index.items():
            unequal: dict[tuple[bytes, int, int], Pair] = {}
            for vpp, layout in sorted(pairs):
                held = self.layouts.held(layout)
                plain, own = (held, int(Schedule.ONE_F_ONE_B), 0), int(self.leanest_schedule[layout])
                # More virtual stages hold less on the first stage and more on the last, so that only 1F1B stands for all of them.
                alike = plain in unequal and (own == Schedule.INTERLEAVED or own in SPLIT_BACKWARD)
                key = plain if alike else (held, own, vpp if own == Schedule.INTERLEAVED else 0)
                unequal.setdefault(key, (vpp, layout))
                number[layout] = list(unequal).index(key)
            found[pp] = tuple(unequal.values())
        return found, number

    @cached_property
    def table(self) -> Ints:
        """(vpp, layout) of every pair in `different`, by number of stages; shape (largest pp + 1, most pairs, 2)."""
        table = np.zeros((max(self.different) + 1, max(map(len, self.different.values())), 2), dtype=np.int64)
        for pp, pairs in self.different.items():
            table[pp, : len(pairs)] = pairs
        return table

    @cached_property
    def counts(self) -> Ints:
        """How many pairs in `different` there are, by number of stages, shape (largest pp + 1,)."""
        counts = np.zeros(max(self.different) + 1, dtype=np.int64)
        for stages, pairs in self.different.items():
            counts[stages] = len(pairs)
        return counts

    @cached_property
    def last(self) -> Ints:
        """The last pair, by number of stages; shape (largest pp + 1, 2)."""
        table = np.zeros((max(self.index) + 1, 2), dtype=np.int64)
        for stages, pairs in self.index.items():
            table[stages] = pairs[-1]
        return table

    @cached_property
    def most_vpp(self) -> Floats:
        """The largest number of virtual stages, by number of stages; shape (largest pp + 1,)."""
        most = np.ones(max(self.index) + 1)
        for pp, pairs in self.index.items():
            most[pp] = max(vpp for vpp, _ in pairs)
        return most

    @cached_property
    def least_wait(self) -> Floats:
        """The least `waiting_share` of all splits and schedules, by number of stages; shape (largest pp + 1,)."""
        least = np.ones(max(self.index) + 1)
        for pp, pairs in self.index.items():
            shares = (waiting_share(schedule, vpp) for vpp, layout in pairs for schedule in self.schedules(layout))
            least[pp] = min(shares, default=1.0)
        return least


def is_split_of(split: Layout, schedule: int) -> bool:
    """Whether this is the layout on which a schedule that the request gives is judged."""
    return split.folded == folds(schedule, pp=split.pp, vpp=split.vpp)


def waiting_share(schedule: int, vpp: int) -> float:
    """What share of the other stages' seconds per micro-batch the bubble takes at least [P-1].

    With F, I and W of together t, max(F, I, F + I - W) is at least t / 3 (ZB-H1), and so is max(I, W, 2F - I), of which ZB-V
    takes half. In DualPipe-V, F + max(F, I) is at least F + I, of which half counts, and W is at most WGRAD_SHARE of t.
    """
    shares = {Schedule.ZB_H1: 1.0 / 3.0, Schedule.ZB_V: 1.0 / 6.0, Schedule.DUALPIPE_V: (1.0 - WGRAD_SHARE.value) / 2.0}
    return shares.get(Schedule(schedule), 1.0 / vpp if schedule == Schedule.INTERLEAVED else 1.0)
