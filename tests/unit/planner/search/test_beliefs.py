"""What is believed of step times: the printed ranges before any trial, and conditional normal distributions after."""

from __future__ import annotations

from math import erf, exp, log, sqrt
from typing import Any

import numpy as np
import pytest

from cost_models.step.range_widths import range_widths
from cost_models.terms import TIME_NAMES
from planner.search.beliefs import KNOB_FRACTION, OF_80_PERCENT, REPEAT_FRACTION, Belief, Candidate, believed


def _plan(rank: int, step_s: float, *, half: float = 0.10, tp: int = 1, tp_share: float = 0.0) -> Candidate:
    terms = dict.fromkeys(TIME_NAMES, 0.0) | {"gemm": step_s * (1.0 - tp_share), "tp_comm": step_s * tp_share}
    return Candidate(
        rank=rank, strategy={"tp": tp, "pp": 1, "cp": 1, "ep": 1, "dp": 8 // tp}, step_time_s=step_s,
        range_s=(step_s * exp(-half), step_s * exp(half)), terms_s=terms,
        tiers=dict.fromkeys(TIME_NAMES, "interpolated"), device_bytes=1e9 * rank,
    )  # fmt: skip


def test_before_any_trial_a_plan_has_its_printed_range_and_what_plans_err_against_each_other() -> None:
    low, high = believed([_plan(1, 2.0, half=0.15), _plan(2, 3.0, half=0.30)], {}).range_s()
    # The printed half-width in quadrature with that of one of two plans, and with what no term tells.
    between = range_widths().plans / sqrt(2.0)
    for place, (step_s, half) in enumerate(((2.0, 0.15), (3.0, 0.30))):
        whole = sqrt(half**2 + between**2 + (OF_80_PERCENT * KNOB_FRACTION) ** 2)
        assert high[place] == pytest.approx(step_s * exp(whole), rel=1e-9)
        assert low[place] == pytest.approx(step_s * exp(-whole), rel=1e-9)


def test_a_measured_plan_moves_another_as_a_normal_distribution_says() -> None:
    plans = [_plan(1, 2.0), _plan(2, 2.1, tp=2, tp_share=0.2)]
    before = believed(plans, {}).covariance_NN
    # 1 % slower than predicted, well within its range, so that no error is widened.
    after = believed(plans, {0: 2.02})
    noise = REPEAT_FRACTION**2 + KNOB_FRACTION**2
    # The diagonal already holds the share of its own that no term tells; it counts once.
    gain = before[0, 1] / (before[0, 0] - KNOB_FRACTION**2 + noise)
    assert after.mean_N[1] == pytest.approx(log(2.1) + gain * log(2.02 / 2.0), rel=1e-12)
    assert after.covariance_NN[1, 1] == pytest.approx(before[1, 1] - gain * before[0, 1], rel=1e-9)
    assert after.median_s()[0] == pytest.approx(2.02)
    assert after.deviation[0] == pytest.approx(REPEAT_FRACTION)


def test_a_slower_machine_moves_every_plan_and_a_wild_plan_only_its_like() -> None:
    plans = [_plan(1, 2.0), _plan(2, 2.1), _plan(3, 2.2, tp=2, tp_share=0.3), _plan(4, 2.3, tp=2, tp_share=0.31)]
    slower = believed(plans, {0: 2.2, 2: 2.42}).median_s()
    # Both measured plans took 10 % more: so do the others, but for a little that the prior holds back.
    assert slower[1] / 2.1 == pytest.approx(1.10, abs=0.02)
    assert slower[3] / 2.3 == pytest.approx(1.10, abs=0.02)
    wild = believed(plans, {0: 2.0, 2: 6.6}).median_s()
    # Tensor parallelism took three times as long as predicted. That says much of the other plan with it, little of the one without.
    assert wild[3] / 2.3 > 2.0
    assert wild[1] / 2.1 == pytest.approx(1.0, abs=0.03)


def test_a_near_copy_that_runs_is_not_expected_to_tell_anything_more() -> None:
    plans = [_plan(1, 2.0), _plan(2, 2.0), _plan(3, 2.0, tp=2, tp_share=0.3)]
    alone, beside = believed(plans, {}), believed(plans, {}, running=[0])
    assert beside.mean_N == pytest.approx(alone.mean_N)
    assert beside.deviation[1] < 0.6 * alone.deviation[1]
    assert beside.deviation[1] < beside.deviation[2]


def test_the_expected_gain_is_the_mean_of_what_is_saved() -> None:
    belief = Belief(np.log([2.0, 1.8]), np.diag([0.1**2, 0.05**2]))
    grid = np.linspace(-8.0, 8.0, 400_001)
    density = np.exp(-0.5 * grid**2) / sqrt(2.0 * np.pi)
    for place, (step_s, deviation) in enumerate(((2.0, 0.1), (1.8, 0.05))):
        saved = np.maximum(log(1.9) - (log(step_s) + deviation * grid), 0.0)
        mean = float(np.sum(saved * density) * (grid[1] - grid[0]))
        assert belief.expected_gain(1.9)[place] == pytest.approx(mean, rel=1e-6)


def test_the_chance_of_a_faster_plan_counts_what_plans_share() -> None:
    # Two plans of which each is faster than 1.9 s with the chance Phi((ln 1.9 - ln 2.0) / 0.1) = Phi(-0.513) = 0.304.
    each = 0.5 * (1.0 + erf(log(1.9 / 2.0) / 0.1 / sqrt(2.0)))
    apart = Belief(np.log([2.0, 2.0]), 0.1**2 * np.eye(2))
    same = Belief(np.log([2.0, 2.0]), 0.1**2 * np.ones((2, 2)))
    assert apart.chance_of_one(1.9, 0) == pytest.approx(each)
    assert apart.chance_of_faster(1.9, among=[0, 1], seed=1) == pytest.approx(1.0 - (1.0 - each) ** 2, abs=0.02)
    # If both err alike, the second adds no chance.
    assert same.chance_of_faster(1.9, among=[0, 1], seed=1) == pytest.approx(each, abs=0.02)
    assert apart.chance_of_faster(1.9, among=[], seed=1) == 0.0


def test_a_candidate_is_read_back_as_it_was_written() -> None:
    plan: Any = _plan(3, 2.0, tp=2, tp_share=0.25)
    assert Candidate.from_json(plan.to_json()) == plan
