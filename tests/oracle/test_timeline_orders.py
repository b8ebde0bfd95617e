"""The orders of tasks that timelines play, against those of PyTorch's own schedules and of Megatron Core's schedule table."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.strategies.fields import V_SHAPED, Schedule
from planner.timeline.orders import Kind, rank_orders
from planner.timeline.play import virtual_stage

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

LETTER = {Kind.FORWARD: "F", Kind.BACKWARD: "B", Kind.DATA_GRADIENT: "I", Kind.WEIGHT_GRADIENT: "W"}
CLASSES = {
    Schedule.ONE_F_ONE_B: "Schedule1F1B", Schedule.GPIPE: "ScheduleGPipe", Schedule.ZB_V: "ScheduleZBVZeroBubble",
    Schedule.DUALPIPE_V: "ScheduleDualPipeV", Schedule.INTERLEAVED: "ScheduleInterleaved1F1B",
}  # fmt: skip
Told = list[list[list[tuple[str, int, int]]]]
"""By rank, the groups of (letter, virtual stage, micro-batch)."""


def ours(schedule: Schedule, *, ranks: int, chunks: int, micro_batches: int) -> Told:
    folded = schedule in V_SHAPED
    return [
        [
            [(LETTER[kind], virtual_stage(rank, chunk, ranks=ranks, folded=folded), m) for kind, chunk, m in group]
            for group in groups
        ]
        for rank, groups in enumerate(rank_orders(schedule, ranks=ranks, chunks=chunks, micro_batches=micro_batches))
    ]


def of_torch(schedule: Schedule, *, ranks: int, chunks: int, micro_batches: int) -> Told:
    """What PyTorch's class says, asked without processes: the attributes that its method reads are set by hand."""
    plan: Any = object.__new__(getattr(schedules, CLASSES[schedule]))
    plan.pp_group_size, plan._n_microbatches = ranks, micro_batches
    plan.num_stages = plan._num_stages = chunks * ranks
    plan.n_local_stages = chunks
    plan.number_of_rounds = max(1, micro_batches // ranks)
    plan.microbatches_per_round = micro_batches // plan.number_of_rounds
    kind = schedules._ComputationType
    letter = {kind.FORWARD: "F", kind.BACKWARD_INPUT: "I", kind.BACKWARD_WEIGHT: "W", kind.FULL_BACKWARD: "B"}
    found = []
    single = plan._get_pipeline_order() if chunks == 1 else None
    for rank in range(ranks):
        plan.rank = rank
        actions = single[rank] if single else plan._calculate_single_rank_operations(rank)
        parts = [action.sub_actions or (action,) for action in actions if action is not None]
        told = [
            [
                (letter[p.computation_type], p.stage_index, p.microbatch_index)
                for p in each
                if p.computation_type in letter
            ]
            for each in parts
        ]
        found.append([each for each in told if each])
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.GPIPE])
def test_one_chunk_a_rank(schedule: Schedule, ranks: int) -> None:
    for micro_batches in (ranks, ranks + 1, 3 * ranks):
        sizes = {"ranks": ranks, "chunks": 1, "micro_batches": micro_batches}
        found, expected = ours(schedule, **sizes), of_torch(schedule, **sizes)
        if schedule == Schedule.ONE_F_ONE_B:
            # PyTorch writes its last rank's forwards one number too high, up to one that does not exist (`forward_mb` starts at 0
            # and is raised before the first one, where no forward fills the pipeline); what it runs counts them from 0.
            expected[-1] = [[(kind, stage, m - (kind == "F"))] for [(kind, stage, m)] in expected[-1]]
        assert found == expected


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("schedule", [Schedule.ZB_V, Schedule.DUALPIPE_V])
def test_v_shaped(schedule: Schedule, ranks: int) -> None:
    few = (1, 3) if schedule == Schedule.ZB_V else ()
    for micro_batches in (*few, 2 * ranks, 2 * ranks + 3, 5 * ranks):
        sizes = {"ranks": ranks, "chunks": 2, "micro_batches": micro_batches}
        assert ours(schedule, **sizes) == of_torch(schedule, **sizes)


@pytest.mark.parametrize(
    ("micro_batches", "ranks", "chunks"),
    [(8, 4, 2), (10, 4, 2), (7, 4, 2), (12, 8, 2), (36, 8, 3), (2, 4, 3), (12, 4, 5)],
)
def test_interleaved_in_rounds_of_any_size(micro_batches: int, ranks: int, chunks: int) -> None:
    sizes = {"ranks": ranks, "chunks": chunks, "micro_batches": micro_batches}
    assert ours(Schedule.INTERLEAVED, **sizes) == of_torch(Schedule.INTERLEAVED, **sizes)


@given(ranks=st.integers(2, 6), groups=st.integers(1, 4), chunks=st.integers(2, 4), ahead=st.sampled_from([0, 1]))
def test_megatron_table(ranks: int, groups: int, chunks: int, ahead: int) -> None:
    """Megatron Core's schedules.py, written anew from its description: a table of (micro-batch, chunk) in groups of p
    micro-batches; forwards follow it, backwards follow it with the chunks reversed, (p - r - 1) 2 + (v - 1) p forwards first
    and one more where experts' exchanges overlap another micro-batch's passes."""
    micro_batches = groups * ranks
    table = [(g * ranks + m, chunk) for g in range(groups) for chunk in range(chunks) for m in range(ranks)]
    found = rank_orders(Schedule.INTERLEAVED, ranks=ranks, chunks=chunks, micro_batches=micro_batches, runs_ahead=ahead)
    for rank, groups_of_rank in enumerate(found):
        first = min((ranks - rank - 1) * 2 + (chunks - 1) * ranks + ahead, len(table))
        forwards = [(Kind.FORWARD, chunk, m) for m, chunk in table]
        backwards = [(Kind.BACKWARD, chunks - 1 - chunk, m) for m, chunk in table]
        expected = forwards[:first]
        for at in range(len(table) - first):
            expected += [forwards[first + at], backwards[at]]
        expected += backwards[len(table) - first :]
        assert [task for group in groups_of_rank for task in group] == expected
