"""The gap that thresholds leave between the best split of a model and its bound, closed by CP-SAT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.splits.cp_sat import Solved, SolverError
from planner.splits.model import SplitModel
from planner.splits.thresholds import Balanced

# Bounds and times are sums of the same numbers in different orders, which differ in their last bits.
TOLERANCE = 1e-9
"""Relative difference below which a split reaches its bound."""


@dataclass(frozen=True, slots=True)
class Closed:
    """What CP-SAT made of a gap."""

    picked: tuple[int, ...] | None = None
    """A better split, None where there is none or none is known."""
    step_s: float = np.inf
    """Its step time."""
    unproven_s: float = np.inf
    """Seconds of a step that nothing better beats, where the best known split is not proven to be the best."""
    solved: bool = False
    failure: str | None = None
    """Why the solver could not be used."""


def has_gap(balanced: Balanced, *, limit_s: float) -> bool:
    """Whether a split that matters may lie between the bound and the split that thresholds found."""
    return balanced.bound_s < min(balanced.step_s, limit_s) * (1.0 - TOLERANCE)


def close_gap(
    model: SplitModel,
    *,
    bound_s: float,
    target_s: float,
    solver: Callable[..., Solved],
    should_stop: Callable[[], bool],
) -> Closed:
    """Asks for a split of the model that beats `target_s`; where the solver fails, `bound_s` stands unproven."""
    try:
        answer = solver(model, hint=None, limit_s=target_s, should_stop=should_stop)
    except SolverError as error:
        return Closed(unproven_s=bound_s, failure=error.message)
    unproven_s = np.inf if answer.proven else max(bound_s, answer.bound_s)
    if answer.picked is None:
        return Closed(unproven_s=unproven_s, solved=True)
    return Closed(answer.picked, model.step_s(answer.picked), unproven_s, solved=True)
