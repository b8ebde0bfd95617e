"""How far a search has come: what it reports to its caller, a worker to the service, and a stream to whoever watches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search stands."""

    evaluated: float
    """Strategies, or with pools families of strategies, whose cost was computed."""
    best_s: float | None = None
    """Seconds of a training step of the best plan so far."""
    bound_s: float | None = None
    """Seconds of a step that no strategy can undercut."""
