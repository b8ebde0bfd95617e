"""How far a search has come. It reports this to its caller, a worker to the service, and a stream of events to clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a search."""

    evaluated: float
    """Strategies whose cost was computed; families of strategies where the cluster has pools."""
    best_s: float | None = None
    """Seconds per training step of the best plan so far."""
    bound_s: float | None = None
    """Seconds per training step that no strategy can undercut."""
