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


_TABLES: WeakKeyDictionary[Any, dict[tuple[str, ...], _Kept]] = WeakKeyDictionary()
"""By job and by the table's name and axes. They disappear with the job."""


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
    tables, table = _TABLES.setdefault(job, {}), (name, *axes)
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
        return columns
    if missing:
        new = np.array(list(missing.values()))
        added = build(rows.take(new), *(column[new] for column in also))
        joined = (np.concatenate(pair, axis=-1) for pair in zip(known.columns, added, strict=True))
        tables[table] = known = _Kept(np.concatenate([known.values, values[new]]), tuple(joined))
    at = np.array([known.position[key] for key in keys], dtype=np.int64)
    return tuple(column.take(at, axis=-1) for column in known.columns)


def _keys(values: NDArray[np.float64]) -> list[bytes]:
    """The bytes of each combination's values, which are equal only where all values are."""
    whole: list[bytes] = values.view(f"V{values.itemsize * values.shape[1]}").ravel().tolist()
    return whole
