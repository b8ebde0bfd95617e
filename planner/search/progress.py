"""How far a search has come. It reports this to its caller, a worker to the service, and a stream of events to clients."""

from __future__ import annotations

import math
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


def progress_of(evaluated: float, *, best_s: float | None, rest_s: float) -> Progress:
    """The state of a search whose remaining strategies take at least `rest_s` seconds a step, infinite where none remain."""
    # The best plan is a strategy, too: once all others are known to be slower, nothing undercuts it.
    bound_s = rest_s if best_s is None else min(rest_s, best_s)
    return Progress(evaluated, best_s, bound_s if math.isfinite(bound_s) else None)
