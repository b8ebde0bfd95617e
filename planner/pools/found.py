"""Plans on pools, and the result of a search for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from cost_models.strategies.layouts import Layout
from cost_models.strategies.strategy import ARRAY_FIELDS, Strategies
from planner.search.objective import TIE_BREAK_FIELDS
from planner.splits.gaps import LeftOpen


@dataclass(frozen=True)
class Plan:
    """One strategy on pools: a batch of one whose layout names the pools and holds every stage."""

    row: Strategies
    step_s: float
    value: float

    @property
    def layout(self) -> Layout:
        """The split of the layers and the pools of the stages."""
        return self.row.layouts.table[int(self.row.layout[0])]

    @cached_property
    def family(self) -> tuple[object, ...]:
        """What this plan shares with all plans that differ from it only in their split."""
        fields = (getattr(self.row, name)[0].item() for name in ARRAY_FIELDS if name != "layout")
        return (*fields, self.layout.recompute_per_stage, self.layout.pool_per_stage)

    @cached_property
    def order(self) -> tuple[object, ...]:
        """The key by which plans are ranked: value, then degrees, layers and pools."""
        degrees = (float(getattr(self.row, name)[0]) for name in TIE_BREAK_FIELDS if name != "layout")
        return (self.value, *degrees, self.layout.layers, self.layout.pool_per_stage)


@dataclass(eq=False)
class PoolsFound:
    """The result of a search on pools."""

    best: list[Plan] = field(default_factory=list)
    """At most k plans, best first."""
    inexpressible: Plan | None = None
    """The best plan that the framework cannot be told to run."""
    rejected: Counter[str] = field(default_factory=Counter)
    families: int = 0
    """How many families had their split searched."""
    solved: int = 0
    """How many of these were solved by CP-SAT."""
    total: int = 0
    """Strategies of the searched space, each once for every placement. One stands for all splits of its layers."""
    evaluated: int = 0
    """Of these, the strategies of which a split was priced that the framework can be told."""
    feasible: int = 0
    """Of these, the ones that meet the targets."""
    unsearched: int = 0
    """Strategies that an early stop or a limit on work left out."""
    left: LeftOpen = field(default_factory=LeftOpen)
    """Families that were left unproven or were not looked at."""
    stopped: str | None = None
    failures: list[str] = field(default_factory=list)
    """Why the solver could not be used, where it could not."""
    elapsed_s: float = 0.0
    nearest: Strategies | None = None
    """Of the strategies whose stages cannot hold the model, the one with the least bound."""
    unplaced: bool = False
    """Whether there are legal degrees, but none of them find room on the pools."""

    @property
    def bounded(self) -> int:
        """Strategies that a bound excluded: whatever is neither rejected, nor priced, nor left out."""
        return self.total - self.rejected.total() - self.feasible - self.unsearched

    @property
    def optimal(self) -> bool:
        """Whether the space holds nothing better."""
        beaten = self.left.step_s < self.best_s or self.left.value < min(
            (plan.value for plan in self.best), default=np.inf
        )
        return self.stopped is None and not beaten

    @property
    def best_s(self) -> float:
        """The shortest step among the ranked plans, in seconds."""
        return min((plan.step_s for plan in self.best), default=np.inf)

    @property
    def lower_bound_s(self) -> float | None:
        """Seconds of a step that nothing in the space can beat; None where that is unknown."""
        found = min(self.left.step_s, self.best_s)
        return float(found) if np.isfinite(found) else None
