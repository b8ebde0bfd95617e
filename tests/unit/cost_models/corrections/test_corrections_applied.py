"""Corrected steps worked out by hand: factors on named terms, the wait for the host, ranges, and which corrections hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.corrections import Correction, InForce, Scope, corrected
from cost_models.corrections.applied import narrowed
from cost_models.terms import TIME_NAMES

SCOPE = Scope("torchtitan", "native", "H200-SXM-141GB")


def correction(term: str, factor: float, **changes: object) -> Correction:
    plain = Correction(
        term, factor, kept=True, scope=SCOPE, trials=8, error_before=0.1, error_after=0.05, reason="", largest_share=1.0
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_a_factor_multiplies_its_term_and_the_terms_still_sum_to_the_step() -> None:
    """No wait for the host: 10 s of products at 1.1 and 3 s of the optimizer at 0.5 are 11 + 1.5; 2 s of the loss stay."""
    found = corrected(
        {"gemm": 10.0, "optimizer": 3.0, "loss": 2.0}, [correction("gemm", 1.1), correction("optimizer", 0.5)]
    )
    assert found.terms_s["gemm"] == pytest.approx(11.0)
    assert found.terms_s["optimizer"] == pytest.approx(1.5)
    assert found.terms_s["loss"] == 2.0
    assert found.total_s == pytest.approx(14.5)


def test_products_that_take_longer_shorten_the_wait_for_a_busy_host() -> None:
    """6 s of products and 4 s of waiting: the host needs 10 s, whatever the products take; 20 % more of them leave 2.8 s of waiting."""
    found = corrected({"gemm": 6.0, "launch": 4.0}, [correction("gemm", 1.2)])
    assert found.terms_s["launch"] == pytest.approx(2.8)
    assert found.total_s == pytest.approx(10.0)


def test_the_factor_of_the_wait_is_one_of_the_hosts_time() -> None:
    """The host needs 10 s; at 0.9 it needs 9, of which 6 s of products leave 3 s of waiting."""
    found = corrected({"gemm": 6.0, "launch": 4.0}, [correction("launch", 0.9)])
    assert found.terms_s["launch"] == pytest.approx(3.0)
    assert found.total_s == pytest.approx(9.0)


def test_a_host_that_is_fast_enough_is_not_waited_for() -> None:
    """At half its 10 s the host is done before the 6 s of products."""
    found = corrected({"gemm": 6.0, "launch": 4.0}, [correction("launch", 0.5)])
    assert found.terms_s["launch"] == 0.0
    assert found.total_s == pytest.approx(6.0)


def test_a_wait_of_half_the_host_bound_share_counts_by_half() -> None:
    """95 s of products and 5 s of waiting, half of the 10 % from which on the host decides: a host of 1.1 · 100 s adds 5 s, not 10."""
    found = corrected({"gemm": 95.0, "launch": 5.0}, [correction("launch", 1.1)])
    assert found.terms_s["launch"] == pytest.approx(10.0)


def test_what_is_not_kept_or_switched_off_changes_nothing() -> None:
    given_s = {"gemm": 6.0, "launch": 4.0}
    off = [correction("gemm", 1.2, kept=False), correction("launch", 0.5, enabled=False)]
    assert corrected(given_s, off).terms_s == {name: given_s.get(name, 0.0) for name in TIME_NAMES}


def test_corrections_of_other_scopes_are_left_out() -> None:
    other = correction("gemm", 3.0, scope=replace(SCOPE, gpu="H100-SXM-80GB"))
    found = corrected({"gemm": 1.0}, [correction("gemm", 1.5), other], scope=SCOPE)
    assert found.total_s == pytest.approx(1.5)


def test_a_range_tightens_for_plans_like_the_measured_ones_only() -> None:
    """Measured runs spent at most 60 % of a step on products. One with 60 % takes the factor 0.5, one with 70 % or more the full range
    again, one with 65 % the root of the mean of both squares: sqrt((0.25 + 1) / 2)."""
    seen = [
        correction(name, 1.0, largest_share=share, range_factor=0.5)
        for name, share in (("gemm", 0.6), ("attention", 1.0))
    ]
    gemm = np.array([60.0, 65.0, 70.0, 90.0])
    found = corrected({"gemm": gemm, "attention": 100.0 - gemm}, seen)
    assert found.range_factor == pytest.approx([0.5, 0.625**0.5, 1.0, 1.0])


def test_a_term_that_no_measured_run_had_widens_the_range_again() -> None:
    seen = [correction("gemm", 1.0, range_factor=0.5)]
    assert corrected({"gemm": 80.0, "pp_bubble": 20.0}, seen).range_factor == pytest.approx(1.0)


def test_switching_a_kept_correction_off_gives_the_range_back() -> None:
    seen = [correction("gemm", 1.1, range_factor=0.5, enabled=False), correction("attention", 1.0, range_factor=0.5)]
    assert corrected({"gemm": 1.0}, seen).range_factor == pytest.approx(1.0)


def test_no_range_gets_narrower_than_repeats_scatter() -> None:
    """Repeats scatter by 3 %: 20 % at 0.5 are 10 %, 4 % at 0.5 stay at 3 %, and 2 % were narrower before and stay."""
    assert narrowed(np.array([0.20, 0.04, 0.02]), np.array([0.5])) == pytest.approx([0.10, 0.03, 0.02])


def test_the_id_of_a_correction_outlives_its_figures() -> None:
    first = correction("gemm", 1.1)
    assert first.id == correction("gemm", 0.7, trials=90, enabled=False).id
    assert (
        len({first.id, correction("loss", 1.1).id, correction("gemm", 1.1, scope=replace(SCOPE, precision="fp8")).id})
        == 3
    )


SECONDS = st.floats(0.0, 100.0)
FACTORS = st.floats(0.3, 3.0)


@settings(max_examples=60)
@given(
    seconds=st.lists(SECONDS, min_size=len(TIME_NAMES), max_size=len(TIME_NAMES)),
    factors=st.lists(st.none() | FACTORS, min_size=len(TIME_NAMES), max_size=len(TIME_NAMES)),
)
def test_a_bound_times_the_least_factor_stays_a_bound(seconds: list[float], factors: list[float | None]) -> None:
    """What the search prunes by: no corrected step is shorter than the uncorrected one times the least factor."""
    terms_s = {name: np.array([value]) for name, value in zip(TIME_NAMES, seconds, strict=True)}
    found = InForce(tuple(correction(n, f) for n, f in zip(TIME_NAMES, factors, strict=True) if f is not None))
    terms, total = found.of_time(terms_s)
    assert total[0] >= found.least_time_factor * sum(seconds) * (1.0 - 1e-12)
    assert min(value[0] for value in terms.values()) >= 0.0
    assert total[0] == pytest.approx(sum(value[0] for value in terms.values()))
