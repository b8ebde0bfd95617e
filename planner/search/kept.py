"""The k best strategies of a search so far, the value that the next one must beat, and the strategies that nearly fit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cost_models.strategies.strategy import Floats, Strategies, concatenated
from planner.search.objective import ranked_order

NEAREST_KEPT = 32
"""Candidates that are kept for `nearest_infeasible`, of which those that some change makes fit are shown."""
BOUND_SLACK = 1e-9
"""Relative slack when a bound is compared with the k-th best value.

A bound and a time add the same numbers in different orders, so their last bits differ. Without slack a bound could exclude the very
strategy that reaches it.
"""


class Kept:
    """At most k strategies, best first; those whose memory is at risk come last."""

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k
        self.rows: Strategies | None = None
        self.values = np.zeros(0)
        self.step_s = np.zeros(0)
        self.at_risk = np.zeros(0, np.bool_)

    def merge(self, rows: Strategies, values: Floats, step_s: Floats, at_risk: NDArray[np.bool_]) -> None:
        """Keeps the k best among these and those kept before."""
        # Equal values are merged too: which of them is kept must follow from their degrees, not from when they were found.
        promising = np.flatnonzero(values <= self.kth_value)
        if not len(promising):
            return
        rows, values, step_s, at_risk = rows.take(promising), values[promising], step_s[promising], at_risk[promising]
        if self.rows is not None:
            rows = concatenated([self.rows, rows])
            values, step_s = np.concatenate([self.values, values]), np.concatenate([self.step_s, step_s])
            at_risk = np.concatenate([self.at_risk, at_risk])
        order = ranked_order(values, rows, last=at_risk)[: self.top_k]
        self.rows, self.values = rows.take(order), values[order]
        self.step_s, self.at_risk = step_s[order], at_risk[order]

    @property
    def safe_values(self) -> Floats:
        """The values of those that surely fit, best first."""
        return self.values[~self.at_risk]

    @property
    def limit(self) -> float:
        """The value above which a bound has lost."""
        return self.kth_value * (1.0 + BOUND_SLACK)

    @property
    def kth_value(self) -> float:
        """The value that a strategy must beat; infinite until k strategies that surely fit are known."""
        # Strategies at risk rank behind all safe ones, so they raise no bar for those that are still to come.
        safe = self.safe_values
        return float(safe[-1]) if len(safe) >= self.top_k else np.inf


class Nearest:
    """Among the strategies that need too much memory, those that need the least, in rising order."""

    def __init__(self) -> None:
        self.rows: Strategies | None = None
        self.needed = np.zeros(0)

    def merge(self, rows: Strategies, needed: Floats) -> None:
        """Keeps the nearest among these and those kept before; `needed` are the bytes of each."""
        if len(rows) > NEAREST_KEPT:
            few = np.flatnonzero(needed <= np.partition(needed, NEAREST_KEPT)[NEAREST_KEPT])
            rows, needed = rows.take(few), needed[few]
        if self.rows is not None:
            rows = concatenated([self.rows, rows])
            needed = np.concatenate([self.needed, needed])
        order = ranked_order(needed, rows, last=np.zeros(len(rows), np.bool_))[:NEAREST_KEPT]
        self.rows, self.needed = rows.take(order), needed[order]
