"""Two ranks and two micro-batches, small enough to be played on paper."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.strategies.fields import Schedule
from planner.timeline.orders import Kind, rank_orders
from planner.timeline.play import Durations, Events, played, virtual_stage


def two_ranks(**given: Any) -> Events:
    orders = rank_orders(Schedule.ONE_F_ONE_B, ranks=2, chunks=1, micro_batches=2)
    return played(orders, Durations((1.0, 1.0), (2.0, 2.0), (0.0, 0.0), **given))


def spans(events: Events, rank: int) -> list[tuple[str, int, float, float]]:
    columns = (events.rank_E, events.kind_E, events.micro_batch_E, events.start_E, events.end_E)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [("FB"[kind], m, start, end) for its, kind, m, start, end in rows if its == rank]


def test_one_forward_one_backward_by_hand() -> None:
    """Rank 0 runs two forwards and waits for the first backward, which rank 1 ends at 4; the last backward ends at 9."""
    events = two_ranks()
    assert spans(events, 0) == [("F", 0, 0, 1), ("F", 1, 1, 2), ("B", 0, 4, 6), ("B", 1, 7, 9)]
    assert spans(events, 1) == [("F", 0, 1, 2), ("B", 0, 2, 4), ("F", 1, 4, 5), ("B", 1, 5, 7)]
    assert events.seconds == 9.0


def test_a_rank_waits_for_its_messages() -> None:
    """Each task holds its rank half a second longer, and the receiver until then: F0 arrives at 1.5 and B1 leaves at 10."""
    events = two_ranks(send_s=0.5)
    assert spans(events, 1) == [("F", 0, 1.5, 2.5), ("B", 0, 3.0, 5.0), ("F", 1, 5.5, 6.5), ("B", 1, 7.0, 9.0)]
    assert spans(events, 0)[-1] == ("B", 1, 9.5, 11.5)
    assert events.seconds == 12.0


def test_filling_and_draining_wait_for_whole_hops() -> None:
    """The first forward arrives 0.25 later, and the last backward too; those between find their receivers busy."""
    events = two_ranks(filling_s=0.25)
    assert [start for _, _, start, _ in spans(events, 1)] == [1.25, 2.25, 4.25, 5.25]
    assert [start for _, _, start, _ in spans(events, 0)] == [0.0, 1.0, 4.25, 7.5]
    assert events.seconds == 9.5


def test_a_pair_is_done_as_a_whole() -> None:
    """What an overlapped forward makes is not sent before its backward is over (DualPipe-V on two ranks)."""
    orders = rank_orders(Schedule.DUALPIPE_V, ranks=2, chunks=2, micro_batches=6)
    events = played(orders, Durations((1.0,) * 4, (2.0,) * 4, (1.0,) * 4), folded=True)
    pairs = {
        (rank, m): start
        for rank, kind, stage, m, start, paired in zip(
            *(c.tolist() for c in (events.rank_E, events.kind_E, events.stage_E, events.micro_batch_E, events.start_E, events.paired_E)),
            strict=True,
        )
        if paired and kind == Kind.FORWARD and stage == 0
    }  # fmt: skip
    ends = {
        (stage, m): start
        for kind, stage, m, start in zip(
            *(c.tolist() for c in (events.kind_E, events.stage_E, events.micro_batch_E, events.start_E)), strict=True
        )
        if kind == Kind.FORWARD and stage == 1
    }
    assert pairs
    for (_, m), start in pairs.items():
        assert ends[1, m] >= start + 3.0


def test_virtual_stages_of_a_folded_pipeline() -> None:
    """Down the ranks with chunk 0, and back with chunk 1; plain pipelines begin again at rank 0."""
    assert [virtual_stage(rank, 1, ranks=3, folded=True) for rank in range(3)] == [5, 4, 3]
    assert [virtual_stage(rank, 1, ranks=3, folded=False) for rank in range(3)] == [3, 4, 5]


def test_orders_that_wait_for_each_other_are_an_error() -> None:
    """A backward that its rank is told to run before the forward that leads to it."""
    orders = [[((Kind.FORWARD, 0, 0),), ((Kind.BACKWARD, 0, 0),)], [((Kind.BACKWARD, 0, 0),), ((Kind.FORWARD, 0, 0),)]]
    with pytest.raises(AssertionError, match="wait for each other"):
        played(orders, Durations((1.0, 1.0), (1.0, 1.0), (0.0, 0.0)))
