"""What repeats in the events of a step: found in the times at which tasks start, not assumed from the schedule's name.

A period takes P seconds and q micro-batches if every task that starts in it has its like q micro-batches and P seconds later: the
same kind on the same virtual stage. Where that holds for several periods on end, one of them tells all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.timeline.orders import Kind
from planner.timeline.play import Events, Floats

_SAME_TIME = 1e-9
"""Share of a step by which two times may differ through rounding alone."""
_LEAST_REPEATS = 3
"""Periods on end from which folding them shortens a figure enough to be worth its explanation."""
_LEAST_SHARE = 0.05
"""Share of a step that a stretch must cover to be worth a panel of its own."""
_MOST_PERIODS = 3
"""Different lengths of a period that are tried: forwards and backwards of a schedule without pairs have one each."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """A stretch of equal periods."""

    start_s: float
    """When the first one begins."""
    period_s: float
    count: int
    micro_batches: int
    """Micro-batches that pass every virtual stage in one period."""

    @property
    def end_s(self) -> float:
        """When the last one ends."""
        return self.start_s + self.count * self.period_s


def repeats(events: Events, *, micro_batches: int, round_: int) -> tuple[Repeat, ...]:
    """The stretches that repeat, in the order of time; empty where nothing does.

    Args:
        events: of one step.
        micro_batches: of the step.
        round_: micro-batches after which the order of tasks repeats (`orders.round_of`).
    """
    if micro_batches <= round_:
        return ()
    tolerance = _SAME_TIME * events.seconds
    later_E = _later_s(events, micro_batches=micro_batches, round_=round_)
    found: list[Repeat] = []
    for period in _periods(later_E, tolerance=tolerance):
        found += _stretches(events, later_E, period=period, round_=round_, tolerance=tolerance)
    # The longest first: where two overlap, it leaves the least to be drawn.
    chosen: list[Repeat] = []
    for each in sorted(found, key=lambda repeat: repeat.start_s - repeat.end_s):
        if each.end_s - each.start_s < _LEAST_SHARE * events.seconds:
            break
        if all(each.end_s <= other.start_s + tolerance or other.end_s <= each.start_s + tolerance for other in chosen):
            chosen.append(each)
    return tuple(sorted(chosen, key=lambda repeat: repeat.start_s))


def _later_s(events: Events, *, micro_batches: int, round_: int) -> Floats:
    """Seconds from every task to its like a round later, shape (E,); infinite where there is none."""
    stages = 1 + int(events.stage_E.max())
    # A data gradient and a whole backward are the same pass of a micro-batch, so that one table of three passes holds all tasks.
    kind_E = events.kind_E
    pass_E = np.select([kind_E == Kind.FORWARD, kind_E == Kind.WEIGHT_GRADIENT], [0, 2], 1)
    number = np.full((3, stages, micro_batches + round_), -1, np.int64)
    number[pass_E, events.stage_E, events.micro_batch_E] = np.arange(len(events))
    next_E = number[pass_E, events.stage_E, events.micro_batch_E + round_]
    alike = (next_E >= 0) & (kind_E[next_E] == kind_E) & (events.paired_E[next_E] == events.paired_E)
    return np.where(alike, events.start_E[next_E] - events.start_E, np.inf)


def _periods(later_E: Floats, *, tolerance: float) -> list[float]:
    """The commonest distances in time between a task and its like, the commonest first."""
    finite = np.sort(later_E[np.isfinite(later_E)])
    if not len(finite):
        return []
    # Equal distances differ by rounding, which may straddle any grid; so they are told apart where a gap separates them.
    parts = np.split(finite, np.flatnonzero(np.diff(finite) > tolerance) + 1)
    parts.sort(key=len, reverse=True)
    return [float(np.median(part)) for part in parts[:_MOST_PERIODS] if np.median(part) > tolerance]


def _stretches(events: Events, later_E: Floats, *, period: float, round_: int, tolerance: float) -> list[Repeat]:
    """Every stretch of this period."""
    follows = np.abs(later_E - period) <= tolerance
    preceded = _preceded(events, follows, round_=round_)
    # A stretch from a to b holds no task without its like later before b - P, and none without its like earlier from a + P on.
    barred = np.sort(np.concatenate([events.start_E[~follows], events.start_E[~preceded] - period]))
    # The end of the step bars as well: no period reaches beyond it.
    barred = np.concatenate([barred, [events.seconds - period]])
    # Most gaps are those between tasks; only few are as long as several periods.
    long = np.diff(barred) > (_LEAST_REPEATS - 1) * period - tolerance
    begin, end = barred[:-1][long], barred[1:][long]
    starts, ends = np.sort(events.start_E), events.end_E[np.argsort(events.start_E, kind="stable")]
    over = np.maximum.accumulate(ends)
    found = []
    for left, right in zip(begin.tolist(), end.tolist(), strict=True):
        # What runs while the stretch begins must be part of it too, so it begins when the last task from before is over.
        before = int(np.searchsorted(starts, left + tolerance))
        start = max(left, float(over[before - 1])) if before else max(left, 0.0)
        first = int(np.searchsorted(starts, start - tolerance))
        if first == len(starts):
            continue
        start = max(float(starts[first]), 0.0)
        count = int((right - start + tolerance) // period) + 1 if right > start else 0
        if count >= _LEAST_REPEATS:
            found.append(Repeat(start, period, count, round_))
    return found


def _preceded(events: Events, follows: NDArray[np.bool_], *, round_: int) -> NDArray[np.bool_]:
    """Whether every task has its like one period earlier."""
    stages, most = 1 + int(events.stage_E.max()), int(events.micro_batch_E.max()) + 1
    kind_E = events.kind_E
    known = np.zeros((len(Kind), stages, most + round_), np.bool_)
    known[kind_E[follows], events.stage_E[follows], events.micro_batch_E[follows] + round_] = True
    return np.asarray(known[kind_E, events.stage_E, events.micro_batch_E])
