"""What holds of every played pipeline: ranks do one thing at a time, nothing starts before its input, everything runs once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cost_models.strategies.fields import SPLIT_BACKWARD, V_SHAPED, Schedule
from planner.timeline.fold import repeats
from planner.timeline.orders import Kind, rank_orders, round_of
from planner.timeline.play import Durations, Events, played


@dataclass(frozen=True)
class Case:
    """One pipeline and what was played of it."""

    schedule: Schedule
    ranks: int
    chunks: int
    micro_batches: int
    durations: Durations
    events: Events


@st.composite
def pipelines(draw: st.DrawFn) -> Case:
    schedule = draw(st.sampled_from(list(Schedule)))
    ranks = draw(st.integers(1 if schedule == Schedule.ONE_F_ONE_B else 2, 5))
    chunks = 2 if schedule in V_SHAPED else draw(st.integers(2, 3)) if schedule == Schedule.INTERLEAVED else 1
    micro_batches = draw(st.integers(1, 14))
    if schedule == Schedule.INTERLEAVED:
        micro_batches = ranks * draw(st.integers(1, 4))
    if schedule == Schedule.DUALPIPE_V:
        micro_batches += 2 * ranks
    stages = ranks * chunks
    times = st.lists(st.floats(0.1, 1.0), min_size=stages, max_size=stages)
    forward, inputs, weights = draw(times), draw(times), draw(times)
    splits = schedule in SPLIT_BACKWARD
    durations = Durations(
        tuple(forward),
        tuple(i + w for i, w in zip(inputs, weights, strict=True)),
        tuple(weights) if splits else (0.0,) * stages,
        send_s=draw(st.floats(0.0, 0.1)) if ranks > 1 else 0.0,
        filling_s=draw(st.floats(0.0, 0.1)) if ranks > 1 else 0.0,
    )
    orders = rank_orders(schedule, ranks=ranks, chunks=chunks, micro_batches=micro_batches)
    events = played(orders, durations, folded=schedule in V_SHAPED)
    return Case(schedule, ranks, chunks, micro_batches, durations, events)


Told = tuple[int, Kind, int, int, float, float]


def told(events: Events) -> Iterator[Told]:
    """(rank, kind, virtual stage, micro-batch, start, end) of every task."""
    columns = (events.rank_E, events.kind_E, events.stage_E, events.micro_batch_E, events.start_E, events.end_E)
    for rank, kind, stage, m, start, end in zip(*(column.tolist() for column in columns), strict=True):
        yield rank, Kind(kind), stage, m, start, end


@given(case=pipelines())
def test_a_rank_does_one_thing_at_a_time(case: Case) -> None:
    for rank in range(case.ranks):
        mine = [(start, end) for its, _, _, _, start, end in told(case.events) if its == rank]
        assert mine == sorted(mine)
        assert all(after >= before - 1e-12 for (_, before), (after, _) in pairwise(mine))


@given(case=pipelines())
def test_every_micro_batch_passes_every_stage_once(case: Case) -> None:
    passes: Counter[tuple[str, int, int]] = Counter()
    for _, kind, stage, m, _, _ in told(case.events):
        parts = {Kind.FORWARD: "F", Kind.BACKWARD: "IW", Kind.DATA_GRADIENT: "I", Kind.WEIGHT_GRADIENT: "W"}[kind]
        passes.update((part, stage, m) for part in parts)
    stages = case.ranks * case.chunks
    assert passes == Counter(
        (part, stage, m) for part in "FIW" for stage in range(stages) for m in range(case.micro_batches)
    )


@given(case=pipelines())
def test_nothing_starts_before_its_input_has_arrived(case: Case) -> None:
    ends: dict[tuple[str, int, int], float] = {}
    for _, kind, stage, m, _, end in told(case.events):
        letter = "F" if kind == Kind.FORWARD else "W" if kind == Kind.WEIGHT_GRADIENT else "B"
        ends[letter, stage, m] = end
    last, send = case.ranks * case.chunks - 1, case.events.send_s
    for _, kind, stage, m, start, _ in told(case.events):
        if kind == Kind.FORWARD:
            needs = ends["F", stage - 1, m] + send if stage else 0.0
        elif kind == Kind.WEIGHT_GRADIENT:
            needs = ends["B", stage, m]
        else:
            needs = ends["B", stage + 1, m] + send if stage < last else ends["F", stage, m]
        assert start >= needs - 1e-12


@given(case=pipelines())
def test_a_pipeline_takes_no_less_than_its_busiest_rank_and_no_more_than_one_task_at_a_time(case: Case) -> None:
    busy = [0.0] * case.ranks
    for rank, _, _, _, start, end in told(case.events):
        busy[rank] += end - start
    messages = 2 * case.micro_batches * case.chunks * case.events.send_s
    hops = 2 * case.ranks * case.durations.filling_s
    assert max(busy) + messages <= case.events.seconds + 1e-9
    assert case.events.seconds <= sum(busy) + case.ranks * messages + hops + 1e-9


@given(case=pipelines())
def test_what_is_said_to_repeat_does(case: Case) -> None:
    """Every task that starts in one of the periods but the last is there again a period and a round later."""
    size = round_of(case.schedule, ranks=case.ranks, micro_batches=case.micro_batches)
    starts = {(kind, stage, m): start for _, kind, stage, m, start, _ in told(case.events)}
    stretches = repeats(case.events, micro_batches=case.micro_batches, round_=size)
    for stretch in stretches:
        assert stretch.count >= 3
        assert stretch.end_s <= case.events.seconds * (1 + 1e-9)
        slack = 1e-6
        within = [
            key for key, at in starts.items() if stretch.start_s + slack < at < stretch.end_s - stretch.period_s - slack
        ]
        assert within
        for kind, stage, m in within:
            like = starts[kind, stage, m + stretch.micro_batches]
            assert abs(like - starts[kind, stage, m] - stretch.period_s) < 1e-6
    for before, after in pairwise(stretches):
        assert before.end_s <= after.start_s + 1e-9
