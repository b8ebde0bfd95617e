"""When a search ends: best first until nothing that is left can win, by the caller's word, or by the clock."""

from __future__ import annotations

import numpy as np

from planner.search.budget import Budget, best_first

VALUES = np.array([5.0, 1.0, 4.0, 2.0, 3.0])


def test_candidates_come_by_rising_bound_with_all_that_is_left() -> None:
    parts = [(part.tolist(), rest.tolist()) for part, rest in best_first(VALUES, limit=lambda: np.inf, most=2)]
    assert parts == [([1, 3], [1, 3, 4, 2, 0]), ([4, 2], [4, 2, 0]), ([0], [0])]


def test_the_limit_is_asked_before_each_part() -> None:
    """It falls to 2.5 once 1 and 2 are searched: 3 is the least that is left and has lost."""
    limits = iter([np.inf, 2.5])
    assert [part.tolist() for part, _ in best_first(VALUES, limit=lambda: next(limits), most=2)] == [[1, 3]]


def test_a_bound_that_equals_the_limit_may_still_win() -> None:
    assert [part.tolist() for part, _ in best_first(VALUES, limit=lambda: 1.0, most=1)] == [[1]]


def test_parts_hold_as_much_as_sizes_allow_and_at_least_one() -> None:
    """In order of value the sizes are 9, 3, 2, 2, 1: 9 alone, 3 + 2, then 2 + 1."""
    sizes = np.array([1, 9, 2, 3, 2])
    parts = [part.tolist() for part, _ in best_first(VALUES, limit=lambda: np.inf, most=5, sizes=sizes)]
    assert parts == [[1], [3, 4], [2, 0]]


def test_nothing_has_no_parts() -> None:
    assert list(best_first(np.zeros(0), limit=lambda: np.inf, most=3)) == []


def test_a_budget_says_why_it_is_spent() -> None:
    assert not Budget().must_stop()
    cancelled = Budget(should_stop=lambda: True)
    assert cancelled.must_stop()
    assert cancelled.stopped == "cancelled"
    late = Budget(time_limit_s=1.0, started=Budget().started - 2.0)
    assert late.must_stop()
    assert late.stopped == "time"
    assert not Budget(time_limit_s=1000.0, started=Budget().started - 2.0).must_stop()
