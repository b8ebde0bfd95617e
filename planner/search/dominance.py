"""Dominance: which strategies no other one beats in step time, memory, GPUs and cost at once.

The cost of a step is its time on its GPUs. A strategy that is no slower on no more GPUs therefore costs no more, so time, memory
and GPUs decide. Times are compared as a ranking compares them, rounded.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cost_models.strategies.layouts import Layouts
from cost_models.strategies.strategy import Bools, Floats, Ints, Strategies, concatenated
from planner.search.objective import rounded


def undominated(step_s: Floats, device_bytes: Floats, world: Floats) -> Bools:
    """Which points are on the front, shape (N,); of equal points only the first.

    A point is on the front if no other point is at least as good in every objective and better in one.
    """
    kept = np.zeros(len(step_s), np.bool_)
    ahead = np.zeros(0, np.int64)  # the front on fewer GPUs, in the order of their times
    for gpus in np.unique(world).tolist():
        both = np.concatenate([ahead, np.flatnonzero(world == gpus)])
        # A stable order: of equal points those on fewer GPUs come first, and then those that were given first.
        both = both[np.lexsort((both, world[both], device_bytes[both], step_s[both]))]
        least = np.minimum.accumulate(np.append(np.inf, device_bytes[both]))[:-1]
        ahead = both[device_bytes[both] < least]
        kept[ahead[world[ahead] == gpus]] = True
    return kept


class FrontSoFar:
    """The front of the strategies that have been priced so far, the fastest first."""

    def __init__(self, layouts: Layouts) -> None:
        """`layouts` is the table of the strategies' splits, or a longer one that starts with it."""
        self._layouts = layouts
        self.rows: Strategies | None = None
        self.step_s, self.device_bytes, self.world = np.zeros(0), np.zeros(0), np.zeros(0)
        self._compacted = 0

    def beaten(self, step_s: Floats, device_bytes: Floats, world: Floats) -> Bools:
        """Which points some strategy of the front beats or equals, shape (N,).

        Of lower bounds: behind which there is nothing that the front lacks.
        """
        found = np.zeros(len(step_s), np.bool_)
        at = np.searchsorted(rounded(self.step_s), rounded(step_s), side="right")
        for gpus in np.unique(world).tolist():
            here = np.flatnonzero(world == gpus)
            held = np.where(self.world <= gpus, self.device_bytes, np.inf)
            least = np.minimum.accumulate(np.append(np.inf, held))
            found[here] = least[at[here]] <= device_bytes[here]
        return found

    def add(self, rows: Strategies, step_s: Floats, device_bytes: Floats) -> None:
        """Adds priced strategies, of which it keeps those that nothing beats."""
        new = np.flatnonzero(~self.beaten(step_s, device_bytes, rows.world))
        new = new[undominated(rounded(step_s[new]), device_bytes[new], rows.world[new])]
        if not len(new):
            return
        added = replace(rows.take(new), layouts=self._layouts)
        self.rows = added if self.rows is None else concatenated([self.rows, added])
        self.step_s = np.append(self.step_s, step_s[new])
        self.device_bytes = np.append(self.device_bytes, device_bytes[new])
        self.world = np.append(self.world, added.world)
        # What newcomers beat hides nothing, so it may stay until it is as much as the rest.
        self._take(np.argsort(self.step_s, kind="stable"))
        if len(self.step_s) > 2 * self._compacted:
            self.compact()

    def compact(self) -> None:
        """Drops what newcomers beat."""
        self._take(np.flatnonzero(undominated(rounded(self.step_s), self.device_bytes, self.world)))
        self._compacted = len(self.step_s)

    def _take(self, index: Ints) -> None:
        assert self.rows is not None
        self.rows, self.world = self.rows.take(index), self.world[index]
        self.step_s, self.device_bytes = self.step_s[index], self.device_bytes[index]
