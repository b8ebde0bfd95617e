"""The order in which every pipeline rank runs its tasks, for each schedule: what the frameworks' own schedules prescribe.

A task is (kind, chunk, micro-batch). Tasks of one group run together: an overlapped forward and backward starts when both have
their inputs, and what either makes is sent when both are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum

from cost_models.strategies.fields import Schedule


class Kind(IntEnum):
    """What a task computes."""

    FORWARD = 0
    BACKWARD = 1
    """The whole backward, with the repeated forward in front of it where layers are recomputed."""
    DATA_GRADIENT = 2
    """The part of a backward that the stage before waits for."""
    WEIGHT_GRADIENT = 3
    """The part that nobody waits for; schedules without bubbles move it into the gaps."""

    @property
    def label(self) -> str:
        """Its name in documents and figures."""
        return ("forward", "backward", "backward", "weight-gradient")[self]


Task = tuple[Kind, int, int]
"""(kind, chunk of the rank, micro-batch), both counted from 0."""
Group = tuple[Task, ...]
"""One task, or the two that a rank overlaps."""

# One letter each, as papers draw them and as PyTorch names its actions.
F, B, I, W = Kind.FORWARD, Kind.BACKWARD, Kind.DATA_GRADIENT, Kind.WEIGHT_GRADIENT  # noqa: E741


def rank_orders(
    schedule: Schedule, *, ranks: int, chunks: int, micro_batches: int, runs_ahead: int = 0
) -> list[list[Group]]:
    """Every rank's tasks in their order.

    Args:
        schedule: of the strategy; a pipeline of one rank runs each micro-batch's backward right after its forward.
        ranks: pipeline stages.
        chunks: virtual stages of each rank.
        micro_batches: of a step; interleaved schedules take them in equal rounds (`cost_models.step.interleaving.rounds_of`).
        runs_ahead: forwards that an interleaved rank runs before its first backward beyond the usual number.
    """
    # Without a neighbour there is nothing to fill: frameworks then run each backward right after its forward (Megatron Core's
    # forward_backward_no_pipelining), whatever schedule was asked for.
    build = _ORDERS[schedule if ranks > 1 else Schedule.ONE_F_ONE_B]
    if build is _interleaved:
        return [_interleaved(rank, ranks, chunks, micro_batches, runs_ahead=runs_ahead) for rank in range(ranks)]
    return [build(rank, ranks, chunks, micro_batches) for rank in range(ranks)]


def round_of(schedule: Schedule, *, ranks: int, micro_batches: int) -> int:
    """Micro-batches after which the order of tasks repeats: a round of an interleaved schedule, else one."""
    if schedule != Schedule.INTERLEAVED or ranks == 1:
        return 1
    return micro_batches // max(micro_batches // ranks, 1)


def _one_f_one_b(rank: int, ranks: int, _chunks: int, micro_batches: int) -> list[Group]:
    """The pipeline fills with p - r - 1 forwards; pairs of forward and backward follow, then the remaining backwards.

    Source: Narayanan et al. 2019 (PipeDream-flush); Megatron Core's schedules.py; PyTorch's Schedule1F1B.
    """
    warm_up = min(ranks - rank - 1, micro_batches)
    groups: list[Group] = [((F, 0, m),) for m in range(warm_up)]
    for m in range(micro_batches - warm_up):
        groups += [((F, 0, warm_up + m),), ((B, 0, m),)]
    groups += [((B, 0, m),) for m in range(micro_batches - warm_up, micro_batches)]
    return groups


def _gpipe(_rank: int, _ranks: int, _chunks: int, micro_batches: int) -> list[Group]:
    """All forwards, then all backwards from the first micro-batch on, as PyTorch's ScheduleGPipe runs them."""
    return [((kind, 0, m),) for kind in (F, B) for m in range(micro_batches)]


def _interleaved(rank: int, ranks: int, chunks: int, micro_batches: int, *, runs_ahead: int = 0) -> list[Group]:
    """Interleaved 1F1B: micro-batches pass every chunk in rounds.

    Source: Narayanan et al. 2021, section 2.2; Megatron Core's schedules.py (get_schedule_table, get_pp_rank_microbatches);
    PyTorch's ScheduleInterleaved1F1B.
    """
    size = round_of(Schedule.INTERLEAVED, ranks=ranks, micro_batches=micro_batches)
    total = micro_batches * chunks
    warm_up = min(2 * (ranks - rank - 1) + (chunks - 1) * size + runs_ahead, total)

    # Backwards take the chunks in reverse, as the last chunk is nearest to the loss.
    def task(kind: Kind, position: int) -> Group:
        round_, inside = divmod(position, size * chunks)
        chunk, place = divmod(inside, size)
        return ((kind, chunk if kind == F else chunks - 1 - chunk, round_ * size + place),)

    groups = [task(F, position) for position in range(warm_up)]
    for position in range(total - warm_up):
        groups += [task(F, warm_up + position), task(B, position)]
    return groups + [task(B, position) for position in range(total - warm_up, total)]


