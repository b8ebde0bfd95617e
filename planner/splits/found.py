"""What a search of open splits found on one kind of node, and how it joins the plans with listed splits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cost_models.step.total import step_time
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.strategy import Strategies, concatenated
from planner.search.objective import Goal, ranked_order
from planner.splits.gaps import LeftOpen
from planner.splits.one_pool import OnePoolSplit
from planner.strategies.space import Space


@dataclass(frozen=True, slots=True)
class Candidate:
    """The best split of one family."""

    row: Strategies
    """A batch of one."""
    layout: Layout
    step_s: float
    value: float


@dataclass(eq=False)
class OpenSplitsFound:
    """What the open splits added."""

    ranked: list[Candidate] = field(default_factory=list)
    inexpressible: Candidate | None = None
    families: int = 0
    """Families whose split was solved."""
    solved: int = 0
    """Of these, by CP-SAT."""
    left: LeftOpen = field(default_factory=LeftOpen)
    """Families that were left unproven."""
    failures: list[str] = field(default_factory=list)
    """Why the solver could not be used."""
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Best:
    """The best split of one model so far."""

    model: OnePoolSplit
    layout: Layout | None
    step_s: float


@dataclass(slots=True)
class Gap:
    """A family whose best known split lies above its bound."""

    best: Best
    row: Strategies
    bound_s: float
    kept: Candidate | None
    """What of it is ranked."""


def merged(
    space: Space,
    best: Strategies | None,
    candidates: list[Candidate],
    *,
    goal: Goal,
    top_k: int,
    at_risk: NDArray[np.bool_],
) -> Strategies | None:
    """The k best of the ranked plans and the new splits, over one table of layouts; `at_risk` ones of both come last."""
    if not candidates:
        return best
    table = list(space.layouts.table) + [candidate.layout for candidate in candidates]
    layouts = build_layouts(table, model=space.job.model)
    known = [] if best is None else [replace(best, layouts=layouts)]
    new = [
        replace(candidate.row, layouts=layouts, layout=np.array([len(space.layouts.table) + number]))
        for number, candidate in enumerate(candidates)
    ]
    rows = concatenated([*known, *new])
    values = goal.value(rows, step_time(space.job, rows).total_s)
    return rows.take(ranked_order(values, rows, last=at_risk)[:top_k])
