"""Which task comes next within a budget: the most telling one that is expected to end in time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from profiler.tasks import Task

_TELLING_S = 0.5
"""Shorter tasks are mostly fixed costs and say little of how fast this machine is."""
_NEWEST = 0.3
"""Weight of the newest task in the moving average of the pace."""
_LEAST_PACE, _MOST_PACE = 0.5, 3.0
"""Bounds of the pace, measured over expected seconds."""


class Schedule:
    """Tasks in the order of their value, of which those that would not end in time are left out rather than cut off."""

    def __init__(self, tasks: Iterable[Task], *, done: Iterable[str] = ()) -> None:
        """With the keys of the tasks that an earlier run has finished."""
        self.tasks: Sequence[Task] = sorted(tasks, key=lambda task: task.value)
        self.left_out: list[str] = []
        self._done = set(done)
        self._pace = 1.0

    @property
    def taken(self) -> int:
        """How many tasks are done, are being done or were left out."""
        return len(self._done)

    def next(self, left_s: float) -> int | None:
        """Place in `tasks` of the next one that fits into the seconds that are left; None if none does.

        One that does not fit is left out for good, and a shorter one further down may still fit.
        """
        for index, task in enumerate(self.tasks):
            if task.key in self._done:
                continue
            if task.expected_s * self._pace <= left_s:
                return index
            self._done.add(task.key)
            self.left_out.append(task.key)
        return None

    def take(self, index: int) -> Task:
        """The task at this place, which is never next again."""
        task = self.tasks[index]
        self._done.add(task.key)
        return task

    def took(self, task: Task, seconds: float) -> None:
        """Learns from how long a task took beside what it was expected to: a slow host, or one that compiles, shows here.

        A moving average within bounds, so that one task that waited for a disk or for the compiler does not push out all others.
        """
        if seconds > _TELLING_S:
            pace = (1.0 - _NEWEST) * self._pace + _NEWEST * seconds / task.expected_s
            self._pace = max(_LEAST_PACE, min(_MOST_PACE, pace))
