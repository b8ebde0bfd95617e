"""Intervals between checkpoints, goodput and spare nodes, against published and worked figures."""

from __future__ import annotations

import math

import pytest

from cost_models.runs.stops import fewest_spares, goodput, optimal_interval_s, ready_fraction, young_interval_s

LLAMA_3_S = 54 * 86_400 / 419
"""Between two of the 419 unexpected stops in 54 days on 16,384 GPUs (The Llama 3 Herd of Models, section 3.3.4)."""


def test_llama_3_stops_every_three_hours() -> None:
    hours = LLAMA_3_S / 3600
    assert hours == pytest.approx(3.093, abs=5e-4)
    # ... which one of 16,384 GPUs causes in 50,677 hours.
    assert hours * 16_384 == pytest.approx(50_677, abs=0.5)


@pytest.mark.parametrize(
    ("save_s", "recovery_s", "interval_s", "expected"),
    [(60.0, 600.0, 1156.0, 0.860), (5.0, 600.0, 334.0, 0.922)],
)
def test_goodput_of_llama_3(save_s: float, recovery_s: float, interval_s: float, expected: float) -> None:
    """Its authors report more than 90 % of effective training time, which takes a save of seconds."""
    found_s = young_interval_s(between_s=LLAMA_3_S, save_s=save_s)
    assert found_s == pytest.approx(interval_s, abs=0.5)
    found = goodput(interval_s=found_s, save_s=save_s, between_s=LLAMA_3_S, recovery_s=recovery_s)
    assert found == pytest.approx(expected, abs=5e-4)


def test_optimal_interval_is_the_published_one_without_its_save() -> None:
    """Saxena et al. 2024: T_s + sqrt(2 (T_f + T_r) T_s + T_s²), counted from the beginning of a save to that of the next."""
    found_s = optimal_interval_s(between_s=LLAMA_3_S, recovery_s=600.0, save_s=60.0)
    # 60 + sqrt(2 · 11,734.8 · 60 + 3,600) = 60 + sqrt(1,411,776) = 60 + 1,188.2
    assert found_s + 60.0 == pytest.approx(1248.2, abs=0.1)


def test_no_other_interval_has_a_higher_published_availability() -> None:
    """The availability that the paper maximises: (T - T_s) / T · T_f / (T_f + T_r + T / 2), over periods T."""

    def availability(period_s: float) -> float:
        return (period_s - 60.0) / period_s * LLAMA_3_S / (LLAMA_3_S + 600.0 + period_s / 2.0)

    best_s = 60.0 + optimal_interval_s(between_s=LLAMA_3_S, recovery_s=600.0, save_s=60.0)
    tried = [availability(best_s * factor) for factor in (0.9, 0.99, 1.01, 1.1)]
    assert availability(best_s) > max(tried)


def test_what_is_not_yet_on_storage_is_lost_as_well() -> None:
    # A save that stops nothing, written in 100 s behind it: 1000 / (1000 + 200 + 400 / 2 + 100) = 2 / 3.
    found = goodput(interval_s=400.0, save_s=0.0, between_s=1000.0, recovery_s=200.0, unsafe_s=100.0)
    assert found == pytest.approx(2.0 / 3.0)


@pytest.mark.parametrize("spares", [0, 1, 3, 8])
def test_ready_share_is_erlangs_loss_formula(spares: int) -> None:
    """B(c, a) = (a^c / c!) / sum over k up to c of a^k / k!, for c = spares + 1 broken nodes and a of them in one repair."""
    load = 7.8
    terms = [load**k / math.factorial(k) for k in range(spares + 2)]
    assert ready_fraction(in_repair=load, spares=spares) == pytest.approx(1.0 - terms[-1] / sum(terms))


def test_ready_share_never_vanishes() -> None:
    """A run that waits nearly always still ends: one node breaks 1e17 times in a repair, so 1 / (1 + 1e17) of the time is left."""
    assert ready_fraction(in_repair=1e17, spares=0) == pytest.approx(1e-17)


def test_fewest_spares_reach_the_share() -> None:
    enough = fewest_spares(in_repair=7.8, waiting=0.001)
    assert 1.0 - ready_fraction(in_repair=7.8, spares=enough) <= 0.001
    assert 1.0 - ready_fraction(in_repair=7.8, spares=enough - 1) > 0.001
