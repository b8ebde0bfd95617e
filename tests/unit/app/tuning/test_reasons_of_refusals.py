"""Why a plan is not tried, in words for somebody who wrote a request and has seen no row."""

from __future__ import annotations

import pytest

from app.tuning.backends import Device, one_line, stand_ins, without_bystanders
from app.tuning.rows import trial_row
from builders import dense_model, request_of
from cost_models.errors import InvalidInputError, Problem
from planner.plan import plan


def test_a_reason_names_its_field_once_and_no_place_in_a_row() -> None:
    named = Problem("/strategy/recompute", "recompute is selective", "Leave it out.")
    unnamed = Problem("/strategy/sequence_parallel", "trials run tensors with it", "Set it to true.")
    whole = Problem("", "nothing can be run", "")
    assert one_line(InvalidInputError([named, unnamed])) == (
        "recompute is selective. Leave it out. sequence_parallel: trials run tensors with it. Set it to true."
    )
    assert one_line(InvalidInputError([whole])) == "nothing can be run."


@pytest.mark.parametrize(("device", "cp", "runs"), [("cuda", 1, True), ("cuda", 2, False), ("cpu", 1, False)])
def test_flex_attention_runs_where_it_can_and_is_told_where_something_stands_in(
    device: Device, cp: int, runs: bool
) -> None:
    response = plan(request_of(dense_model(8), "torchtitan", cluster={"gpus_per_node": 4}))
    row = trial_row(response, 1)
    row = {**row, "strategy": {**row["strategy"], "cp": cp, "dp": 4 // cp, "tp": 1, "pp": 1}}
    assert row["training"]["attention_kernel"] == "flex"
    assert without_bystanders(row, device)["training"]["attention_kernel"] == ("flex" if runs else "sdpa")
    assert len(stand_ins(row, device)) == (not runs)
