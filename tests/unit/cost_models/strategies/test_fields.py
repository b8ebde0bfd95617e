"""The table of strategy fields: how values are stored, and that the arrays have a column of the right type for each."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.strategies.fields import COLUMNS, FIELD, FIELDS, Choice, Recompute, RecomputeMethod, Schedule
from cost_models.strategies.strategy import DTYPES, Strategies

TYPES = {"Floats": np.float64, "Codes": np.int8, "Bools": np.bool_, "Ints": np.int64}


def test_every_column_is_declared_with_the_type_it_is_stored_in() -> None:
    declared = {name: TYPES[kind] for name, kind in Strategies.__annotations__.items() if name != "layouts"}
    assert declared == dict(DTYPES)


def test_columns_without_a_field_follow_from_others() -> None:
    assert set(DTYPES) - set(COLUMNS) == {"num_micro_batches", "layout"}


@pytest.mark.parametrize("choice", Choice.__subclasses__())
def test_codes_count_from_zero_in_the_order_of_the_spellings(choice: type[Choice]) -> None:
    assert [int(member) for member in choice] == list(range(len(choice)))
    assert choice(1).label == list(choice)[1].label


def test_choices_are_stored_by_their_code() -> None:
    assert FIELD["schedule"].encoded("zb-h1") == Schedule.ZB_H1 == 3
    assert FIELD["schedule"].decoded(np.int8(5)) == "dualpipe-v"
    assert FIELD["recompute"].encoded("full") == Recompute.FULL == 2


def test_a_value_that_is_said_by_leaving_the_field_out_is_written_as_none() -> None:
    assert FIELD["recompute_method"].decoded(RecomputeMethod.EVERY) is None
    assert FIELD["recompute_method"].decoded(RecomputeMethod.BLOCK) == "block"
    assert FIELD["recompute_method"].spellings == ("block", "uniform")


def test_when_gradients_are_reduced_is_stored_as_a_flag() -> None:
    field = FIELD["grad_sync"]
    assert (field.column, field.encoded("each"), field.encoded("last")) == ("grad_sync_each", True, False)
    assert (field.decoded(True), field.decoded(False)) == ("each", "last")


def test_a_set_is_one_bit_for_each_value_however_often_it_is_named() -> None:
    """core_attn is bit 0 and moe bit 3: 1 + 8."""
    field = FIELD["recompute_modules"]
    assert field.encoded(["moe", "core_attn", "moe"]) == 9
    assert field.decoded(9) == ["core_attn", "moe"]
    assert field.decoded(0) == []


def test_whole_numbers_come_back_whole() -> None:
    degree, count, share = FIELD["tp"].decoded(8.0), FIELD["offload.activation_layers"].decoded(0.0), 0.5
    assert (degree, type(degree), count, type(count)) == (8, int, 0, int)
    assert FIELD["offload.optimizer_fraction"].decoded(share) == share


def test_names_reach_inside_objects_and_columns_do_not() -> None:
    field = FIELD["overlap.moe_all_to_all"]
    assert (field.group, field.part, field.column) == ("overlap", "moe_all_to_all", "overlap_moe_all_to_all")
    assert (FIELD["layers_per_stage"].column, FIELD["tp"].group, FIELD["tp"].part) == ("", "", "tp")


def test_no_two_fields_share_a_name() -> None:
    assert len({field.name for field in FIELDS}) == len(FIELDS)
