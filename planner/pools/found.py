"""Plans on pools and what a search for them found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from cost_models.strategies.layouts import Layout
from cost_models.strategies.strategy import ARRAY_FIELDS, Strategies
from planner.search.objective import TIE_BREAK_FIELDS


@dataclass(frozen=True)
class Plan:
    """One strategy on pools, a batch of one whose layout names them and holds every stage."""

    row: Strategies
    step_s: float
    value: float

    @property
    def layout(self) -> Layout:
        """Its split and pools."""
        return self.row.layouts.table[int(self.row.layout[0])]

    @cached_property
    def family(self) -> tuple[object, ...]:
        """What it shares with the plans that differ from it in their split alone."""
        fields = (getattr(self.row, name)[0].item() for name in ARRAY_FIELDS if name != "layout")
        return (*fields, self.layout.recompute_per_stage, self.layout.pool_per_stage)

    @cached_property
    def order(self) -> tuple[object, ...]:
        """What plans are ranked by: value, then degrees, layers and pools."""
        degrees = (float(getattr(self.row, name)[0]) for name in TIE_BREAK_FIELDS if name != "layout")
        return (self.value, *degrees, self.layout.layers, self.layout.pool_per_stage)


@dataclass(eq=False)
class PoolsFound:
    """Result of a search on pools."""

    best: list[Plan] = field(default_factory=list)
    """At most k, best first."""
    inexpressible: Plan | None = None
    """The best one that the framework cannot be told."""
    rejected: Counter[str] = field(default_factory=Counter)
    families: int = 0
    """Families whose split was asked for."""
    solved: int = 0
    """Of these, by CP-SAT."""
    feasible: int = 0
    """Plans that were ranked at some time."""
    unproven_s: float = np.inf
    """Least bound of what was left unproven or not looked at."""
    stopped: str | None = None
    failures: list[str] = field(default_factory=list)
    """Why the solver could not be used."""
    elapsed_s: float = 0.0
    nearest: Strategies | None = None
    """A strategy whose stages cannot hold the model, the one of these with the least bound."""
    unplaced: bool = False
    """Whether there are legal degrees, and none that find room on the pools."""

    @property
    def optimal(self) -> bool:
        """Whether nothing better lies in the space."""
        return self.stopped is None and not self.unproven_s < self.best_s

    @property
    def best_s(self) -> float:
        """The least step time that is ranked."""
        return min((plan.step_s for plan in self.best), default=np.inf)

    @property
    def lower_bound_s(self) -> float | None:
        """Seconds of a step that nothing in the space beats."""
        found = min(self.unproven_s, self.best_s)
        return float(found) if np.isfinite(found) else None
