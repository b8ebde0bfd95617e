"""The memory of a stage over a step: it rises to the estimate's peak and returns to what is held throughout."""

from __future__ import annotations

import pytest
from timeline_rows import ROWS

from planner.rows import evaluate_rows
from planner.timeline.memory import fullest_stage, stage_trace
from planner.timeline.step import plan_timeline


@pytest.mark.parametrize("name", ROWS)
def test_every_stage_rises_to_its_estimated_peak(name: str) -> None:
    (evaluation,) = evaluate_rows([ROWS[name]])
    timeline = plan_timeline(ROWS[name], evaluation)
    for stage in evaluation["memory"]["stages"]:
        trace = stage_trace(timeline, stage["stage"])
        assert trace.peak_bytes == stage["peak_allocated_bytes"]
        # Blocks are whole bytes, so that a few dozen roundings may add up.
        assert trace.highest_bytes() == pytest.approx(stage["peak_allocated_bytes"], abs=200)


@pytest.mark.parametrize("name", ROWS)
def test_what_is_taken_is_given_back_and_nothing_twice(name: str) -> None:
    trace = stage_trace(plan_timeline(ROWS[name]), 0)
    alive = set(trace.held)
    for change in trace.changes:
        assert (change.block in alive) != change.taken
        alive ^= {change.block}
    assert alive == set(trace.held)
    times = [change.time_s for change in trace.changes]
    assert times == sorted(times)


def test_the_first_stage_keeps_as_many_micro_batches_as_there_are_stages() -> None:
    """1F1B on four stages: four micro-batches are alive on the first, one on the last."""
    timeline = plan_timeline(ROWS["1f1b"])
    for stage, expected in ((0, 4), (3, 1)):
        trace = stage_trace(timeline, stage)
        alive = most = 0
        for change in trace.changes:
            alive += (1 if change.taken else -1) * (trace.blocks[change.block].what == "activations")
            most = max(most, alive)
        assert most == expected


def test_activations_are_handed_out_by_layers() -> None:
    """A stage with chunks of one and two layers: a micro-batch of the larger one takes twice as much."""
    trace = stage_trace(plan_timeline(ROWS["unlike chunks"]), 0)
    sizes = {block.chunk: block.size_bytes for block in trace.blocks if block.what == "activations"}
    assert sizes[1] == pytest.approx(2 * sizes[0], abs=2)


def test_the_fullest_stage_is_the_evaluations() -> None:
    (evaluation,) = evaluate_rows([ROWS["interleaved"]])
    stages = evaluation["memory"]["stages"]
    fullest = max(stages, key=lambda stage: stage["peak_allocated_bytes"])
    assert fullest_stage(plan_timeline(ROWS["interleaved"])) == fullest["stage"]
