"""The closed forms of the schedules against an event-by-event pipeline: every task of every micro-batch starts as soon as
its rank is free and its input has arrived, in the order that the schedule prescribes to its rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.inputs.model import resolve_model
from cost_models.step.interleaving import interleaved_s
from cost_models.step.pipeline import bubble_s
from cost_models.strategies.fields import Schedule
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.strategy import ARRAY_FIELDS, build_strategies

Task = tuple[str, int, int]
"""("F" forward, "B" backward or its data-gradient part, "W" weight gradient; chunk; micro-batch)."""
Order = Callable[..., list[Task]]


def one_f_one_b(rank: int, *, ranks: int, micro_batches: int) -> list[Task]:
    """1F1B (PipeDream-flush): p - r - 1 forwards to warm up, then pairs, then the remaining backwards."""
    warm_up = min(ranks - rank - 1, micro_batches)
    tasks: list[Task] = [("F", 0, m) for m in range(warm_up)]
    for m in range(micro_batches - warm_up):
        tasks += [("F", 0, warm_up + m), ("B", 0, m)]
    return tasks + [("B", 0, m) for m in range(micro_batches - warm_up, micro_batches)]


def gpipe(_rank: int, *, ranks: int, micro_batches: int) -> list[Task]:
    """All forwards, then all backwards in reverse."""
    assert ranks
    return [("F", 0, m) for m in range(micro_batches)] + [("B", 0, m) for m in reversed(range(micro_batches))]


def interleaved(rank: int, *, ranks: int, micro_batches: int, chunks: int) -> list[Task]:
    """Interleaved 1F1B: micro-batches pass in groups of p through every chunk (Narayanan 2021, section 2.2)."""
    total = micro_batches * chunks
    warm_up = min(2 * (ranks - rank - 1) + (chunks - 1) * ranks, total)

    def task(kind: str, position: int) -> Task:
        group, inside = divmod(position, ranks * chunks)
        chunk = inside // ranks
        return kind, chunk if kind == "F" else chunks - 1 - chunk, group * ranks + inside % ranks

    tasks = [task("F", position) for position in range(warm_up)]
    for position in range(total - warm_up):
        tasks += [task("F", warm_up + position), task("B", position)]
    return tasks + [task("B", position) for position in range(total - warm_up, total)]


def zb_h1(rank: int, *, ranks: int, micro_batches: int) -> list[Task]:
    """1F1B with the weight gradient apart: rank r does its first one r micro-batches late (Qi 2023, section 2.3)."""
    tasks: list[Task] = []
    backwards = 0
    for task in one_f_one_b(rank, ranks=ranks, micro_batches=micro_batches):
        tasks.append(task)
        backwards += task[0] == "B"
        if task[0] == "B" and backwards > rank:
            tasks.append(("W", 0, backwards - 1 - rank))
    late = [("W", 0, m) for m in range(max(micro_batches - rank, 0), micro_batches)]
    return tasks + late


def simulated_s(orders: Sequence[Sequence[Task]], *, seconds: dict[str, Sequence[float]]) -> float:
    """Seconds until every rank has finished its order; `seconds` by kind of task and virtual stage."""
    ranks = len(orders)
    last = 1 + max(chunk for _, chunk, _ in orders[0])
    last = last * ranks - 1
    done: dict[tuple[str, int, int], float] = {}
    clock, position = [0.0] * ranks, [0] * ranks
    while any(position[r] < len(orders[r]) for r in range(ranks)):
        moved = False
        for r in range(ranks):
            if position[r] == len(orders[r]):
                continue
            kind, chunk, m = orders[r][position[r]]
            stage = chunk * ranks + r
            needs = {
                "F": ("F", stage - 1, m) if stage else None,
                "B": ("B", stage + 1, m) if stage < last else ("F", stage, m),
                "W": ("B", stage, m),
            }[kind]
            if needs is not None and needs not in done:
                continue
            clock[r] = max(clock[r], done[needs] if needs is not None else 0.0) + seconds[kind][stage]
            done[kind, stage, m] = clock[r]
            position[r] += 1
            moved = True
        assert moved, "deadlock"
    return max(clock)


def simulated_plain_s(
    order: Order, *, micro_batches: int, forward: Sequence[float], backward: Sequence[float]
) -> float:
    orders = [order(rank, ranks=len(forward), micro_batches=micro_batches) for rank in range(len(forward))]
    return simulated_s(orders, seconds={"F": forward, "B": backward})


def closed_form_s(
    schedule: Schedule,
    *,
    micro_batches: int,
    stage_s: Sequence[float],
    vpp: int = 1,
    forward_s: float = 0.0,
    wgrad_s: float = 0.0,
) -> float:
    """m * slowest + bubble, as the step model adds it up."""
    stages = len(stage_s)
    sizes = {
        "num_layers": stages,
        "hidden_size": 64,
        "num_attention_heads": 1,
        "intermediate_size": 64,
        "vocab_size": 64,
    }
    layouts = build_layouts([Layout(stages, 1, (1,) * stages)], model=resolve_model(sizes))
    row = dict.fromkeys(ARRAY_FIELDS, 1) | {"pp": stages, "vpp": vpp, "layout": 0, "schedule": schedule}
    row["num_micro_batches"] = micro_batches
    strategies = build_strategies({name: [value] for name, value in row.items()}, layouts=layouts)
    bubble = bubble_s(
        strategies,
        stages_sum_s=np.array([sum(stage_s)]),
        slowest_s=np.array([max(stage_s)]),
        forward_s=np.array([forward_s]),
        wgrad_s=np.array([wgrad_s]),
    )
    return micro_batches * max(stage_s) + float(bubble[0])


SCHEDULES = [(one_f_one_b, Schedule.ONE_F_ONE_B), (gpipe, Schedule.GPIPE)]
times = st.floats(min_value=0.05, max_value=1.0)
counts = st.integers(min_value=1, max_value=6)


def test_the_simulator_itself_by_hand() -> None:
    """2 ranks, 2 micro-batches, forward 1, backward 2. Rank 1: F0 1-2, B0 2-4, F1 4-5, B1 5-7; rank 0 ends with B1 7-9."""
    assert simulated_plain_s(one_f_one_b, micro_batches=2, forward=[1, 1], backward=[2, 2]) == 9.0
    assert simulated_plain_s(one_f_one_b, micro_batches=1, forward=[1, 1], backward=[2, 2]) == 6.0


@pytest.mark.parametrize(("order", "schedule"), SCHEDULES)
@given(stages=counts, micro_batches=counts, forward=times, backward=times)
def test_equal_stages_are_exact(
    order: Order, schedule: Schedule, stages: int, micro_batches: int, forward: float, backward: float
) -> None:
    """(m + p - 1) * t for any number of micro-batches, fewer than the stages too."""
    simulated = simulated_plain_s(
        order, micro_batches=micro_batches, forward=[forward] * stages, backward=[backward] * stages
    )
    assert simulated == pytest.approx((micro_batches + stages - 1) * (forward + backward))
    closed = closed_form_s(schedule, micro_batches=micro_batches, stage_s=[forward + backward] * stages)
    assert closed == pytest.approx(simulated)


@given(
    forward=st.lists(times, min_size=2, max_size=6), micro_batches=st.integers(1, 10), ratio=st.floats(1.0, 3.0),
    extra=st.floats(0.0, 0.5),
)  # fmt: skip
def test_a_slowest_last_stage_is_exact(forward: list[float], micro_batches: int, ratio: float, extra: float) -> None:
    """The usual case: the head makes the last stage the slowest; backward is a fixed multiple of forward."""
    forward = [*forward[:-1], max(forward) + extra]
    backward = [ratio * each for each in forward]
    simulated = simulated_plain_s(one_f_one_b, micro_batches=micro_batches, forward=forward, backward=backward)
    stage_s = [f + b for f, b in zip(forward, backward, strict=True)]
    closed = closed_form_s(Schedule.ONE_F_ONE_B, micro_batches=micro_batches, stage_s=stage_s)
    assert closed == pytest.approx(simulated)


@given(forward=st.lists(times, min_size=2, max_size=6), micro_batches=st.integers(1, 10), ratio=st.floats(1.0, 3.0))
def test_with_one_ratio_of_backward_to_forward_the_closed_form_is_an_upper_bound(
    forward: list[float], micro_batches: int, ratio: float
) -> None:
    """GPipe is exact wherever the slowest stage is; 1F1B is overstated by less than one trip down and up."""
    backward = [ratio * each for each in forward]
    stage_s = [f + b for f, b in zip(forward, backward, strict=True)]
    filled_and_drained = simulated_plain_s(gpipe, micro_batches=micro_batches, forward=forward, backward=backward)
    assert closed_form_s(Schedule.GPIPE, micro_batches=micro_batches, stage_s=stage_s) == pytest.approx(
        filled_and_drained
    )
    simulated = simulated_plain_s(one_f_one_b, micro_batches=micro_batches, forward=forward, backward=backward)
    closed = closed_form_s(Schedule.ONE_F_ONE_B, micro_batches=micro_batches, stage_s=stage_s)
    assert simulated <= closed * (1 + 1e-9)
    assert closed - simulated <= sum(stage_s)


@pytest.mark.parametrize(("order", "schedule"), SCHEDULES)
@given(stages=st.lists(st.tuples(times, st.floats(1.5, 3.0)), min_size=2, max_size=6), micro_batches=st.integers(1, 10))
def test_stages_of_different_ratios_stay_within_the_stated_slack(
    order: Order, schedule: Schedule, stages: list[tuple[float, float]], micro_batches: int
) -> None:
    """Where some stages recompute and others don't, backward over forward differs: at most a tenth too little is promised."""
    forward, backward = [f for f, _ in stages], [f * ratio for f, ratio in stages]
    simulated = simulated_plain_s(order, micro_batches=micro_batches, forward=forward, backward=backward)
    stage_s = [f + b for f, b in zip(forward, backward, strict=True)]
    closed = closed_form_s(schedule, micro_batches=micro_batches, stage_s=stage_s)
    assert 0.9 * simulated <= closed <= simulated + sum(stage_s)


