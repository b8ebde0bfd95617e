"""The front: strategies that no other strategy beats in step time, memory, GPUs and cost per token at once.

It is exact: a strategy is priced unless the front so far beats a lower bound of both its time and its memory. Only past a stated
number of strategies is the front sampled instead. Either way it starts from the ranked plans, so that it cannot contradict them.
Splits of the layers beyond the listed ones are considered only as far as they are among these plans. Array suffix: D objectives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cost_models.evaluate import Verdict, memory_verdict
from cost_models.job import Job
from cost_models.memory import StageMemory, stage_memory
from cost_models.step.total import step_time
from cost_models.strategies.strategy import Bools, Floats, Ints, Strategies
from planner.rules import violations
from planner.search.base_rows import base_codes
from planner.search.bounds import Bounds, build_bounds, without_replicas_s
from planner.search.dominance import FrontSoFar
from planner.search.evolution import evolve
from planner.search.kept import BOUND_SLACK
from planner.search.leanest import least_memory, least_of_groups
from planner.search.objective import Goal
from planner.strategies.expansion import Pairs
from planner.strategies.space import Space
from planner.strategies.told import strategy_dict

MOST_SEARCHED = 200_000_000
"""Most strategies for which the front is searched exactly, which takes about a minute."""
OBJECTIVES = ("step_time_s", "peak_device_bytes", "num_gpus", "cost_per_token")
_BASE_ROWS = 1 << 13
"""Base rows that are bounded at a time. They come with a rising number of GPUs: what is done on few is done on more."""
_PAIRS = 1 << 20
"""Pairs that are bounded at a time."""
_ROWS = 1 << 14
"""Strategies that are priced at a time."""


@dataclass(frozen=True, eq=False)
class Front:
    """The strategies of the front, the fastest first."""

    rows: Strategies | None
    objectives_ND: Floats
    """By OBJECTIVES; the cost is in the currency of the price, or in GPU-seconds where no price is given."""
    method: Literal["exhaustive", "nsga-ii"]
    stopped: bool
    """Whether the search ended early, so that points may be missing."""


def pareto_front(
    space: Space,
    *,
    goal: Goal,
    headroom_fraction: float,
    seed: int,
    should_stop: Callable[[], bool] | None = None,
    method: Literal["exhaustive", "nsga-ii"] | None = None,
    known: Strategies | None = None,
    at_random: bool = False,
    most_searched: int = MOST_SEARCHED,
) -> Front:
    """The front of a space. Unless the `method` is given, it is searched exactly if it holds at most `most_searched` strategies.

    `known` are the ranked plans, and `at_random` draws the sample without evolution, to see what that is worth.
    """
    chosen = method or ("exhaustive" if int(space.mesh_sizes.sum()) <= most_searched else "nsga-ii")
    search = _FrontSearch(space, goal, headroom_fraction, should_stop, known)
    if len(space.degrees) and chosen == "exhaustive":
        search.run()
    elif len(space.degrees):
        evolve(
            space,
            price=search.add,
            num_objectives=len(OBJECTIVES),
            seed=seed,
            must_stop=search.must_stop,
            at_random=at_random,
        )
    front = search.front
    if front.rows is not None:
        front.compact()
    values = objectives(space.job, front.step_s, front.device_bytes, front.world)
    return Front(front.rows, values, chosen, search.stopped)


def front_documents(front: Front) -> list[dict[str, Any]]:
    """The contract's `pareto`."""
    if front.rows is None:
        return []
    return [
        {
            "strategy": strategy_dict(front.rows, index),
            **dict(zip(OBJECTIVES, front.objectives_ND[index].tolist(), strict=True)),
            "method": front.method,
        }
        for index in range(len(front.rows))
    ]