def _zb_h1(rank: int, ranks: int, _chunks: int, micro_batches: int) -> list[Group]:
    """1F1B with weight gradients apart, which rank r runs r micro-batches late. Source: Qi et al. 2024, section 2.3."""
    groups: list[Group] = []
    done = 0
    for ((kind, chunk, m),) in _one_f_one_b(rank, ranks, 1, micro_batches):
        groups.append(((I if kind == B else kind, chunk, m),))
        done += kind == B
        # Later ranks have more of their idle time at the end, where what they postpone fills it.
        if kind == B and done > rank:
            groups.append(((W, 0, done - 1 - rank),))
    return groups + [((W, 0, m),) for m in range(max(micro_batches - rank, 0), micro_batches)]


def _zb_v(rank: int, ranks: int, _chunks: int, micro_batches: int) -> list[Group]:
    """The V-shaped schedule without bubbles: chunk 0 goes down the ranks, chunk 1 comes back.

    Source: Qi et al. 2024, section 6; PyTorch's ScheduleZBVZeroBubble, which likewise writes the order for enough micro-batches
    to fill the pipeline and leaves out those that a step does not have.
    """
    # Fewer micro-batches than fill the V would run counts below zero; dropping them afterwards keeps the order.
    filled = max(2 * ranks - 1, micro_batches)
    at = _Counter()
    groups = [at.next(F, 0) for _ in range(2 * (ranks - rank) - 1)]
    for _ in range(rank):
        groups += [at.next(F, 1), at.next(F, 0)]
    for _ in range(ranks - rank):
        groups += [at.next(F, 1), at.next(I, 1), at.next(W, 1)]
    while at.count[F, 1] < max(at.count[F, 0], filled):
        if at.count[F, 0] < filled:
            groups.append(at.next(F, 0))
        groups += [at.next(I, 0), at.next(W, 0), at.next(F, 1), at.next(I, 1), at.next(W, 1)]
    for _ in range(rank):
        groups += [at.next(I, 0), at.next(I, 1)]
    for _ in range(ranks - rank):
        groups += [at.next(I, 0), at.next(W, 0)]
    for chunk in (1, 0):
        groups += [at.next(W, chunk) for _ in range(filled - at.count[W, chunk])]
    return [group for group in groups if group[0][2] < micro_batches]


def _dualpipe_v(rank: int, ranks: int, _chunks: int, micro_batches: int) -> list[Group]:
    """DualPipe folded into a V: in the steady state each forward overlaps another micro-batch's backward.

    Source: DeepSeek's DualPipe repository (dualpipev.py); PyTorch's ScheduleDualPipeV. A step has at least 2 p micro-batches.
    """
    at, rest = _Counter(), ranks - rank - 1
    groups = [at.next(F, 0) for _ in range(2 * rest)]
    for _ in range(rank + 1):
        groups += [at.next(F, 0), at.next(F, 1)]
    for _ in range(rest):
        groups += [at.inputs(1), *at.weights(), at.next(F, 1)]
    for turn in range(micro_batches - 2 * ranks + rank + 1):
        # The last rank's first pair is one micro-batch's own forward and backward, which follow each other.
        apart = turn == 0 and rank == ranks - 1
        groups += [at.next(F, 0), at.whole(1)] if apart else [at.next(F, 0) + at.whole(1)]
        groups.append(at.next(F, 1) + at.whole(0))
    for _ in range(rest):
        groups += [at.whole(1), at.next(F, 1) + at.whole(0)]
    return groups + _dualpipe_v_drains(at, rank, rest)


def _dualpipe_v_drains(at: _Counter, rank: int, rest: int) -> list[Group]:
    """The remaining backwards, of which the second half leaves its weight gradients for the gaps."""
    groups = [at.inputs(1 - turn % 2) if turn > rank else at.whole(1 - turn % 2) for turn in range(2 * (rank + 1))]
    for _ in range(rest):
        groups += [*at.weights(), at.inputs(0)]
    for _ in range(rank + 1):
        groups += at.weights()
    return groups


class _Counter:
    """The next micro-batch of every kind of task and chunk."""

    def __init__(self) -> None:
        self.count = {(kind, chunk): 0 for kind in Kind for chunk in (0, 1)}
        self._later = deque[int]()
        """Chunks whose weight gradients are still to run, in the order of their data gradients."""

    def next(self, kind: Kind, chunk: int) -> Group:
        """The next task of this kind on this chunk."""
        self.count[kind, chunk] += 1
        return ((kind, chunk, self.count[kind, chunk] - 1),)

    def inputs(self, chunk: int) -> Group:
        """The next data gradient of this chunk, whose weight gradient is left for later."""
        self._later.append(chunk)
        return self.next(I, chunk)

    def weights(self) -> list[Group]:
        """The weight gradient that was left first; none where none is left."""
        return [self.next(W, self._later.popleft())] if self._later else []

    def whole(self, chunk: int) -> Group:
        """The next whole backward of this chunk, in place of a data and a weight gradient."""
        ((_, _, m),) = self.next(I, chunk)
        self.count[W, chunk] += 1
        return ((B, chunk, m),)


_ORDERS: dict[Schedule, Callable[[int, int, int, int], list[Group]]] = {
    Schedule.ONE_F_ONE_B: _one_f_one_b,
    Schedule.INTERLEAVED: _interleaved,
    Schedule.GPIPE: _gpipe,
    Schedule.ZB_H1: _zb_h1,
    Schedule.ZB_V: _zb_v,
    Schedule.DUALPIPE_V: _dualpipe_v,
}