@given(
    ranks=st.integers(2, 5),
    groups=st.integers(1, 3),
    chunks=st.integers(2, 4),
    forward=times,
    ratio=st.floats(1.0, 3.0),
)
def test_interleaving_divides_the_bubble_by_the_chunks(
    ranks: int, groups: int, chunks: int, forward: float, ratio: float
) -> None:
    """Equal chunks and whole groups of p micro-batches: m * t + (p - 1) * t / v exactly."""
    micro_batches, backward = groups * ranks, ratio * forward
    orders = [interleaved(rank, ranks=ranks, micro_batches=micro_batches, chunks=chunks) for rank in range(ranks)]
    simulated = simulated_s(orders, seconds={"F": [forward] * ranks * chunks, "B": [backward] * ranks * chunks})
    stage_s = [chunks * (forward + backward)] * ranks
    closed = closed_form_s(Schedule.INTERLEAVED, micro_batches=micro_batches, stage_s=stage_s, vpp=chunks)
    assert closed == pytest.approx(simulated)


@given(data=st.data(), ranks=st.integers(2, 6), rounds=st.integers(1, 7), chunks=st.integers(2, 4))
def test_chunks_of_any_times_are_exact(data: st.DataObject, ranks: int, rounds: int, chunks: int) -> None:
    """Each virtual stage has a forward and a backward of its own, nothing included, as a chunk without layers has."""
    size = ranks * chunks
    rows = st.lists(st.one_of(st.just(0.0), times), min_size=size, max_size=size)
    forward, backward = data.draw(rows), data.draw(rows)
    micro_batches = rounds * ranks
    orders = [interleaved(rank, ranks=ranks, micro_batches=micro_batches, chunks=chunks) for rank in range(ranks)]
    simulated = simulated_s(orders, seconds={"F": forward, "B": backward})
    assert played_s(forward, backward, ranks=ranks, micro_batches=micro_batches) == pytest.approx(simulated)


