"""PyTorch's own pipeline schedules, played task by task, against the closed forms of bubble and activations in flight.

The order of each rank's tasks comes from `torch.distributed.pipelining.schedules`, without processes or communication. An
overlapped forward and backward is one task, as in torch's runtime: it starts when both have their inputs, and what either
makes is sent when both are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cost_models.inputs.model import resolve_model
from cost_models.memory.in_flight import micro_batches_in_flight, stage_contents
from cost_models.step.interleaving import interleaved_s
from cost_models.step.pipeline import bubble_s
from cost_models.strategies.fields import Schedule
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.strategy import ARRAY_FIELDS, Strategies, build_strategies

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

Task = tuple[str, int, int]
"""(letter of the computation: F, I, W or B, which is I and W; stage; micro-batch)."""
CLASSES = {
    Schedule.ZB_V: "ScheduleZBVZeroBubble", Schedule.DUALPIPE_V: "ScheduleDualPipeV",
    Schedule.INTERLEAVED: "ScheduleInterleaved1F1B",
}  # fmt: skip


def orders(schedule: Schedule, *, ranks: int, micro_batches: int, chunks: int = 2) -> list[list[list[Task]]]:
    """Every rank's tasks, each of one or two computations."""
    kind = schedules._ComputationType
    letter = {kind.FORWARD: "F", kind.BACKWARD_INPUT: "I", kind.BACKWARD_WEIGHT: "W", kind.FULL_BACKWARD: "B"}
    found = []
    for rank in range(ranks):
        plan: Any = object.__new__(getattr(schedules, CLASSES[schedule]))
        plan.pp_group_size, plan._n_microbatches, plan.rank = ranks, micro_batches, rank
        plan.num_stages = plan._num_stages = chunks * ranks
        plan.n_local_stages = chunks
        plan.number_of_rounds = max(1, micro_batches // ranks)
        plan.microbatches_per_round = micro_batches // plan.number_of_rounds
        actions = [action for action in plan._calculate_single_rank_operations(rank) if action is not None]
        parts = [action.sub_actions or (action,) for action in actions]
        found.append(
            [[(letter[p.computation_type], p.stage_index, p.microbatch_index) for p in each] for each in parts]
        )
    return found


def bubble_played_s(tasks: list[list[list[Task]]], *, forward: float, inputs: float, weights: float) -> float:
    """Idle seconds of a rank in one step; seconds are a chunk's."""
    stages = 1 + max(stage for rank in tasks for each in rank for _, stage, _ in each)
    step, busy = played_s(tasks, forward=[forward] * stages, inputs=[inputs] * stages, weights=[weights] * stages)
    return step - busy


def played_s(
    tasks: list[list[list[Task]]], *, forward: Sequence[float], inputs: Sequence[float], weights: Sequence[float]
) -> tuple[float, float]:
    """Seconds of one step, and how many of them the busiest rank works; seconds are by virtual stage."""
    ranks, last = len(tasks), len(forward)
    both = [i + w for i, w in zip(inputs, weights, strict=True)]
    seconds = {"F": forward, "I": inputs, "W": weights, "B": both}
    done: dict[Task, float] = {}
    clock, position, busy = [0.0] * ranks, [0] * ranks, [0.0] * ranks

    def needs(letter: str, stage: int, micro_batch: int) -> Task | None:
        if letter == "F":
            return ("F", stage - 1, micro_batch) if stage else None
        if letter == "W":
            return "I", stage, micro_batch
        return ("I", stage + 1, micro_batch) if stage + 1 < last else ("F", stage, micro_batch)

    while any(position[r] < len(tasks[r]) for r in range(ranks)):
        moved = False
        for r in range(ranks):
            if position[r] == len(tasks[r]):
                continue
            task = tasks[r][position[r]]
            asked = [need for need in (needs(*part) for part in task) if need is not None]
            if any(need not in done for need in asked):
                continue
            length = sum(seconds[letter][stage] for letter, stage, _ in task)
            clock[r] = max([clock[r], *(done[need] for need in asked)]) + length
            busy[r] += length
            for letter, stage, micro_batch in task:
                done["I" if letter == "B" else letter, stage, micro_batch] = clock[r]
            position[r] += 1
            moved = True
        assert moved, "deadlock"
    return max(clock), max(busy)


def most_chunks_alive(tasks: Sequence[Sequence[Task]]) -> int:
    """Most chunks whose activations a rank holds: from a forward to the end of its backward."""
    alive = most = 0
    for task in tasks:
        for letter, _, _ in task:
            alive += letter == "F"
            most = max(most, alive)
            alive -= letter in "WB"
    return most


def batch_of(schedule: Schedule, *, ranks: int, micro_batches: int, chunks: int = 2) -> Strategies:
    stages = ranks * chunks
    sizes = {
        "num_layers": stages,
        "hidden_size": 64,
        "num_attention_heads": 1,
        "intermediate_size": 64,
        "vocab_size": 64,
    }
    layouts = build_layouts([Layout(ranks, chunks, (1,) * stages)], model=resolve_model(sizes), all_stages=True)
    row = dict.fromkeys(ARRAY_FIELDS, 1) | {
        "pp": ranks, "vpp": chunks, "layout": 0, "schedule": schedule, "num_micro_batches": micro_batches,
    }  # fmt: skip
    return build_strategies({name: [value] for name, value in row.items()}, layouts=layouts)


def closed_form_s(
    schedule: Schedule, *, ranks: int, forward: float, inputs: float, weights: float, chunks: int = 2
) -> float:
    stage = chunks * (forward + inputs + weights)
    found = bubble_s(
        batch_of(schedule, ranks=ranks, micro_batches=4 * ranks, chunks=chunks),
        stages_sum_s=np.array([ranks * stage]), slowest_s=np.array([stage]),
        forward_s=np.array([chunks * forward]), wgrad_s=np.array([chunks * weights]),
    )  # fmt: skip
    return float(found[0])


TIMES = [
    (0.5, 0.5, 0.5), (1, 1.3, 0.7), (1, 0.7, 1.3), (1, 1, 0.5), (1, 1.5, 0.2), (1, 2, 1), (1.5, 1, 1), (1, 0.5, 0.5),
    (1, 1.2, 1), (0.5, 1.4, 0.6), (2, 1, 1), (1, 2.8, 0.9),
]  # fmt: skip


@pytest.mark.parametrize(("ranks", "expected"), [(4, 3.0), (8, 7.0), (16, 15.0)])
def test_dualpipe_v_waits_a_whole_stage_for_each_other_rank(ranks: int, expected: float) -> None:
    """A stage's forward, data and weight gradients take 1 each, half of that a chunk: 3, 7 and 15."""
    tasks = orders(Schedule.DUALPIPE_V, ranks=ranks, micro_batches=4 * ranks)
    assert bubble_played_s(tasks, forward=0.5, inputs=0.5, weights=0.5) == pytest.approx(expected)
    assert closed_form_s(Schedule.DUALPIPE_V, ranks=ranks, forward=0.5, inputs=0.5, weights=0.5) == pytest.approx(
        expected
    )


def test_zb_v_of_unequal_times() -> None:
    """Eight ranks, a stage's forward 1, data gradients 1.3, weight gradients 0.7: 7 x 1.3 / 2 = 4.55."""
    tasks = orders(Schedule.ZB_V, ranks=8, micro_batches=32)
    assert bubble_played_s(tasks, forward=0.5, inputs=0.65, weights=0.35) == pytest.approx(4.55)
    assert closed_form_s(Schedule.ZB_V, ranks=8, forward=0.5, inputs=0.65, weights=0.35) == pytest.approx(4.55)


@pytest.mark.parametrize("schedule", [Schedule.ZB_V, Schedule.DUALPIPE_V])
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize(("forward", "inputs", "weights"), TIMES)
def test_v_shaped_schedules_promise_no_less_and_hardly_more(
    schedule: Schedule, ranks: int, forward: float, inputs: float, weights: float
) -> None:
    """Exact but for the ends of the V, which save up to a chunk's forward or data gradient."""
    tasks = orders(schedule, ranks=ranks, micro_batches=2 * ranks + 3)
    played = bubble_played_s(tasks, forward=forward, inputs=inputs, weights=weights)
    closed = closed_form_s(schedule, ranks=ranks, forward=forward, inputs=inputs, weights=weights)
    assert played <= closed + 1e-9
    assert closed - played <= max(forward, inputs) + 1e-9


@pytest.mark.parametrize(
    ("micro_batches", "ranks", "chunks"), [(8, 4, 2), (10, 4, 2), (7, 4, 2), (12, 8, 2), (12, 4, 3)]
)
def test_interleaving_divides_the_bubble_whatever_the_rounds(micro_batches: int, ranks: int, chunks: int) -> None:
    tasks = orders(Schedule.INTERLEAVED, ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    played = bubble_played_s(tasks, forward=1.0, inputs=1.0, weights=1.0)
    closed = closed_form_s(Schedule.INTERLEAVED, ranks=ranks, forward=1.0, inputs=1.0, weights=1.0, chunks=chunks)
    assert played == pytest.approx(closed) == pytest.approx((ranks - 1) * 3.0)


@pytest.mark.parametrize("unlike", [False, True])
@pytest.mark.parametrize(
    ("micro_batches", "ranks", "chunks"),
    [(8, 4, 2), (10, 4, 2), (7, 4, 2), (36, 8, 2), (12, 4, 3), (60, 4, 3), (1, 4, 2), (3, 4, 3), (5, 8, 2)],
)
def test_interleaved_chunks_of_any_times_in_any_rounds(
    micro_batches: int, ranks: int, chunks: int, unlike: bool
) -> None:
    """Rounds of as many micro-batches as ranks, of more, and one round of fewer: in the order of torch's own schedule."""
    stages = ranks * chunks
    times = (
        np.random.default_rng(7).uniform(0.1, 1.0, (2, stages))
        if unlike
        else np.array([[1.0], [2.0]]).repeat(stages, 1)
    )
    forward, backward = times
    tasks = orders(Schedule.INTERLEAVED, ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    step, _ = played_s(tasks, forward=forward.tolist(), inputs=backward.tolist(), weights=[0.0] * stages)
    found = interleaved_s(
        forward[:, None], backward[:, None], pp=ranks, vpp=chunks, num_micro_batches=np.array([float(micro_batches)])
    )
    assert found[0] == pytest.approx(step)
    if not unlike:
        batch = batch_of(Schedule.INTERLEAVED, ranks=ranks, micro_batches=micro_batches, chunks=chunks)
        bubble = bubble_s(
            batch, stages_sum_s=np.array([3.0 * stages]), slowest_s=np.array([3.0 * chunks]), forward_s=np.zeros(1),
            wgrad_s=np.zeros(1),
        )  # fmt: skip
        assert micro_batches * 3.0 * chunks + bubble[0] == pytest.approx(step)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_v_shaped_schedules_in_flight(ranks: int) -> None:
    """ZB-V holds p micro-batches of both chunks, DualPipe-V half a micro-batch more."""
    for schedule, expected in ((Schedule.ZB_V, 2 * ranks), (Schedule.DUALPIPE_V, 2 * ranks + 1)):
        alive = [most_chunks_alive(tasks) for tasks in orders(schedule, ranks=ranks, micro_batches=4 * ranks)]
        assert alive == [expected] * ranks
        assert 2 * micro_batches_in_flight(ranks, 2, 0, (1, 1), schedule) == expected


@pytest.mark.parametrize(
    ("micro_batches", "ranks", "chunks"), [(8, 4, 2), (10, 4, 2), (7, 4, 2), (6, 4, 2), (12, 8, 2), (14, 6, 2)]
)
def test_interleaved_rounds_in_flight(micro_batches: int, ranks: int, chunks: int) -> None:
    """Seven micro-batches on four ranks are one round of seven: all 14 chunks are alive on the first rank, not 11."""
    tasks = orders(Schedule.INTERLEAVED, ranks=ranks, micro_batches=micro_batches, chunks=chunks)
    held = stage_contents(batch_of(Schedule.INTERLEAVED, ranks=ranks, micro_batches=micro_batches, chunks=chunks))
    assert (chunks * held.in_flight_KN[:, 0]).tolist() == [most_chunks_alive(rank) for rank in tasks]
