"""The k best strategies of a search so far, what the next one must beat, and those that nearly fit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cost_models.strategies.strategy import Floats, Strategies, concatenated
from planner.search.objective import ranked_order

NEAREST_KEPT = 32
"""Candidates kept for `nearest_infeasible`."""
BOUND_SLACK = 1e-9
"""Relative allowance for rounding when a bound is compared with the k-th best."""


class Kept:
    """At most k strategies, best first, those that may exceed memory last."""

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k
        self.rows: Strategies | None = None
        self.values = np.zeros(0)
        self.step_s = np.zeros(0)
        self.at_risk = np.zeros(0, np.bool_)

    def merge(self, rows: Strategies, values: Floats, step_s: Floats, at_risk: NDArray[np.bool_]) -> None:
        """Keeps the k best of what was kept before and these."""
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
        """Values of those that surely fit, best first."""
        return self.values[~self.at_risk]

    @property
    def limit(self) -> float:
        """Value above which a bound has lost."""
        return self.kth_value * (1.0 + BOUND_SLACK)

    @property
    def kth_value(self) -> float:
        """Value that a strategy must beat; infinite until k safe ones are known."""
        safe = self.safe_values
        return float(safe[-1]) if len(safe) >= self.top_k else np.inf


class Nearest:
    """Strategies that need the least memory of those that need too much, least first."""

    def __init__(self) -> None:
        self.rows: Strategies | None = None
        self.needed = np.zeros(0)

    def merge(self, rows: Strategies, needed: Floats) -> None:
        """Keeps the nearest of what was kept before and these, which need so many bytes."""
        if len(rows) > NEAREST_KEPT:
            few = np.flatnonzero(needed <= np.partition(needed, NEAREST_KEPT)[NEAREST_KEPT])
            rows, needed = rows.take(few), needed[few]
        if self.rows is not None:
            rows = concatenated([self.rows, rows])
            needed = np.concatenate([self.needed, needed])
        order = ranked_order(needed, rows, last=np.zeros(len(rows), np.bool_))[:NEAREST_KEPT]
        self.rows, self.needed = rows.take(order), needed[order]
