"""Why a plan is not tried, in words for somebody who wrote a request and has seen no row."""

from __future__ import annotations

from app.tuning.backends import one_line
from cost_models.errors import InvalidInputError, Problem


def test_a_reason_names_its_field_once_and_no_place_in_a_row() -> None:
    named = Problem("/strategy/recompute", "recompute is selective", "Leave it out.")
    unnamed = Problem("/strategy/sequence_parallel", "trials run tensors with it", "Set it to true.")
    whole = Problem("", "nothing can be run", "")
    assert one_line(InvalidInputError([named, unnamed])) == (
        "recompute is selective. Leave it out. sequence_parallel: trials run tensors with it. Set it to true."
    )
    assert one_line(InvalidInputError([whole])) == "nothing can be run."
