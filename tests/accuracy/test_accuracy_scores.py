"""Scores on the measured runs against the accepted ones: drifts are shown, a plan that turns from fitting to failing blocks.

After a change that is meant to move scores: `python -m benchmarks.accuracy_report --write --baseline`, and an entry in
docs/ACCURACY_LOG.md.
"""

from __future__ import annotations

import pytest

from benchmarks.accuracy.baseline import drifts, read_baseline, snapshot, turned
from benchmarks.accuracy.figures import figures
from benchmarks.accuracy.state import State, evaluate_state


@pytest.fixture(scope="module")
def state() -> State:
    return evaluate_state()


def test_no_row_turns_from_fitting_to_failing(state: State) -> None:
    """A run that happened is never newly called impossible, nor one that ran out of memory newly called safe."""
    assert list(turned(read_baseline(), state)) == []


def test_every_row_answered_before_is_answered(state: State) -> None:
    """Rows that the planner refuses are counted in the baseline's verdicts."""
    accepted = read_baseline()["verdicts"]
    refused = {
        row["id"]
        for source in state.sources.values()
        for row, answered in zip(source.rows.rows, source.rows.answered, strict=True)
        if not answered
    }
    assert refused - {row for row, verdict in accepted.items() if verdict == "invalid"} == set()


def test_score_drifts_are_shown(state: State, record_property) -> None:
    """Moves above one point, better or worse, stand below the test results; whether they are wanted is for the reader."""
    accepted, now = read_baseline(), snapshot(state)
    for line in drifts(accepted, now):
        record_property("accuracy drift", line)
    assert now["scores"].keys() <= accepted["scores"].keys()
    assert now["bars"].keys() <= accepted["bars"].keys()


def test_predictions_beat_the_null_model_pooled(state: State) -> None:
    """Over all rows the error is at most a third of that of '6 N tokens at the median rate of the source's other runs'."""
    found = figures(state.all_scored())
    assert found["timed"] > 1000
    assert found["vs_null"] < 1 / 3