class _FrontSearch:
    """One search for the front."""

    def __init__(
        self,
        space: Space,
        goal: Goal,
        headroom_fraction: float,
        should_stop: Callable[[], bool] | None,
        known: Strategies | None,
    ) -> None:
        self.space, self.job, self.goal, self.headroom_fraction = space, space.job, goal, headroom_fraction
        self.should_stop, self.stopped = should_stop, False
        self.front = FrontSoFar(space.layouts if known is None else known.layouts)
        if known is not None:
            self.add(known)

    def must_stop(self) -> bool:
        """Whether the caller ends the search here."""
        self.stopped = self.stopped or (self.should_stop is not None and self.should_stop())
        return self.stopped

    def run(self) -> None:
        """Searches the whole space."""
        degrees = self.space.degrees
        order = np.argsort(degrees.worlds, kind="stable")
        before = np.cumsum(degrees.sizes[order]) - degrees.sizes[order]
        for meshes in np.split(order, np.flatnonzero(np.diff(before // _BASE_ROWS)) + 1):
            base = self.space.base(meshes)
            base = base.take(violations(self.job, base).only(base_codes(self.job)).legal)
            bounds = build_bounds(self.space, base)
            reached = np.flatnonzero(self.goal.reached(bounds.step_s))
            order = reached[np.argsort(bounds.step_s[reached], kind="stable")]
            parts = np.cumsum(self.space.multiplicity(base)[order]) // _PAIRS
            for part in np.split(order, np.flatnonzero(np.diff(parts)) + 1):
                if self.must_stop():
                    return
                self._expand(base.take(part), bounds.take(part))

    def _expand(self, base: Strategies, bounds: Bounds) -> None:
        """Prices what these base rows stand for, unless bounds of its time and memory are beaten."""
        memory = least_memory(self.space, base)
        alive = np.flatnonzero(~self._beaten(bounds.step_s, memory.of_rows, base.world))
        base, bounds, memory = base.take(alive), bounds.take(alive), memory.take(alive)
        pairs = self.space.distinct_pairs(base)
        least_s, least_bytes = bounds.paired_s(self.space, pairs), memory.of_pairs(pairs)
        order = np.argsort(least_s, kind="stable")
        for start in range(0, len(order), _ROWS):
            part = order[start : start + _ROWS]
            part = part[~self._beaten(least_s[part], least_bytes[part], base.world[pairs.origin[part]])]
            if len(part):
                self._price_pairs(base, bounds, pairs.take(part), least_s[part])

    def _price_pairs(self, base: Strategies, bounds: Bounds, pairs: Pairs, least_s: Floats) -> None:
        """Prices these pairs and then those of their groups of fewer ranks that are not beaten.

        Such a group holds more of the state on each rank and gains nothing but communication between replicas.
        """
        open_s, open_bytes = self._priced(base, bounds, pairs, least_s)
        groups = self.space.num_groups(base, pairs)
        which = np.flatnonzero((groups > 0) & np.isfinite(open_bytes))
        which = which[~self._beaten(open_s[which], open_bytes[which], base.world[pairs.origin[which]])]
        ends = np.flatnonzero(np.diff(np.cumsum(groups[which]) // _ROWS)) + 1
        for part in np.split(which, ends) if len(which) else ():
            grouped = self.space.grouped(base, pairs.take(part))
            self._priced(base, bounds, grouped, np.repeat(open_s[part], groups[part]))

    def _priced(self, base: Strategies, bounds: Bounds, pairs: Pairs, least_s: Floats) -> tuple[Floats, Floats]:
        """Adds what is legal, fits and is not beaten. Returns seconds and bytes that no group of fewer ranks saves, shape of
        `pairs`; the bytes are infinite where no such group is legal and fits.
        """
        open_s, open_bytes = least_s.copy(), np.full(len(pairs.origin), np.inf)
        rows = self.space.expand(base, pairs).rows
        legal = np.flatnonzero(violations(self.job, rows).legal)
        if not len(legal):
            return open_s, open_bytes
        rows = rows.take(legal)
        memory, fits = self._fitting(rows)
        limit = self.job.cluster.capacity_bytes * (1.0 - self.headroom_fraction)
        least = least_of_groups(self.job, memory)
        near = least.device_high - least.hole <= limit
        open_bytes[legal[near]] = (least.device - least.hole)[near]
        timed = fits[~self._beaten(least_s[legal[fits]], memory.device[fits], rows.world[fits])]
        if len(timed):
            some = rows.take(timed)
            time = step_time(self.job, some, tables=bounds.paired_tables(self.space, pairs.take(legal[timed])))
            open_s[legal[timed]] = np.maximum(least_s[legal[timed]], without_replicas_s(self.job, some, time))
            self._add(some, time.total_s, memory.device[timed])
        return open_s, open_bytes

    def add(self, rows: Strategies) -> Floats:
        """Adds what of these is legal, fits and meets the targets. Returns the objectives, infinite for all others, shape (N, D)."""
        found = np.full((len(rows), len(OBJECTIVES)), np.inf)
        legal = np.flatnonzero(violations(self.job, rows).legal)
        if not len(legal):
            return found
        memory, fits = self._fitting(rows.take(legal))
        if len(fits):
            some = rows.take(legal[fits])
            step_s = step_time(self.job, some).total_s
            self._add(some, step_s, memory.device[fits])
            values = objectives(self.job, step_s, memory.device[fits], some.world)
            found[legal[fits]] = np.where(self.goal.reached(step_s)[:, None], values, np.inf)
        return found

    def _fitting(self, rows: Strategies) -> tuple[StageMemory, Ints]:
        memory = stage_memory(self.job, rows)
        verdict, _ = memory_verdict(self.job, memory, headroom_fraction=self.headroom_fraction)
        return memory, np.flatnonzero(verdict == Verdict.FITS)

    def _add(self, rows: Strategies, step_s: Floats, device_bytes: Floats) -> None:
        reached = np.flatnonzero(self.goal.reached(step_s))
        self.front.add(rows.take(reached), step_s[reached], device_bytes[reached])

    def _beaten(self, least_s: Floats, least_bytes: Floats, world: Floats) -> Bools:
        """Where the front beats or equals these lower bounds."""
        # A bound and a price add the same numbers in different orders, so the bound may be the larger by their last bits.
        return self.front.beaten(least_s * (1.0 - BOUND_SLACK), least_bytes * (1.0 - BOUND_SLACK), world)


def objectives(job: Job, step_s: Floats, device_bytes: Floats, world: Floats) -> Floats:
    """The OBJECTIVES of strategies, shape (N, D)."""
    tokens = job.training.tokens_per_step
    each_hour = job.cluster.price_per_gpu_hour
    each_gpu_s = each_hour / 3600.0 if each_hour is not None else 1.0
    return np.column_stack([step_s, device_bytes, world, step_s * world * (each_gpu_s / tokens)])