@pytest.mark.parametrize("micro_batches", [64, 512])
@pytest.mark.parametrize(
    "layers", [[0, 0, 0, 1, 1, 1], [1, 3, 2, 2, 2, 3, 3, 1], [2, 2, 3, 1], [7, 8, 8, 7, 8, 8, 8, 7]]
)
def test_many_rounds_are_exact(layers: list[int], micro_batches: int) -> None:
    """Rounds that are multiplied rather than played come to the same."""
    ranks = len(layers) // 2
    micro_batches -= micro_batches % ranks
    orders = [interleaved(rank, ranks=ranks, micro_batches=micro_batches, chunks=2) for rank in range(ranks)]
    forward, backward = [1.0 * each for each in layers], [2.0 * each for each in layers]
    simulated = simulated_s(orders, seconds={"F": forward, "B": backward})
    assert played_s(forward, backward, ranks=ranks, micro_batches=micro_batches) == pytest.approx(simulated)


def played_s(forward: Sequence[float], backward: Sequence[float], *, ranks: int, micro_batches: int) -> float:
    return float(
        interleaved_s(
            np.array(forward)[:, None], np.array(backward)[:, None], pp=ranks, vpp=len(forward) // ranks,
            num_micro_batches=np.array([float(micro_batches)]),
        )[0]
    )  # fmt: skip


