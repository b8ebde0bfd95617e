"""Which task of a measurement comes next, what a budget leaves out, and how a slow machine is told from a fast one."""

from __future__ import annotations

from profiler.schedule import Schedule
from profiler.tasks import Task


def task(key: str, value: int, expected_s: float) -> Task:
    return Task(key, value, expected_s, lambda _rig: {})


def ran(schedule: Schedule, budget_s: float, *, slowness: float = 1.0) -> list[str]:
    """Keys in the order in which they run on a machine that takes so many times as long as expected."""
    keys, left_s = [], budget_s
    while (index := schedule.next(left_s)) is not None:
        taken = schedule.take(index)
        keys.append(taken.key)
        left_s -= slowness * taken.expected_s
        schedule.took(taken, slowness * taken.expected_s)
    return keys


def test_tasks_run_by_value_and_those_of_one_value_as_they_came() -> None:
    schedule = Schedule([task("c", 40, 1.0), task("a", 10, 1.0), task("d", 40, 1.0), task("b", 20, 1.0)])
    assert ran(schedule, 100.0) == ["a", "b", "c", "d"]
    assert schedule.left_out == []
    assert schedule.taken == 4


def test_what_does_not_fit_is_left_out_and_a_shorter_one_behind_it_still_runs() -> None:
    """Of 10 s the first takes 4; the second needs 7 of the 6 that are left, the third exactly 6; nothing is left for the fourth."""
    schedule = Schedule([task("a", 1, 4.0), task("b", 2, 7.0), task("c", 3, 6.0), task("d", 4, 1.0)])
    assert ran(schedule, 10.0) == ["a", "c"]
    assert schedule.left_out == ["b", "d"]


def test_what_an_earlier_run_finished_does_not_run_again() -> None:
    schedule = Schedule([task("a", 1, 1.0), task("b", 2, 1.0)], done={"a"})
    assert ran(schedule, 10.0) == ["b"]
    assert (schedule.taken, schedule.left_out) == (2, [])


def test_a_slow_machine_leaves_out_what_would_not_end_in_time() -> None:
    """Ten tasks of 2 s that take 4 s each. By the clock seven would begin within 26 s, the last of them at 24 s and over by 2 s.
    The pace has learned by then, and no task that has begun ends after the budget."""
    schedule = Schedule([task(str(number), number, 2.0) for number in range(10)])
    begun = ran(schedule, 26.0, slowness=2.0)
    assert begun == ["0", "1", "2", "3", "4", "5"]
    assert schedule.left_out == ["6", "7", "8", "9"]


def test_one_task_that_waited_does_not_push_out_all_others() -> None:
    """One of 1 s took 100 s: the next ones are expected to take three times as long, and not thirty."""
    for left_s, following in ((2.9, None), (3.0, 1)):
        schedule = Schedule([task("a", 1, 1.0), task("b", 2, 1.0), task("c", 3, 4.0)])
        schedule.took(schedule.take(0), 100.0)
        assert schedule.next(left_s) == following


def test_short_tasks_say_nothing_of_the_pace_and_a_fast_machine_at_most_half() -> None:
    """A task of 0.1 s that took 0.5 s is a fixed cost. Tasks that end at once leave the pace at half of what is expected."""
    schedule = Schedule([task("a", 1, 0.1), task("b", 2, 2.0)])
    schedule.took(schedule.take(0), 0.5)
    assert schedule.next(2.0) == 1
    for left_s, following, left_out in ((49.9, None, 10), (50.0, 10, 0)):
        fast = Schedule([task(str(number), number, 100.0) for number in range(20)])
        for index in range(10):
            fast.took(fast.take(index), 0.6)
        assert (fast.next(left_s), len(fast.left_out)) == (following, left_out)
