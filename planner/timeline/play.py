"""When every task of a pipeline starts and ends: each starts as soon as its rank is free and its input has arrived.

Seconds are those of virtual stages in model order: chunk * ranks + rank, or on the way back of a folded pipeline
chunk * ranks + (ranks - 1 - rank). Array suffixes: E events; V virtual stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.timeline.orders import Group, Kind

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds of every virtual stage's tasks of one micro-batch, in model order; they are what the rank is busy for."""

    forward_V: tuple[float, ...]
    backward_V: tuple[float, ...]
    """The whole backward, repeated forward and weight gradient included."""
    weight_gradient_V: tuple[float, ...]
    """The part of it that a schedule may move."""
    send_s: float = 0.0
    """Seconds for which a rank waits for a message after each forward and each backward, in the steady state."""
    filling_s: float = 0.0
    """Seconds of each hop beyond `send_s` that the first forwards and the last backwards wait for, as nothing can hide them."""


@dataclass(frozen=True, eq=False)
class Events:
    """Every task of a step, rank by rank in the order of time; arrays of shape (E,)."""

    rank_E: Ints
    kind_E: Ints
    """Codes of `orders.Kind`."""
    chunk_E: Ints
    stage_E: Ints
    """Virtual stage in model order."""
    micro_batch_E: Ints
    start_E: Floats
    """Seconds from the first forward of the step."""
    end_E: Floats
    """Seconds at which the computation ends; a message that the rank waits for follows."""
    paired_E: NDArray[np.bool_]
    """Whether the task runs beside another of its rank; the two are told one after the other and end together."""
    send_s: float
    """Seconds for which a rank waits for a message after each forward and each backward but for weight gradients."""
    seconds: float
    """When the last rank has finished, its last message included."""

    def __len__(self) -> int:
        return len(self.rank_E)


def virtual_stage(rank: int, chunk: int, *, ranks: int, folded: bool) -> int:
    """The place in the model of a rank's chunk."""
    return chunk * ranks + (ranks - 1 - rank if folded and chunk else rank)


def played(orders: Sequence[Sequence[Group]], durations: Durations, *, folded: bool = False) -> Events:
    """The tasks of these orders with their times.

    Args:
        orders: every rank's tasks (`orders.rank_orders`).
        durations: seconds of every virtual stage's tasks.
        folded: whether the second chunk runs from the last rank back to the first.
    """
    pipeline = _Pipeline(orders, durations, folded=folded)
    left = sum(map(len, orders))
    while left:
        done = sum(pipeline.advance(rank) for rank in range(len(orders)))
        assert done, "the orders wait for each other"
        left -= done
    return pipeline.events()


_Placed = tuple[Kind, int, int, int]
"""(kind, chunk, virtual stage, micro-batch)."""


class _Pipeline:
    """The ranks' clocks, and when every virtual stage's result of each micro-batch has arrived where it is needed."""

    def __init__(self, orders: Sequence[Sequence[Group]], durations: Durations, *, folded: bool) -> None:
        self.orders, self.durations, self.folded = orders, durations, folded
        self.ranks, self.last = len(orders), len(durations.forward_V) - 1
        self.micro_batches = 1 + max(task[2] for group in orders[0] for task in group)
        self.lengths = _lengths(durations)
        # Lists, not arrays: they are read and written one element at a time, which NumPy does several times slower.
        self.forward: list[list[float | None]] = [[None] * self.micro_batches for _ in durations.forward_V]
        self.backward: list[list[float | None]] = [[None] * self.micro_batches for _ in durations.forward_V]
        self.clock, self.position = [0.0] * self.ranks, [0] * self.ranks
        self.rows: list[list[tuple[int, int, int, int, int, bool]]] = [[] for _ in orders]
        self.times: list[list[tuple[float, float]]] = [[] for _ in orders]

    def advance(self, rank: int) -> int:
        """Runs the tasks of a rank until one waits for another rank; how many groups have run."""
        # Running on as far as it goes makes rounds over the ranks few: a rank stops only where it truly waits.
        order, begun = self.orders[rank], self.position[rank]
        at = begun
        while at < len(order):
            placed = [
                (kind, chunk, virtual_stage(rank, chunk, ranks=self.ranks, folded=self.folded), m)
                for kind, chunk, m in order[at]
            ]
            start = self._start(placed, self.clock[rank])
            if start is None:
                break
            self._run(rank, placed, start)
            at += 1
        self.position[rank] = at
        return at - begun

    def _start(self, placed: Sequence[_Placed], free: float) -> float | None:
        """When a group can start whose rank is free at that time; None where something that it needs has not been made."""
        for kind, _, stage, m in placed:
            if kind == Kind.FORWARD:
                need = self.forward[stage - 1][m] if stage else 0.0
            elif kind == Kind.WEIGHT_GRADIENT:
                need = 0.0  # its own rank has run the data gradient before
            else:
                need = self.backward[stage + 1][m] if stage < self.last else self.forward[stage][m]
            if need is None:
                return None
            free = max(free, need)
        return free

    def _run(self, rank: int, placed: Sequence[_Placed], start: float) -> None:
        end = start
        for kind, chunk, stage, m in placed:
            begun, end = end, end + self.lengths[kind][stage]
            self.rows[rank].append((rank, kind, chunk, stage, m, len(placed) > 1))
            self.times[rank].append((begun, end))
        # What a pair makes is sent when both are done, one message after the other.
        for kind, _, stage, m in placed:
            if kind == Kind.WEIGHT_GRADIENT:
                continue
            end += self.durations.send_s
            # The pipeline fills with the first micro-batch's way through the first chunks, and drains with the last one's way back:
            # these messages have nothing to hide behind.
            if kind == Kind.FORWARD:
                fills = m == 0 and stage < self.ranks - 1
                self.forward[stage][m] = end + (self.durations.filling_s if fills else 0.0)
            else:
                drains = m == self.micro_batches - 1 and 0 < stage < self.ranks
                self.backward[stage][m] = end + (self.durations.filling_s if drains else 0.0)
        self.clock[rank] = end

    def events(self) -> Events:
        """All tasks that have run."""
        columns = np.array([row for each in self.rows for row in each], np.int64).T
        start_E, end_E = np.array([pair for each in self.times for pair in each]).T
        return Events(
            rank_E=columns[0],
            kind_E=columns[1],
            chunk_E=columns[2],
            stage_E=columns[3],
            micro_batch_E=columns[4],
            start_E=start_E,
            end_E=end_E,
            paired_E=columns[5].astype(np.bool_),
            send_s=self.durations.send_s,
            seconds=max(self.clock),
        )


def _lengths(durations: Durations) -> dict[Kind, tuple[float, ...]]:
    apart = tuple(
        whole - weights for whole, weights in zip(durations.backward_V, durations.weight_gradient_V, strict=True)
    )
    return {
        Kind.FORWARD: durations.forward_V,
        Kind.BACKWARD: durations.backward_V,
        Kind.DATA_GRADIENT: apart,
        Kind.WEIGHT_GRADIENT: durations.weight_gradient_V,
    }
