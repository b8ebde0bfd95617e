"""The gap that thresholds leave between the best split of a model and its bound, closed by CP-SAT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.strategies.layouts import Layout
from cost_models.strategies.strategy import Floats
from planner.splits.cp_sat import Solved, SolverError
from planner.splits.model import SplitModel

# Bounds and times are sums of the same numbers in different orders, which differ in their last bits.
TOLERANCE = 1e-9
"""Relative difference below which a split reaches its bound."""


@dataclass(slots=True)
class LeftOpen:
    """Bounds of the strategies whose best split is not known."""

    step_s: float = np.inf
    """Seconds of a step that none of them is below."""
    value: float = np.inf
    """The same of the value that is minimised, so that nothing up to it is beaten by any of them."""

    def add(self, steps_s: Floats, values: Floats) -> None:
        """Leaves strategies open."""
        # Where the objective weighs GPUs, the least seconds and the least value may be those of different strategies.
        self.step_s = min(self.step_s, float(np.min(steps_s, initial=np.inf)))
        self.value = min(self.value, float(np.min(values, initial=np.inf)))

    def sure(self, ranked: Sequence[float]) -> int:
        """How many of the first plans, whose values are these, none of them beats."""
        return sum(value <= self.value for value in ranked)


def left_open(sure: int) -> str:
    """What it means for a ranking that some strategies were left open, which beat none of its first `sure` plans."""
    work = "The search for the best split of every strategy is limited in work, and some strategies were left open."
    if not sure:
        where = 'the line of the table that begins with "Searched", and search.proof.gap of the answer'
        return f"{work} Plan 1 may be beaten, at most by the gap that is stated with the search ({where})."
    first = (
        "Plan 1 is proved to be the best"
        if sure == 1
        else f"Plans 1 to {sure} are proved to be the best, in this order"
    )
    return f"{work} {first}; behind that, faster splits than those listed may exist."


@dataclass(frozen=True, slots=True)
class Closed:
    """What CP-SAT made of a gap."""

    picked: tuple[int, ...] | None = None
    """A better split, None where there is none or none is known."""
    step_s: float = np.inf
    """Its step time."""
    layers: tuple[int, ...] | None = None
    """Layers of its virtual stages, where its choices do not say them."""
    unproven_s: float = np.inf
    """Seconds of a step that nothing better beats, where the best known split is not proven to be the best."""
    solved: bool = False
    failure: str | None = None
    """Why the solver could not be used."""
    layout: Layout | None = None
    """The better split where its choices do not say it."""


def has_gap(bound_s: float, best_s: float) -> bool:
    """Whether a split that matters may lie between the bound and the best that is known, or that counts."""
    return bound_s < best_s * (1.0 - TOLERANCE)


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
    return Closed(answer.picked, model.step_s(answer.picked), answer.layers, unproven_s, solved=True)
