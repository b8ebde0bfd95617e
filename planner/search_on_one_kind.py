"""One whole search: the listed splits exhaustively, then the best open split of every family that may still win."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.schemas.plan_request import PlanRequest
from planner.search.exhaustive import Exhaustive
from planner.search.found import Found
from planner.search.objective import Goal
from planner.search.progress import Progress
from planner.splits.search import OpenSplits, OpenSplitsFound, merged
from planner.strategies.axes import searched_values
from planner.strategies.searched_knobs import with_fallback_offload
from planner.strategies.space import Space


@dataclass(frozen=True, eq=False)
class SpaceOnOneKind:
    """What is searched for a request whose cluster has one kind of node; `SpaceOnPools` is the same for pools."""

    space: Space
    started: float | None = None
    """When the request arrived, on `perf_counter`'s clock; time limits count from there."""

    def search(
        self,
        goal: Goal,
        *,
        asked: PlanRequest,
        on_progress: Callable[[Progress], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Found:
        """The k best strategies, and how sure that is."""
        return search(
            self.space, goal=goal, asked=asked, on_progress=on_progress, should_stop=should_stop, started=self.started
        )

    def with_offload(self) -> SpaceOnOneKind | None:
        """What is searched where nothing of this fits: strategies that keep something in host memory."""
        space = with_fallback_offload(self.space)
        return None if space is None else replace(self, space=space)

    def values(self, found: Found) -> dict[str, Any]:
        """What was searched, by field, for the report."""
        values = searched_values(self.space)
        if "thresholds" in found.methods:
            values["layers_per_stage"] = [*values["layers_per_stage"], "the best of all"]
        return values


def search(
    space: Space,
    *,
    goal: Goal,
    asked: PlanRequest,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    started: float | None = None,
) -> Found:
    """The k best strategies of a space and of its open splits, and how sure that is.

    `started` is when the request was taken up, on `perf_counter`'s clock: time limits count from there.
    """
    constraints = asked.constraints
    exhaustive = Exhaustive(
        space,
        goal=goal,
        top_k=asked.top_k,
        headroom_fraction=constraints.memory_headroom_fraction,
        allow_at_risk=constraints.allow_at_risk,
        time_limit_s=asked.time_limit_s,
        on_progress=on_progress,
        should_stop=should_stop,
        keep_legal=splits_are_open(asked),
        started=started,
    )
    found = exhaustive.run()
    # Listed splits come first: their best plans are the limit below which open splits have to come.
    if found.stopped is None and splits_are_open(asked):
        _open_splits(exhaustive, asked, on_progress)
        found.elapsed_s = exhaustive.budget.elapsed_s
    return found


def splits_are_open(asked: PlanRequest) -> bool:
    """Whether the request asks for the best layers of every stage and does not fix them."""
    if "open_splits" not in asked.include:
        return False
    fixed, allowed = asked.constraints.fixed, asked.constraints.allowed
    return fixed.layers_per_stage is None and allowed.layers_per_stage is None and fixed.recompute_per_stage is None


def _open_splits(exhaustive: Exhaustive, asked: PlanRequest, on_progress: Callable[[Progress], None] | None) -> None:
    """Adds the best open splits to what an exhaustive search found."""
    space, goal, found = exhaustive.space, exhaustive.goal, exhaustive.found
    best_s = found.lower_bound_s

    def report(bound_s: float) -> None:
        if on_progress is not None:
            on_progress(Progress(evaluated=found.evaluated, best_s=best_s, bound_s=bound_s))

    searcher = OpenSplits(
        space,
        goal=goal,
        top_k=asked.top_k,
        headroom_fraction=asked.constraints.memory_headroom_fraction,
        known=exhaustive.kept.safe_values,
        should_stop=exhaustive.must_stop,
        on_family=report,
    )
    for base, bounds in exhaustive.legal:
        searcher.run(base, bounds)
    opened = searcher.close()
    opened.unproven_s = min(opened.unproven_s, exhaustive.unkept_s)
    before = found.best
    found.best = merged(space, before, opened.ranked, goal=goal, top_k=asked.top_k, at_risk=exhaustive.kept.at_risk)
    found.families = opened.families
    # Nobody counts the splits that a family's bound excludes: of what is not listed, only the splits that are ranked are counted.
    new = len(opened.ranked)
    found.total, found.evaluated, found.feasible = found.total + new, found.evaluated + new, found.feasible + new
    found.methods += ["thresholds"] * bool(opened.families) + ["cp-sat"] * bool(opened.solved)
    _prove(found, opened)
    if opened.inexpressible is not None:
        best = min(searcher.values, default=np.inf)
        found.inexpressible = opened.inexpressible.row if opened.inexpressible.value < best else None
    for failure in opened.failures:
        found.warnings.append(f"CP-SAT could not be used, so balanced splits stand unproven: {failure}")


def _prove(found: Found, opened: OpenSplitsFound) -> None:
    """Lowers the proof to what was left open."""
    steps = [candidate.step_s for candidate in opened.ranked]
    known = [found.lower_bound_s] if found.lower_bound_s is not None else []
    best_s = min([*known, *steps], default=np.inf)
    if opened.unproven_s < best_s:
        found.optimal = False
    bound_s = min(best_s, opened.unproven_s)
    found.lower_bound_s = bound_s if np.isfinite(bound_s) else None
