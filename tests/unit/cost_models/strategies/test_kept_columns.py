"""Columns that the batches of one job share: what is built, what is looked up, and for whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cost_models.job import Job
from cost_models.strategies.kept_columns import MOST_IN_ALL, kept_columns, kept_in_all
from cost_models.strategies.strategy import Strategies
from tests.builders import job_of, llama_model, rows_of


class _Counted:
    """Builds tp * 10 + the further number, and remembers the tp of the rows that it was asked for."""

    def __init__(self) -> None:
        self.built: list[list[float]] = []

    def __call__(self, rows: Strategies, more: Any) -> tuple[Any, ...]:
        self.built.append(rows.tp.tolist())
        return rows.tp * 10.0 + more, np.stack([rows.tp, more])


def _job() -> Job:
    """A job that no other test has, since equal requests may resolve to one object."""
    return replace(job_of(llama_model()))


def _asked(job: Job, build: _Counted, tps: list[int], more: list[float]) -> tuple[Any, ...]:
    rows = rows_of(job, *({"tp": tp} for tp in tps))
    return kept_columns(job, "table", rows, ("tp",), build, also=[np.array(more)])


def test_only_what_no_earlier_batch_asked_for_is_built() -> None:
    job, build = _job(), _Counted()
    _asked(job, build, [1, 2], [0.5, 0.5])
    first, second = _asked(job, build, [4, 2, 1], [0.5, 0.5, 0.5])
    assert build.built == [[1, 2], [4]]
    assert first.tolist() == [40.5, 20.5, 10.5]
    assert second.tolist() == [[4, 2, 1], [0.5, 0.5, 0.5]]


def test_a_combination_that_occurs_twice_moves_no_later_one() -> None:
    job, build = _job(), _Counted()
    assert _asked(job, build, [1, 1, 2], [0.25, 0.25, 0.25])[0].tolist() == [10.25, 10.25, 20.25]
    assert _asked(job, build, [8, 2, 1], [0.25, 0.25, 0.25])[0].tolist() == [80.25, 20.25, 10.25]
    assert build.built == [[1, 1, 2], [8]]


def test_equal_axes_with_another_further_number_are_another_combination() -> None:
    job, build = _job(), _Counted()
    assert _asked(job, build, [2, 2], [0.0, 1e-9])[0].tolist() == [20.0, 20.0 + 1e-9]


def test_jobs_share_nothing() -> None:
    build = _Counted()
    for _ in range(2):
        _asked(_job(), build, [2], [0.0])
    assert build.built == [[2], [2]]


def test_a_full_table_starts_over_with_the_batch_that_filled_it() -> None:
    job, build = _job(), _Counted()
    rows = rows_of(job, {"tp": 2}).take(np.zeros(5000, np.int64))
    for start in (0.0, 5000.0):  # 10,000 combinations are more than a table keeps
        numbers = np.arange(start, start + 5000.0)
        (found, _) = kept_columns(job, "table", rows, ("tp",), build, also=[numbers])
        assert found.tolist() == (20.0 + numbers).tolist()
    again = _asked(job, build, [2, 2], [9999.0, 0.0])
    assert again[0].tolist() == [10019.0, 20.0]
    assert [len(each) for each in build.built] == [5000, 5000, 1]


def test_the_tables_of_all_jobs_together_are_bounded_and_the_first_jobs_make_room() -> None:
    # 8,000 combinations for each of 20 jobs are 160,000; 131,072 may be kept.
    jobs = [_job() for _ in range(20)]
    builds = [_Counted() for _ in jobs]
    numbers = np.arange(8000.0)
    rows = rows_of(jobs[0], {"tp": 1}).take(np.zeros(8000, dtype=np.int64))
    for job, build in zip(jobs, builds, strict=True):
        kept_columns(job, "table", rows, ("tp",), build, also=[numbers])
        assert kept_in_all() <= MOST_IN_ALL
    for place in (0, -1):
        kept_columns(jobs[place], "table", rows, ("tp",), builds[place], also=[numbers])
    assert [len(build.built) for build in builds] == [2, *[1] * 19]
