"""What a search returns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from cost_models.strategies.strategy import Strategies


@dataclass(eq=False)
class Found:
    """Result of a search."""

    best: Strategies | None
    """At most k strategies, best first."""
    rejected: Counter[str]
    evaluated: int = 0
    """Strategies whose time was computed."""
    bounded: int = 0
    """Strategies that a bound excluded."""
    feasible: int = 0
    """Legal strategies that fit, whether or not they were timed."""
    at_risk: int = 0
    nearest: Strategies | None = None
    """Strategies that break only the memory limit, least excess first."""
    optimal: bool = True
    lower_bound_s: float | None = None
    elapsed_s: float = 0.0
    stopped: str | None = None
    """"time" or "cancelled" where the search ended early."""
    methods: list[str] = field(default_factory=lambda: ["exhaustive"])
    inexpressible: Strategies | None = None
    """A better strategy that the framework cannot be told, a batch of one."""
    families: int = 0
    """Families of strategies whose split was searched."""
    warnings: list[str] = field(default_factory=list)