@given(ranks=st.integers(2, 6), more=st.integers(0, 6), forward=times, inputs=times, weights=times)
def test_zb_h1_hides_weight_gradients_in_the_gaps(
    ranks: int, more: int, forward: float, inputs: float, weights: float
) -> None:
    """(p - 1)(F + I - W), but no less than one trip of forwards or of data gradients; at one length T (p - 1) T."""
    micro_batches = 2 * ranks + more
    orders = [zb_h1(rank, ranks=ranks, micro_batches=micro_batches) for rank in range(ranks)]
    simulated = simulated_s(orders, seconds={"F": [forward] * ranks, "B": [inputs] * ranks, "W": [weights] * ranks})
    each = forward + inputs + weights
    closed = closed_form_s(
        Schedule.ZB_H1, micro_batches=micro_batches, stage_s=[each] * ranks, forward_s=forward, wgrad_s=weights
    )
    assert closed == pytest.approx(simulated)


POOLED = [  # layers of each virtual stage, stages, those on the slower pool, micro-batches
    ([6, 6, 6, 6, 14, 14, 14, 14], 8, range(4), 64),
    ([11, 11, 4, 4, 4, 4, 11, 11, 11, 9], 10, range(2, 6), 128),
    ([0, 1, 1, 1, 3, 3, 3, 3] + [1, 1, 1, 1, 3, 3, 3, 3] * 2 + [1, 1, 1, 1, 3, 3, 3, 2] + [1, 2, 2, 2, 3, 3, 3, 2],
     8, range(4), 64),
    (([3] * 8 + [1] * 8) * 3, 16, range(8, 16), 96),
]  # fmt: skip
"""Splits that the planner finds for two pools, one of which takes 0.36 of the other's time a layer."""


@pytest.mark.parametrize(("layers", "stages", "slow", "micro_batches"), POOLED)
def test_pipelines_over_two_pools_stay_within_the_stated_slack(
    layers: list[int], stages: int, slow: range, micro_batches: int
) -> None:
    """1F1B within a hundredth; interleaved, with chunks that whole layers leave unequal, exactly."""
    chunks = len(layers) // stages
    forward = [held * (1.0 if index % stages in slow else 0.36) / 3 + 1e-9 for index, held in enumerate(layers)]
    forward[-1] += 0.1  # the head
    backward = [2 * each for each in forward]
    if chunks == 1:
        order, schedule = one_f_one_b, Schedule.ONE_F_ONE_B
        simulated = simulated_plain_s(order, micro_batches=micro_batches, forward=forward, backward=backward)
    else:
        orders = [interleaved(r, ranks=stages, micro_batches=micro_batches, chunks=chunks) for r in range(stages)]
        simulated = simulated_s(orders, seconds={"F": forward, "B": backward})
    if chunks == 1:
        stage_s = [3 * each for each in forward]
        price = closed_form_s(schedule, micro_batches=micro_batches, stage_s=stage_s)
    else:
        price = played_s(forward, backward, ranks=stages, micro_batches=micro_batches)
    assert price == pytest.approx(simulated, rel=0.01 if chunks == 1 else 1e-9)
