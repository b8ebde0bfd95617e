"""One whole search: the listed splits exhaustively, then the best open split of every family that may still win."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from planner.schemas.plan_request import PlanRequest
from planner.search.exhaustive import Exhaustive
from planner.search.found import Found
from planner.search.objective import Goal
from planner.search.progress import Progress
from planner.strategies.axes import opened, searched_values
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
            from planner.splits.on_one_kind import open_values
            from planner.splits.search import counts_are_given

            values["layers_per_stage"] = [*values["layers_per_stage"], *open_values(self.space)]
            values["vpp"] = found.vpps
            if values["recompute_num_layers"] and not counts_are_given(self.space):
                values["recompute_num_layers"] += ["every count up to the longest chunk of an open split"]
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
    opens = opened(space, constraints) if splits_are_open(asked) else None
    exhaustive = Exhaustive(
        space,
        goal=goal,
        top_k=asked.top_k,
        headroom_fraction=constraints.memory_headroom_fraction,
        allow_at_risk=constraints.allow_at_risk,
        time_limit_s=asked.time_limit_s,
        on_progress=on_progress,
        should_stop=should_stop,
        opened=opens,
        started=started,
    )
    found = exhaustive.run()
    # Listed splits come first: their best plans are the limit below which open splits have to come.
    if found.stopped is None and opens is not None:
        # Few requests ask for them, and the others need not load a search of their own.
        from planner.splits.on_one_kind import add_open_splits

        add_open_splits(exhaustive, opens, asked, on_progress)
        found.elapsed_s = exhaustive.budget.elapsed_s
    return found


def splits_are_open(asked: PlanRequest) -> bool:
    """Whether the request asks for the best layers of every stage and does not fix them."""
    if "open_splits" not in asked.include:
        return False
    fixed, allowed = asked.constraints.fixed, asked.constraints.allowed
    return fixed.layers_per_stage is None and allowed.layers_per_stage is None and fixed.recompute_per_stage is None
