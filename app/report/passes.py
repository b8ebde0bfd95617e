"""The passes of a played schedule one by one, as the figure and the trace tell them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from planner.timeline.orders import Kind
from planner.timeline.step import Timeline


class Pass(NamedTuple):
    """One task of one rank. Times are seconds since the step began."""

    rank: int
    kind: Kind
    chunk: int
    stage: int
    micro_batch: int
    start_s: float
    end_s: float
    repeated_s: float
    """Seconds of repeated forwards at its beginning, 0 where none are."""


def passes(timeline: Timeline, chosen: Any = slice(None)) -> Iterator[Pass]:
    """The tasks in the order of the events; `chosen` picks some of them by number."""
    events, repeated_V = timeline.events, timeline.seconds.repeated_V
    columns = (
        events.rank_E,
        events.kind_E,
        events.chunk_E,
        events.stage_E,
        events.micro_batch_E,
        events.start_E,
        events.end_E,
    )
    # Lists, because reading elements of arrays one at a time takes several times as long.
    for rank, kind, chunk, stage, m, start, end in zip(*(column[chosen].tolist() for column in columns), strict=True):
        # Recomputation begins a stage's backward; where weight gradients are tasks of their own, that of its data.
        repeated_s = repeated_V[stage] if kind in (Kind.BACKWARD, Kind.DATA_GRADIENT) else 0.0
        yield Pass(rank, Kind(kind), chunk, stage, m, start, end, repeated_s)
