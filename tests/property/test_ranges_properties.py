"""Which plans cannot be told apart, for drawn terms and tiers: a tie is mutual, and knowing less never ends one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from builders import job_of, tiny_model
from cost_models.step.ranges import is_tied, step_time_range
from cost_models.terms import TIME_NAMES, Tier

CALIBRATION = job_of(tiny_model()).calibration
PLANS = 5


@st.composite
def plans(draw: st.DrawFn) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Seconds and tiers of a few plans that share some terms and differ in others, each with tiers of its own."""
    seconds, tiers = {}, {}
    for name in TIME_NAMES:
        base = draw(st.sampled_from([0.0, 0.1, 1.0, 5.0]))
        moves = draw(
            st.lists(st.sampled_from([0.0, 0.0, -0.2, -0.03, 0.01, 0.05, 0.4]), min_size=PLANS, max_size=PLANS)
        )
        seconds[name] = np.array([base * (1.0 + move) for move in moves])
        tiers[name] = np.array(draw(st.lists(st.sampled_from(list(Tier)), min_size=PLANS, max_size=PLANS)), np.int8)
    return seconds, tiers


def matrix(seconds: dict[str, np.ndarray], tiers: dict[str, np.ndarray]) -> np.ndarray:
    """Row: leader; column: plan."""
    return np.stack([is_tied(CALIBRATION, seconds, tiers, leader=leader) for leader in range(PLANS)])


@given(plans())
def test_ties_are_mutual_whatever_each_plan_rests_on(
    drawn: tuple[dict[str, np.ndarray], dict[str, np.ndarray]],
) -> None:
    found = matrix(*drawn)
    assert (found == found.T).all()
    assert found.diagonal().all()


@given(plans(), st.sampled_from(TIME_NAMES), st.integers(0, PLANS - 1))
def test_a_term_known_worse_ends_no_tie_and_narrows_no_range(
    drawn: tuple[dict[str, np.ndarray], dict[str, np.ndarray]], name: str, plan: int
) -> None:
    seconds, tiers = drawn
    worse = {term: values.copy() for term, values in tiers.items()}
    worse[name][plan] = Tier.NOMINAL
    assert (matrix(seconds, worse) >= matrix(seconds, tiers)).all()
    total = np.sum(list(seconds.values()), axis=0)
    (low, high), (lower, higher) = (step_time_range(CALIBRATION, seconds, each, total) for each in (tiers, worse))
    assert (lower <= low).all()
    assert (higher >= high).all()


@given(plans(), st.sampled_from([0.25, 8.0]))
def test_the_unit_of_time_decides_nothing(
    drawn: tuple[dict[str, np.ndarray], dict[str, np.ndarray]], factor: float
) -> None:
    seconds, tiers = drawn
    scaled = {name: factor * values for name, values in seconds.items()}
    assert (matrix(scaled, tiers) == matrix(seconds, tiers)).all()
