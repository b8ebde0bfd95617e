"""The k best strategies so far, what the next one must beat, and those that nearly fit."""

from __future__ import annotations

import numpy as np
import pytest

from builders import dense_model, job_of, rows_of
from cost_models.strategies.strategy import Strategies
from planner.search.kept import BOUND_SLACK, NEAREST_KEPT, Kept, Nearest

JOB = job_of(dense_model(8), global_batch_size=512)


def rows(*sizes: int) -> Strategies:
    """One strategy for each of these micro-batch sizes, which tell them apart."""
    return rows_of(JOB, *({"micro_batch_size": size} for size in sizes))


def test_of_nothing_there_is_nothing_to_beat() -> None:
    kept = Kept(2)
    assert [len(part) for part in (kept.values, kept.step_s, kept.at_risk, kept.safe_values)] == [0, 0, 0, 0]
    assert kept.rows is None
    assert kept.limit == np.inf


def test_the_kth_that_surely_fits_is_to_be_beaten_and_what_is_at_risk_ranks_last() -> None:
    """Of values 3, 1 and 2, of which 1 is at risk, two are kept: 2, then 3. A third that equals the second is compared by its degrees."""
    kept = Kept(2)
    kept.merge(rows(4, 1), np.array([3.0, 1.0]), np.array([30.0, 10.0]), np.array([False, True]))
    assert (kept.values.tolist(), kept.step_s.tolist(), kept.kth_value) == ([3.0, 1.0], [30.0, 10.0], np.inf)
    kept.merge(rows(2), np.array([2.0]), np.array([20.0]), np.array([False]))
    assert (kept.values.tolist(), kept.step_s.tolist(), kept.at_risk.tolist()) == (
        [2.0, 3.0],
        [20.0, 30.0],
        [False, False],
    )
    assert kept.limit == pytest.approx(3.0 * (1.0 + BOUND_SLACK), rel=1e-15)
    kept.merge(rows(1), np.array([3.0]), np.array([5.0]), np.array([False]))
    assert kept.rows is not None
    assert kept.rows.micro_batch_size.tolist() in ([2, 1], [2, 4])
    again = Kept(2)
    for size, value in ((1, 3.0), (2, 2.0), (4, 3.0)):
        again.merge(rows(size), np.array([value]), np.array([value]), np.array([False]))
    assert again.rows is not None
    assert again.rows.micro_batch_size.tolist() == kept.rows.micro_batch_size.tolist()
    kept.merge(rows(8), np.array([3.1]), np.array([31.0]), np.array([False]))
    assert kept.values.tolist() == [2.0, 3.0]


def test_the_nearest_are_those_that_need_least_in_rising_order() -> None:
    nearest, count = Nearest(), NEAREST_KEPT + 3
    nearest.merge(rows(*[1] * count), np.arange(count, 0.0, -1.0))
    assert nearest.needed.tolist() == list(range(1, NEAREST_KEPT + 1))
    nearest.merge(rows(2), np.array([0.5]))
    assert nearest.needed.tolist() == [0.5, *range(1, NEAREST_KEPT)]
    assert nearest.rows is not None
    assert nearest.rows.micro_batch_size.tolist()[:2] == [2, 1]
