"""Costs that depend on few axes are computed once per distinct combination and gathered to the batch.

A search batch holds hundreds of thousands of strategies but only a few thousand different (tp, micro-batch, ...) tuples. `distinct`
finds them in linear time, so that a formula written for one strategy is evaluated on those alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cost_models.strategies.strategy import Strategies

Index = NDArray[np.int64]
Scalar = TypeVar("Scalar", bound=np.generic)
_FEW = 16
"""Batches of so few strategies are mostly lines of JSON."""
_FRACTIONS = frozenset({"micro_batch_size"})
"""Fields that may hold fractions: half an image for each sequence makes a tower's micro-batches halves."""
_DENSE_CELLS_PER_ROW = 4
"""A table of all possible combinations is cheaper than sorting while it has at most this many cells per row of the
batch."""


@dataclass(frozen=True, slots=True)
class Distinct:
    """The different combinations of some axes in a batch; some may occur twice, see `combinations_of`."""

    rows: Strategies
    """One strategy for each combination, shape (U,); only the named axes mean anything."""
    inverse: Index
    """The combination of each strategy, shape (N,)."""
    also: NDArray[Any] | None = None
    """The further number that tells the combinations apart beside the axes, where there is one, shape (U,)."""

    def at(self, index: NDArray[Any]) -> Distinct:
        """The same combinations, for the strategies at these positions."""
        return Distinct(self.rows, self.inverse[index], self.also)

    def spread(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """Values over combinations, shape (..., U), gathered to (..., N)."""
        return np.take(values, self.inverse, axis=-1)


def combinations_of(strategies: Strategies, axes: Sequence[str], *, also: NDArray[Any] | None = None) -> Distinct:
    """`distinct`, or every strategy as a combination of its own where so few are priced sooner than compared."""
    if len(strategies) > _FEW:
        return distinct(strategies, axes, also=also)
    return Distinct(strategies, np.arange(len(strategies)), also)


def distinct(strategies: Strategies, axes: Sequence[str], *, also: NDArray[Any] | None = None) -> Distinct:
    """The distinct combinations of these fields, and of `also` (N,); but for `_FRACTIONS` all of them must hold whole numbers >= 0."""
    code = np.zeros(len(strategies), dtype=np.int64)
    cells = 1
    # A batch is asked for its combinations of many sets of axes, and most columns are among several of them.
    known = strategies.digits
    for name in axes:
        if name not in known:
            known[name] = _small(*_digits(getattr(strategies, name), whole=name not in _FRACTIONS))
    found = [known[name] for name in axes]
    for digit, radix in found if also is None else [*found, _digits(also)]:
        if radix > 1:
            code = code * radix + digit
            cells *= radix
        assert cells < 2**62, axes
    if cells <= _DENSE_CELLS_PER_ROW * len(strategies) + 4096:
        first = np.full(cells, -1, dtype=np.int64)
        # Writing backwards leaves the first row of every combination in its cell, as np.unique would return it.
        first[code[::-1]] = np.arange(len(strategies) - 1, -1, -1)
        present = np.flatnonzero(first >= 0)
        rank = np.empty(cells, dtype=np.int64)
        rank[present] = np.arange(len(present))
        index, inverse = first[present], rank[code]
    else:
        _, index, inverse = np.unique(code, return_index=True, return_inverse=True)
    return Distinct(strategies.picked(index), inverse.reshape(-1), None if also is None else also[index])


def summed(parts: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Sum of arrays (or of the rows of one array along its first axis), added one after the other.

    NumPy adds in pairs along an axis that lies contiguous in memory, as it does in a batch of one. Its sums of the same numbers
    then differ in the last digit from those of a larger batch, and a strategy's cost would depend on its neighbours.
    """
    each = iter(parts)
    total = np.array(next(each), np.float64)
    for part in each:
        total += part
    return total


def levels_of(values: NDArray[Any]) -> tuple[NDArray[np.float64], Index]:
    """The different values, whole numbers >= 0, in rising order, and which of them each entry is."""
    digit, count = _digits(values)
    if count == 1:
        digit = np.zeros(len(values), dtype=np.int64)
    levels = np.empty(count, dtype=np.float64)
    levels[digit] = values
    return levels, digit


def _small(digit: Index, count: int) -> tuple[NDArray[Any], int]:
    """The same in as few bytes as are needed; nothing where all are equal, since nobody asks which one a row has."""
    if count == 1:
        return digit[:0], 1
    return digit.astype(np.int8 if count < 128 else np.int16 if count < 32768 else np.int64), count


def _digits(values: NDArray[Any], *, whole: bool = True) -> tuple[Index, int]:
    """Small consecutive integers that stand for the values, in their order, and how many different ones there are; `whole` where no
    value is a fraction.
    """
    near = values.astype(np.int64)
    if not whole and not np.array_equal(near, values):
        levels, digit = np.unique(values, return_inverse=True)
        return digit.reshape(-1), len(levels)
    low, high = (int(near.min()), int(near.max())) if len(near) else (0, 0)
    if low == high:
        return near, 1
    if high - low <= _DENSE_CELLS_PER_ROW * len(near) + 4096:
        offset = near - low if low else near
        seen = np.zeros(high - low + 1, dtype=np.int64)
        seen[offset] = 1
        count = int(seen.sum())
        return (offset if count == len(seen) else (np.cumsum(seen) - 1)[offset]), count
    levels, digit = np.unique(near, return_inverse=True)
    return digit.reshape(-1), len(levels)
