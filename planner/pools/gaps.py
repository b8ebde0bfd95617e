"""Gaps that unequal virtual stages leave on pools, closed once the balanced splits of all families are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from cost_models.strategies.layouts import Layout
from planner.splits.descent import settle
from planner.splits.gaps import Closed, has_gap
from planner.splits.paths import Paths, close_by_paths
from planner.splits.several_pools import PooledSplit


@dataclass(frozen=True, eq=False)
class Gap:
    """A split over unequal virtual stages that lies above its bound."""

    model: PooledSplit
    weight: float
    bound_s: float
    layout: Layout | None
    step_s: float

    def descended(self, *, should_stop: Callable[[], bool]) -> Gap:
        """The same after a descent from its split."""
        assert self.layout is not None
        end = settle(self.model, self.layout.layers, counts=None, bound_s=self.bound_s, should_stop=should_stop)
        return replace(self, layout=self.model.layout_of(end.layers), step_s=end.step_s)


def close_gaps(
    gaps: list[Gap],
    *,
    limit_s: Callable[[Gap], float],
    best_s: Callable[[Gap], float],
    take: Callable[[Gap, Closed], None],
    must_stop: Callable[[], bool],
) -> None:
    """Closes the gaps that may still hide a winner, least bound first; `take` gets what became of each.

    `limit_s` is the step time above which nothing of a family counts, and `best_s` that of the best plan; both fall as `take`
    ranks better splits.
    """
    # Mostly a descent reaches the bound, and the limit then excludes most others.
    descended = []
    for gap in sorted(gaps, key=lambda gap: gap.bound_s):
        if gap.layout is not None and has_gap(gap.bound_s, min(gap.step_s, limit_s(gap))) and not must_stop():
            better = gap.descended(should_stop=must_stop)
            take(gap, Closed(layout=better.layout, step_s=better.step_s))
            gap = better  # noqa: PLW2901 - the same gap, of which more is known
        descended.append(gap)
    paths = Paths()
    for gap in descended:
        target_s = min(gap.step_s, limit_s(gap))
        if not has_gap(gap.bound_s, target_s):
            continue
        if must_stop():
            take(gap, Closed(unproven_s=gap.bound_s))
            continue
        closed = close_by_paths(
            gap.model,
            bound_s=gap.bound_s,
            target_s=target_s,
            may_be_first=gap.bound_s < best_s(gap),
            paths=paths,
            should_stop=must_stop,
        )
        take(gap, closed)
