"""Columns over distinct combinations of axes, kept between the batches of one job.

A search, and whoever prices many small batches of one job, asks for the same few combinations again and again. What an earlier
batch has priced is looked up here. A combination's values must depend on nothing but the named axes and the further numbers,
never on the other rows of its batch; then it makes no difference who priced it. Array suffix: U distinct combinations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from cost_models.strategies.strategy import Strategies

Columns = tuple[NDArray[Any], ...]
"""Arrays over combinations, shape (..., U) each."""
_MOST_KEPT = 8192
"""Combinations that are kept for one table of a job; when there would be more, the table starts over."""
# A combination takes some 350 bytes with its key, so these are 45 MB. The largest searches keep half as many.
MOST_IN_ALL = 1 << 17
"""Combinations that are kept for all tables of all jobs together; the jobs that came first make room."""


@dataclass(frozen=True, eq=False)
class _Kept:
    """What is known of one table. It is replaced, never changed, so that threads need no lock."""

    values: NDArray[np.float64]
    """What tells the combinations apart, shape (U, axes and further numbers)."""
    columns: Columns

    @cached_property
    def position(self) -> dict[bytes, int]:
        """Where each combination is. A job that is priced once, as a line of JSON is, never asks for it."""
        return {key: index for index, key in enumerate(_keys(self.values))}


class _Tables(dict[tuple[str, ...], _Kept]):
    """The tables of one job, by name and axes."""

    @property
    def combinations(self) -> int:
        return sum(len(table.values) for table in list(self.values()))


class _Jobs:
    """The tables of all jobs. They disappear with the job, which caches elsewhere may hold for long, or make room for others."""

    def __init__(self) -> None:
        self._tables: WeakKeyDictionary[Any, _Tables] = WeakKeyDictionary()
        # Counts what was added and not what has disappeared with a job, until room is made.
        self._at_most = 0

    def of(self, job: Any) -> _Tables:
        """The job's tables, which are empty at first."""
        return self._tables.setdefault(job, _Tables())

    def added(self, job: Any, combinations: int) -> None:
        """Makes room where so many more are too many; this job's own are kept."""
        self._at_most += combinations
        if self._at_most <= MOST_IN_ALL:
            return
        held = [(each, tables.combinations) for each, tables in list(self._tables.items())]
        total = sum(count for _, count in held)
        for each, count in held:
            # Half of them, so that room is not made for every job.
            if total <= MOST_IN_ALL // 2:
                break
            if each is not job:
                self._tables.pop(each, None)
                total -= count
        self._at_most = total

    @property
    def combinations(self) -> int:
        """How many combinations are kept now."""
        return sum(tables.combinations for tables in list(self._tables.values()))


_JOBS = _Jobs()


def kept_in_all() -> int:
    """How many combinations are kept for all jobs together."""
    return _JOBS.combinations


def kept_columns(
    job: Any,
    name: str,
    rows: Strategies,
    axes: Sequence[str],
    build: Callable[..., Columns],
    *,
    also: Sequence[NDArray[Any]] = (),
) -> Columns:
    """The columns of these combinations; `build` makes those that no earlier batch of the job has asked for, each once.

    Args:
        job: what the values depend on beside the combination; compared by identity.
        name: of the table.
        rows: one strategy for each combination, shape (U,); combinations may occur several times.
        axes: fields that the values depend on.
        build: the columns of some rows, from these and their part of each array in `also`.
        also: further numbers that the values depend on, shape (U,) each.
    """
    # So many combinations come from a search that prices each once; looking them up would cost more than it saves.
    if len(rows) > _MOST_KEPT:
        return build(rows, *also)
    tables, table = _JOBS.of(job), (name, *axes)
    values = np.empty((len(rows), len(axes) + len(also)))
    for number, column in enumerate([*(getattr(rows, axis) for axis in axes), *also]):
        values[:, number] = column
    known = tables.get(table)
    if known is not None:
        keys = _keys(values)
        missing = {key: index for index, key in enumerate(keys) if key not in known.position}
        if missing and len(known.values) + len(missing) > _MOST_KEPT:
            known = None
    if known is None:
        columns = build(rows, *also)
        for column in columns:
            column.flags.writeable = False  # it is another batch's too
        tables[table] = _Kept(values, columns)
        _JOBS.added(job, len(values))
        return columns
    if missing:
        new = np.array(list(missing.values()))
        added = build(rows.take(new), *(column[new] for column in also))
        joined = (np.concatenate(pair, axis=-1) for pair in zip(known.columns, added, strict=True))
        tables[table] = known = _Kept(np.concatenate([known.values, values[new]]), tuple(joined))
        _JOBS.added(job, len(new))
    at = np.array([known.position[key] for key in keys], dtype=np.int64)
    return tuple(column.take(at, axis=-1) for column in known.columns)


def _keys(values: NDArray[np.float64]) -> list[bytes]:
    """The bytes of each combination's values, which are equal only where all values are."""
    whole: list[bytes] = values.view(f"V{values.itemsize * values.shape[1]}").ravel().tolist()
    return whole
