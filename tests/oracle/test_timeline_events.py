"""Played pipelines against the event simulators of the neighbouring files, which other orders than ours are played with."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.strategies.fields import Schedule
from planner.timeline.orders import rank_orders
from planner.timeline.play import Durations, played
from tests.oracle import test_pipeline_events as simulator
from tests.oracle import test_torch_schedules as torch_simulator

CASES = [
    (Schedule.ONE_F_ONE_B, 4, 1, 9),
    (Schedule.ONE_F_ONE_B, 5, 1, 3),
    (Schedule.INTERLEAVED, 4, 3, 12),
    (Schedule.ZB_H1, 4, 1, 9),
]
ORDERS = {
    Schedule.ONE_F_ONE_B: simulator.one_f_one_b,
    Schedule.INTERLEAVED: simulator.interleaved,
    Schedule.ZB_H1: simulator.zb_h1,
}


def drawn(stages: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds of forwards, data gradients and weight gradients, all different."""
    forward, inputs, weights = np.random.default_rng(stages).uniform(0.1, 1.0, (3, stages)).tolist()
    return forward, inputs, weights


@pytest.mark.parametrize(("schedule", "ranks", "chunks", "micro_batches"), CASES)
def test_the_simulator_of_plain_schedules(schedule: Schedule, ranks: int, chunks: int, micro_batches: int) -> None:
    forward, inputs, weights = drawn(ranks * chunks)
    sizes = {"ranks": ranks, "micro_batches": micro_batches} | ({"chunks": chunks} if chunks > 1 else {})
    orders = [ORDERS[schedule](rank, **sizes) for rank in range(ranks)]
    splits = schedule == Schedule.ZB_H1
    whole = [i + w for i, w in zip(inputs, weights, strict=True)]
    expected = simulator.simulated_s(orders, seconds={"F": forward, "B": inputs if splits else whole, "W": weights})
    durations = Durations(tuple(forward), tuple(whole), tuple(weights))
    own = rank_orders(schedule, ranks=ranks, chunks=chunks, micro_batches=micro_batches)
    assert played(own, durations).seconds == pytest.approx(expected)


@pytest.mark.parametrize("schedule", [Schedule.ZB_V, Schedule.DUALPIPE_V, Schedule.INTERLEAVED])
@pytest.mark.parametrize("ranks", [2, 4, 5])
def test_the_simulator_of_torch_orders(schedule: Schedule, ranks: int) -> None:
    forward, inputs, weights = drawn(2 * ranks)
    tasks = torch_simulator.orders(schedule, ranks=ranks, micro_batches=3 * ranks)
    expected, _ = torch_simulator.played_s(tasks, forward=forward, inputs=inputs, weights=weights)
    whole = tuple(i + w for i, w in zip(inputs, weights, strict=True))
    own = rank_orders(schedule, ranks=ranks, chunks=2, micro_batches=3 * ranks)
    folded = schedule != Schedule.INTERLEAVED
    assert played(own, Durations(tuple(forward), whole, tuple(weights)), folded=folded).seconds == pytest.approx(
        expected
    )
