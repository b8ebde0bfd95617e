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
    evaluated: int = 0
    """Strategies whose time was computed."""
    bounded: int = 0
    """Strategies that a bound excluded."""
    feasible: int = 0
    """Legal strategies that fit, whether or not they were timed."""
    at_risk: int = 0
    """Legal strategies whose memory range crosses the limit."""
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
    families: int = 0
    """How many families of strategies had their split searched."""
    warnings: list[str] = field(default_factory=list)
    best_step_s: Floats | None = None
    """Seconds of a step of each of `best`, where the search knows them to the last bit that its proof rests on."""
    inexpressible_step_s: float | None = None
    unplaced: bool = False
    """Whether there are legal degrees, and none that find room on the pools."""
