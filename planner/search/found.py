"""The result of a search."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from cost_models.strategies.strategy import Floats, Strategies


@dataclass(eq=False)
class Found:
    """What a search found, and how sure that is."""

    best: Strategies | None
    """At most k strategies, best first; None where there is none."""
    rejected: Counter[str]
    """How many strategies were ruled out, by reason code."""
    total: int = 0
    """Strategies of the searched space. Each is bounded, rejected, feasible or unsearched."""
    bounded: int = 0
    """Strategies that a bound excluded, or that repeat another one since they differ only where nothing depends on it."""
    evaluated: int = 0
    """Strategies that were priced: those that are feasible, and those that turned out to miss a target."""
    feasible: int = 0
    """Of the strategies that were priced, those that may be ranked: they are legal, fit and meet the targets."""
    unsearched: int = 0
    """Strategies that an early stop left out."""
    nearest: Strategies | None = None
    """Strategies that only need too much memory, those with the least excess first."""
    optimal: bool = True
    """Whether nothing in the searched space can be better than `best`."""
    lower_bound_s: float | None = None
    """Seconds of a step that no strategy of the space can undercut."""
    elapsed_s: float = 0.0
    stopped: str | None = None
    """Why the search ended early, "time" or "cancelled"; None where it did not."""
    methods: list[str] = field(default_factory=lambda: ["exhaustive"])
    inexpressible: Strategies | None = None
    """A better strategy that the framework cannot be told to run, a batch of one."""
    vpps: list[int] = field(default_factory=list)
    """Virtual stages that open splits tried."""
    families: int = 0
    """How many families of strategies had their split searched."""
    warnings: list[str] = field(default_factory=list)
    best_step_s: Floats | None = None
    """Seconds of a step of each of `best`, where the search knows them to the last bit that its proof rests on."""
    inexpressible_step_s: float | None = None
    unplaced: bool = False
    """Whether there are legal degrees, and none that find room on the pools."""

    def add_counts(self, before: Found) -> None:
        """Counts what a search of other strategies became of too."""
        self.rejected.update(before.rejected)
        self.total, self.bounded = self.total + before.total, self.bounded + before.bounded
        self.evaluated, self.feasible = self.evaluated + before.evaluated, self.feasible + before.feasible
        self.unsearched += before.unsearched

    def count_unsearched(self) -> None:
        """Counts what of the space was neither excluded nor priced; called once, when the search has ended."""
        self.unsearched = self.total - self.bounded - self.rejected.total() - self.feasible
        assert self.unsearched >= 0
        assert self.stopped is not None or not self.unsearched
