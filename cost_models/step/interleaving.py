"""Seconds of a pass of micro-batches through an interleaved pipeline whose chunks are unequal, event by event.

Every rank runs its chunks in the order that Megatron and PyTorch share, and starts each one as soon as it is free and its input
has arrived. Which chunk is whose turn is fixed, so one recurrence serves all strategies with the same stages and chunks; once the
state of the pipeline repeats from round to round, the remaining rounds are added without being played. Array suffixes: V virtual
stages in model order (chunk * pp + rank), N strategies, R ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cost_models.strategies.strategy import Bools, Floats, Ints

_BLOCK_CELLS = 1 << 14
"""Ranks times strategies that are played together; their clocks stay in the processor's cache."""
_FILLED = 2
"""Rounds after which every rank alternates between forwards and backwards: warming up takes no more."""
_SAME_STATE = 1e-12
"""Relative difference between two clocks that rounding alone explains."""
_FOREVER = 1 << 60


def interleaved_s(forward_VN: Floats, backward_VN: Floats, *, pp: int, vpp: int, num_micro_batches: Floats) -> Floats:
    """Seconds from the first forward to the last backward of interleaved 1F1B, sends left out, shape (N,). [P-2]

        end(task) = max(end(task before it on its rank), end(task whose result it needs)) + its seconds

    Args:
        forward_VN: seconds of every virtual stage's forward of one micro-batch.
        backward_VN: seconds of its backward.
        pp: stages, 2 or more.
        vpp: chunks of a stage, 2 or more.
        num_micro_batches: shape (N,), whole numbers that `fills_rounds` accepts.

    Source: EQUATIONS.md P-2 (Megatron Core's schedules.py, get_schedule_table; PyTorch's ScheduleInterleaved1F1B).
    """
    rounds, each = rounds_of(num_micro_batches, pp=pp)
    seconds = np.empty(len(rounds))
    for size in np.unique(each).tolist():
        order = _Order(ranks=pp, chunks=vpp, size=size)
        which = np.flatnonzero(each == size)
        for rows in np.array_split(which, -(-len(which) * pp // _BLOCK_CELLS)):
            seconds[rows] = _played_s(order, forward_VN[:, rows], backward_VN[:, rows], rounds[rows])
    return seconds


def rounds_of(num_micro_batches: Floats, *, pp: Floats | int) -> tuple[Ints, Ints]:
    """Rounds in which micro-batches pass the chunks, and micro-batches of a round, shape (N,) each.

    pp a round where that divides their number; PyTorch makes rounds longer elsewhere, and a short one of fewer than pp.
    """
    m = num_micro_batches.astype(np.int64)
    rounds = np.maximum(m // np.asarray(pp).astype(np.int64), 1)
    return rounds, m // rounds


def fills_rounds(num_micro_batches: Floats, *, pp: Floats) -> Bools:
    """Whether these are whole micro-batches in equal rounds, as every framework that interleaves asks for, shape (N,)."""
    rounds, each = rounds_of(num_micro_batches, pp=pp)
    return np.asarray((num_micro_batches >= 1) & (rounds * each == num_micro_batches))


@dataclass(frozen=True, slots=True)
class _Order:
    """Whose turn it is. In *slot* t rank r runs the forward at position t - r of its order and the backward at position
    t + r - `warm_up`, so everything that a task needs has run in an earlier slot, or before it in its own.
    """

    ranks: int
    chunks: int
    size: int
    """Micro-batches of a round."""

    @property
    def places(self) -> int:
        """Places for micro-batches in a round: a round of fewer than one per rank is filled up with some that take no time."""
        return max(self.size, self.ranks)

    @property
    def round(self) -> int:
        """Positions in a round."""
        return self.places * self.chunks

    @property
    def warm_up(self) -> int:
        """Forwards of the first rank before its first backward."""
        return 2 * (self.ranks - 1) + (self.chunks - 1) * self.places

    @property
    def delay(self) -> int:
        """Slots from the end of a chunk on its last rank to the start of the next chunk on its first one."""
        return self.places - self.ranks + 1

    def at_the_start(self, count: int) -> Floats:
        """Clocks of as many strategies that have run nothing yet."""
        return np.zeros((3 * self.ranks + 2 * self.delay, count))

    @property
    def drain(self) -> int:
        """Slots from the first rank's last forward to the end of the step."""
        return self.warm_up + self.ranks


@lru_cache(maxsize=64)
def _turns(order: _Order) -> tuple[Ints, Ints]:
    """Virtual stage that each rank runs forwards and backwards in every slot of a round, shape (round, R) each.

    One past the last virtual stage where no micro-batch takes the place.
    """
    slot, rank = np.arange(order.round)[:, None], np.arange(order.ranks)
    tables = []
    for position, backward in ((slot - rank, False), (slot + rank - order.warm_up, True)):
        chunk, place = np.divmod(position % order.round, order.places)
        stage = (order.chunks - 1 - chunk if backward else chunk) * order.ranks + rank
        tables.append(np.where(place < order.size, stage, order.chunks * order.ranks))
    return tables[0], tables[1]


class _Clocks:
    """When the tasks end that later ones wait for: `ends` holds a row for each, shape (3 R + 2 delay, N)."""

    def __init__(self, order: _Order, ends: Floats) -> None:
        ranks, delay = order.ranks, order.delay
        self.order, self.ends = order, ends
        self.free = ends[:ranks]
        """The last task of every rank."""
        # Beside each rank's result lies that of the rank whose result it needs, so both are slices of the same rows. Results of
        # a chunk's last rank queue beside the next chunk's first one, for `delay` slots.
        self.forward = ends[ranks : 2 * ranks + delay]
        """A queue for the first rank, its head last, and every rank's last forward."""
        self.backward = ends[2 * ranks + delay :]
        """Every rank's last backward, and a queue for the last rank, its head first."""
        self._seconds = np.empty_like(self.free)
        self._parts: dict[tuple[int, int], _Parts] = {}

    def play(
        self, forward_VN: Floats, backward_VN: Floats, *, slots: range, first: int = 0, end: int = _FOREVER
    ) -> None:
        """Run the tasks of these slots that stand at positions from `first` to before `end`."""
        order, (forwards, backwards) = self.order, _turns(self.order)
        ranks, warm_up, delay, positions = order.ranks, order.warm_up, order.delay, order.round
        forward, backward = self.forward, self.backward
        comes_back, goes_down = forward[delay - 1], backward[ranks]
        last_forward, first_backward = forward[-1], backward[0]
        for slot in slots:
            turn = slot % positions
            if delay > 1:
                forward[1:delay] = forward[: delay - 1].copy()
                backward[ranks:-1] = backward[ranks + 1 :].copy()
            forward[0], backward[-1] = last_forward, first_backward
            low, high = max(0, slot - end + 1), min(ranks, slot - first + 1)
            if low < high:
                part = self._part(low, high)
                if low == 0 and forwards[turn, 0] == 0:
                    comes_back[:] = 0.0  # a micro-batch that enters the model waits for nobody
                part.run(forward_VN, forwards[turn, low:high], part.forward_needs, part.forward_ends)
            low, high = max(0, warm_up + first - slot), min(ranks, warm_up + end - slot)
            if low < high:
                part = self._part(low, high)
                if high == ranks and backwards[turn, -1] == ranks * order.chunks - 1:
                    goes_down[:] = last_forward  # the loss turns its forward into a backward
                part.run(backward_VN, backwards[turn, low:high], part.backward_needs, part.backward_ends)

    def _part(self, low: int, high: int) -> _Parts:
        """The clocks of the ranks from `low` to before `high`."""
        if (low, high) not in self._parts:
            delay = self.order.delay
            self._parts[low, high] = _Parts(
                free=self.free[low:high],
                seconds=self._seconds[low:high],
                forward_needs=self.forward[delay - 1 + low : delay - 1 + high],
                forward_ends=self.forward[delay + low : delay + high],
                backward_needs=self.backward[low + 1 : high + 1],
                backward_ends=self.backward[low:high],
            )
        return self._parts[low, high]


@dataclass(frozen=True, slots=True)
class _Parts:
    """Some neighbouring ranks' rows of the clocks."""

    free: Floats
    seconds: Floats
    """Space for the seconds of their tasks."""
    forward_needs: Floats
    forward_ends: Floats
    backward_needs: Floats
    backward_ends: Floats

    def run(self, seconds_VN: Floats, stages: Ints, needs: Floats, ends: Floats) -> None:
        """One task on each of these ranks."""
        np.maximum(self.free, needs, out=self.free)
        seconds_VN.take(stages, axis=0, out=self.seconds, mode="clip")
        np.add(self.free, self.seconds, out=self.free)
        ends[:] = self.free


def _played_s(order: _Order, forward_VN: Floats, backward_VN: Floats, rounds: Ints) -> Floats:
    """Seconds of these strategies, shape (N,), which differ in the number of rounds and in the times of chunks."""
    nothing = np.zeros((1, len(rounds)))
    forward_VN, backward_VN = np.concatenate([forward_VN, nothing]), np.concatenate([backward_VN, nothing])
    seconds = np.empty(len(rounds))
    short = np.flatnonzero(rounds < _FILLED)
    for count in np.unique(rounds[short]).tolist():
        rows = short[rounds[short] == count]
        clocks = _Clocks(order, order.at_the_start(len(rows)))
        end = count * order.round
        clocks.play(forward_VN[:, rows], backward_VN[:, rows], slots=range(end + order.drain), end=end)
        seconds[rows] = clocks.free.max(axis=0)
    rows = np.flatnonzero(rounds >= _FILLED)
    if len(rows):
        filled = forward_VN[:, rows], backward_VN[:, rows]
        ends, more = _before_the_last_round_ends(order, *filled, rounds[rows])
        clocks = _Clocks(order, ends)
        # Slots are counted from the end of the last round, whichever round that is.
        clocks.play(*filled, slots=range(order.drain), first=-_FOREVER, end=0)
        seconds[rows] = clocks.free.max(axis=0) + more
    return seconds


def _before_the_last_round_ends(
    order: _Order, forward_VN: Floats, backward_VN: Floats, rounds: Ints
) -> tuple[Floats, Floats]:
    """Clocks when the first rank has run all forwards, and seconds by which they are early for rounds left out."""
    clocks = _Clocks(order, order.at_the_start(len(rounds)))
    clocks.play(forward_VN, backward_VN, slots=range(_FILLED * order.round))
    ends, more = np.empty_like(clocks.ends), np.zeros(len(rounds))
    rows, played = np.arange(len(rounds)), _FILLED
    finished = rounds == played
    while True:
        ends[:, rows[finished]] = clocks.ends[:, finished]
        if finished.all():
            return ends, more
        rows, before = rows[~finished], clocks.ends[:, ~finished]
        clocks = _Clocks(order, before.copy())
        slots = range(played * order.round, (played + 1) * order.round)
        clocks.play(forward_VN[:, rows], backward_VN[:, rows], slots=slots)
        played += 1
        # The order repeats from round to round, and every clock is a maximum of sums of the clocks before it. So once a round has
        # made all clocks later by the same time, so does every round after it.
        later = clocks.ends - before
        repeats = (np.abs(later - later[0]) <= _SAME_STATE * clocks.ends).all(axis=0)
        more[rows] = np.where(repeats, (rounds[rows] - played) * later[0], 0.0)
        finished = repeats | (rounds[rows] == played)
