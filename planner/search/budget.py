"""When a search ends: asked to by the caller, out of time, or since nothing that is left can still win."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from cost_models.strategies.strategy import Floats, Ints


@dataclass(slots=True)
class Budget:
    """What a search may take."""

    time_limit_s: float | None = None
    should_stop: Callable[[], bool] | None = None
    started: float | None = None
    """On `perf_counter`'s clock, from where the time limit counts; now unless given."""
    stopped: str | None = None
    """"time" or "cancelled" once it is spent."""

    def __post_init__(self) -> None:
        if self.started is None:
            self.started = perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        assert self.started is not None
        return perf_counter() - self.started

    def must_stop(self) -> bool:
        """Whether the caller or the time limit ends the search here."""
        if self.should_stop is not None and self.should_stop():
            self.stopped = "cancelled"
        elif self.time_limit_s is not None and self.elapsed_s > self.time_limit_s:
            self.stopped = "time"
        return self.stopped is not None


def best_first(
    values: Floats, *, limit: Callable[[], float], most: int, sizes: Ints | None = None
) -> Iterator[tuple[Ints, Ints]]:
    """Parts of these candidates by rising bound, each with all that are left from there on, until none of them can win.

    A candidate's bound is a value that nothing it stands for is below. So once the least bound that is left exceeds what a
    newcomer must beat, which only falls while parts are searched, the rest has lost.

    Args:
        values: bounds of the candidates, shape (N,).
        limit: the value above which nothing counts, asked before each part.
        most: how much a part holds, at least one candidate.
        sizes: what each candidate counts, 1 unless given.
    """
    # A stable sort keeps candidates of equal bound in their own order, so that a search repeats itself exactly.
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(np.ones(len(order), np.int64) if sizes is None else sizes[order])
    start = 0
    while start < len(order) and values[order[start]] <= limit():
        before = ends[start - 1] if start else 0
        stop = max(int(np.searchsorted(ends, before + most, "right")), start + 1)
        yield order[start:stop], order[start:]
        start = stop
