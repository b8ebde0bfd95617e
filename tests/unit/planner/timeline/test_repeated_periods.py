"""Stretches that repeat, in pipelines whose periods follow from their seconds."""

from __future__ import annotations

import pytest

from cost_models.strategies.fields import Schedule
from planner.timeline.fold import Repeat, repeats
from planner.timeline.orders import rank_orders, round_of
from planner.timeline.play import Durations, played


def found(
    schedule: Schedule, *, ranks: int, micro_batches: int, chunks: int = 1, forward: list[float] | None = None
) -> tuple[Repeat, ...]:
    stages = ranks * chunks
    each = forward or [1.0] * stages
    durations = Durations(tuple(each), tuple(2 * f for f in each), (0.0,) * stages)
    orders = rank_orders(schedule, ranks=ranks, chunks=chunks, micro_batches=micro_batches)
    size = round_of(schedule, ranks=ranks, micro_batches=micro_batches)
    return repeats(played(orders, durations), micro_batches=micro_batches, round_=size)


def test_gradient_accumulation_is_nothing_but_periods() -> None:
    """One rank: a forward of 1 s and a backward of 2 s, eight times."""
    assert found(Schedule.ONE_F_ONE_B, ranks=1, micro_batches=8) == (Repeat(0.0, 3.0, 8, 1),)


def test_one_forward_one_backward_repeats_at_the_pace_of_the_slowest_stage() -> None:
    """The second of three stages takes 3 (1.5) = 4.5 s a micro-batch, and the others wait for it."""
    (stretch,) = found(Schedule.ONE_F_ONE_B, ranks=3, micro_batches=40, forward=[1.0, 1.5, 1.0])
    assert stretch.period_s == pytest.approx(4.5)
    assert stretch.micro_batches == 1
    assert 30 <= stretch.count <= 39


def test_a_round_of_an_interleaved_schedule_is_one_period() -> None:
    """Four micro-batches of two chunks of 3 s are 24 s; ten rounds, of which the first fills and the last drains."""
    (stretch,) = found(Schedule.INTERLEAVED, ranks=4, chunks=2, micro_batches=40)
    assert (stretch.period_s, stretch.micro_batches) == (pytest.approx(24.0), 4)
    assert 8 <= stretch.count <= 9


def test_forwards_and_backwards_of_gpipe_repeat_apart() -> None:
    """Twelve forwards of 1 s and twelve backwards of 2 s on three ranks."""
    forwards, backwards = found(Schedule.GPIPE, ranks=3, micro_batches=12)
    assert (forwards.period_s, backwards.period_s) == (pytest.approx(1.0), pytest.approx(2.0))
    assert forwards.end_s <= backwards.start_s


def test_stages_with_paces_of_their_own_are_not_folded_together() -> None:
    """In GPipe a first stage of 1 s a forward runs ahead of one of 1.7 s: only after its twelfth do forwards repeat, and those of
    the second stage alone. Backwards, of 3.4 s at the slowest, are in step."""
    forwards, backwards = found(Schedule.GPIPE, ranks=2, micro_batches=12, forward=[1.0, 1.7])
    assert forwards.start_s >= 11.0
    assert forwards.period_s == pytest.approx(1.7)
    assert backwards.period_s == pytest.approx(3.4)


def test_too_few_micro_batches_are_not_folded() -> None:
    assert found(Schedule.ONE_F_ONE_B, ranks=4, micro_batches=5) == ()
    assert found(Schedule.ONE_F_ONE_B, ranks=1, micro_batches=1) == ()
