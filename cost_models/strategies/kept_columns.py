"""Columns over distinct combinations of axes, kept between the batches of one job.

A search, and whoever prices many small batches of one job, asks for the same few combinations again and again. What an earlier
batch has priced is looked up here. A combination's values must depend on nothing but the named axes and the further numbers,
never on the other rows of its batch; then it makes no difference who priced it. Array suffix: U distinct combinations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from cost_models.strategies.strategy import Strategies

Columns = tuple[NDArray[Any], ...]
"""Arrays over combinations, shape (..., U) each."""
_MOST_KEPT = 8192
"""Combinations that are kept for one table of a job; when there would be more, the table starts over."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is known of one table. It is replaced, never changed, so that threads need no lock."""

    position: dict[bytes, int]
    columns: Columns


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
    known = tables.get(table, _Kept({}, ()))
    keys = _keys([*(getattr(rows, axis) for axis in axes), *also])
    missing = {key: index for index, key in enumerate(keys) if key not in known.position}
    if missing:
        if len(known.position) + len(missing) > _MOST_KEPT:
            known, missing = _Kept({}, ()), {key: index for index, key in enumerate(keys)}
        new = np.array(list(missing.values()))
        known = _extended(known, missing, build(rows.take(new), *(x[new] for x in also)))
        tables[table] = known
    at = np.array([known.position[key] for key in keys], dtype=np.int64)
    return tuple(column.take(at, axis=-1) for column in known.columns)


def _keys(columns: Sequence[NDArray[Any]]) -> list[bytes]:
    """The bytes of each combination's values, which are equal only where all values are."""
    matrix = np.empty((len(columns[0]), len(columns)))
    for number, values in enumerate(columns):
        matrix[:, number] = values
    whole: list[bytes] = matrix.view(f"V{matrix.itemsize * len(columns)}").ravel().tolist()
    return whole


def _extended(known: _Kept, keys: Iterable[bytes], columns: Columns) -> _Kept:
    position = known.position | {key: len(known.position) + index for index, key in enumerate(keys)}
    if not known.columns:
        return _Kept(position, columns)
    joined = (np.concatenate(pair, axis=-1) for pair in zip(known.columns, columns, strict=True))
    return _Kept(position, tuple(joined))
