"""How widths of ranges follow from scores, and that the shipped ones follow from the rows."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.accuracy.left_out import stored_left_out
from benchmarks.accuracy.range_scores import (
    RangeRows,
    covered,
    equal_weights,
    factors,
    half_widths,
    joined,
    machine_half_width,
    quantile,
)
from benchmarks.accuracy.state import evaluate_state
from benchmarks.range_widths import coverage, document_of, sources_of
from cost_models.step.range_widths import WIDTHS_FILE, RangeWidths, Regime, widths_of

STALE = 0.15
"""A shipped width further than this from what the rows ask for has to be written anew."""


def rows(errors: list[float], *, sources: str, regime: Regime = Regime.COMPUTE, own: float = 0.1) -> RangeRows:
    """Rows of sources named by single letters, each on one machine."""
    n = len(errors)
    return RangeRows(
        source=np.array(list(sources)),
        machine=np.array(list(sources)),
        complete=np.ones(n, np.bool_),
        regime=np.full(n, int(regime)),
        own_low=np.full(n, own),
        own_high=np.full(n, own),
        profiled=np.zeros(n, np.bool_),
        open_low=np.zeros(n),
        open_high=np.zeros(n),
        error=np.array(errors),
    )


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2.0), (0.75, 3.0), (0.76, 4.0), (1.0, 4.0)])
def test_a_quantile_is_the_first_value_that_reaches_the_share(share: float, expected: float) -> None:
    assert quantile(np.array([4.0, 1.0, 3.0, 2.0]), np.ones(4), share=share) == expected


def test_a_source_counts_as_one_however_many_rows_it_has() -> None:
    """Nine rows of one source and one of another: each source is half of the weight, so the lone row is reached beyond 0.5."""
    groups = np.array(["a"] * 9 + ["b"])
    assert equal_weights(groups).tolist() == pytest.approx([1 / 9] * 9 + [1.0])
    values = np.array([1.0] * 9 + [7.0])
    assert quantile(values, equal_weights(groups), share=0.5) == 1.0
    assert quantile(values, equal_weights(groups), share=0.51) == 7.0


def test_what_a_machines_rows_have_in_common_is_their_median() -> None:
    """Medians 0.1, 0.2 and 0.4 of three sources: the 80th percentile lies 0.6 of the way from the second to the third."""
    table = rows([0.0, 0.1, 0.3, 0.2, 0.2, -0.4], sources="aaabbc")
    assert machine_half_width(table) == pytest.approx(0.2 + 0.6 * 0.2)


def test_a_factor_scales_what_the_rows_of_its_regime_leave_open() -> None:
    """Own 0.3 and machine 0.4 are 0.5 together, so that errors of 0.5, 1.0, 1.5, 2.0 and 2.5 score 1 to 5: the fourth of five sources
    is the 80th percentile. Another regime without rows is judged by all of them as by one source.
    """
    table = rows([0.5, -1.0, 1.5, -2.0, 2.5], sources="abcde", own=0.3)
    found = factors(table, machine=(0.4, 0.1))
    assert found[Regime.COMPUTE] == pytest.approx(4.0)
    assert found[Regime.HOST] == pytest.approx(4.0)


def test_rows_of_a_regime_outweigh_those_of_the_others() -> None:
    """Two sources in the regime score 1 and 2, all others together 9: they are a third of the weight, so the 80th percentile is theirs;
    with a third and a fourth source in the regime it is not.
    """
    others = rows([9.0], sources="z", own=1.0)
    few = rows([1.0, 2.0], sources="ab", regime=Regime.LINKS, own=1.0)
    many = rows([1.0, 2.0, 3.0, 4.0], sources="abcd", regime=Regime.LINKS, own=1.0)
    for mine, expected in ((few, 9.0), (many, 4.0)):
        both = joined([mine, others])
        assert factors(both, machine=(0.0, 0.0))[Regime.LINKS] == pytest.approx(expected)


def test_open_facts_widen_only_the_side_that_they_reach() -> None:
    widths = RangeWidths(0.4, 0.1, np.full(len(Regime), 2.0), 0.0)
    table = replace(rows([-0.9, 1.2, 1.3], sources="aaa", own=0.3), open_high=np.array([0.0, 0.75, 0.75]))
    low, high = half_widths(table, widths)
    assert low.tolist() == pytest.approx([1.0, 1.0, 1.0])
    assert high.tolist() == pytest.approx([1.0, 1.25, 1.25])
    found = covered(table, widths)
    assert (found.rows, found.inside) == (3, pytest.approx(2 / 3))
    assert found.width == pytest.approx(np.exp(2.25))


def test_the_shipped_widths_are_those_that_the_rows_ask_for() -> None:
    """`python -m benchmarks.accuracy_refit` and `python -m benchmarks.range_widths --write` write them; after a change of predictions
    they must not have gone stale. What ranges hold of a source that was left out is the promise of an 80 % range.
    """
    sources = sources_of(evaluate_state(), stored_left_out().chosen)
    shipped = widths_of(json.loads(WIDTHS_FILE.read_text(encoding="utf-8")))
    asked = widths_of(document_of(sources.widths()))
    assert shipped.factor_R == pytest.approx(asked.factor_R, rel=STALE)
    assert shipped.plans == pytest.approx(asked.plans, rel=STALE)
    assert (shipped.machine_reference, shipped.machine_profiled) == pytest.approx(
        (asked.machine_reference, asked.machine_profiled), abs=0.02
    )
    found = coverage(sources).all_rows
    assert 0.75 <= found.inside <= 0.90
