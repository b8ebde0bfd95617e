"""Distinct combinations of a batch: each once, and the way back to every row."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from cost_models.inputs.model import resolve_model
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.strategy import ARRAY_FIELDS, Strategies, build_strategies
from cost_models.strategies.tensors import distinct

MODEL = resolve_model(
    {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 64}
)


def batch(**columns: list[int] | list[float]) -> Strategies:
    layouts = build_layouts([Layout(1, 1, (2,))], model=MODEL)
    return build_strategies(dict.fromkeys(ARRAY_FIELDS, 1) | {"layout": 0} | columns, layouts=layouts)


def test_each_combination_comes_once_and_spreads_back() -> None:
    rows = batch(tp=[1, 2, 1, 2, 1], cp=[1, 1, 1, 4, 1], dp=[7, 8, 9, 10, 11])
    cases = distinct(rows, ("tp", "cp"))
    assert sorted(zip(cases.rows.tp, cases.rows.cp, strict=True)) == [(1, 1), (2, 1), (2, 4)]
    for name in ("tp", "cp"):
        assert cases.spread(getattr(cases.rows, name)).tolist() == getattr(rows, name).tolist()


def test_values_over_kinds_keep_their_leading_axes() -> None:
    cases = distinct(batch(tp=[1, 2, 1]), ("tp",))
    values_JU = np.stack([cases.rows.tp, 10 * cases.rows.tp])
    assert cases.spread(values_JU).tolist() == [[1, 2, 1], [10, 20, 10]]


def test_an_extra_column_tells_rows_apart() -> None:
    rows = batch(tp=[1, 1, 1])
    assert len(distinct(rows, ("tp",)).rows) == 1
    cases = distinct(rows, ("tp",), also=np.array([24.0, 0.0, 24.0]))
    assert len(cases.rows) == 2
    assert cases.inverse[0] == cases.inverse[2] != cases.inverse[1]


@pytest.mark.parametrize("scale", [1, 10**9])
def test_sparse_combinations_are_sorted_instead_of_tabled(scale: int) -> None:
    """100 x 100 combinations of which 200 occur: more cells than the presence table may have; and widely spaced values."""
    pairs = [(scale * (i % 100) + 1, 1 + (i * 37) % 100) for i in range(200)]
    rows = batch(tp=[a for a, _ in pairs], dp=[b for _, b in pairs])
    cases = distinct(rows, ("tp", "dp"))
    assert len(cases.rows) == len(set(pairs))
    assert list(zip(cases.spread(cases.rows.tp), cases.spread(cases.rows.dp), strict=True)) == pairs


def test_halves_are_no_whole_numbers() -> None:
    """A tower sees half an image for each sequence of a micro-batch."""
    rows = batch(micro_batch_size=[0.5, 1.5, 1.0, 0.75, 1.5])
    cases = distinct(rows, ("micro_batch_size",))
    assert len(cases.rows) == 4
    assert cases.spread(cases.rows.micro_batch_size).tolist() == [0.5, 1.5, 1.0, 0.75, 1.5]


def test_codes_and_flags_count_as_numbers() -> None:
    values = list(product([0, 1], [0, 1, 2]))
    rows = batch(sequence_parallel=[a for a, _ in values], recompute=[b for _, b in values])
    assert len(distinct(rows, ("sequence_parallel", "recompute")).rows) == 6


def test_an_empty_batch_has_no_combination() -> None:
    rows = batch(tp=[1]).take(np.zeros(1, np.bool_))
    assert len(distinct(rows, ("tp", "cp")).rows) == 0
