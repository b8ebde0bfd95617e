"""How far apart the steps of plans are, and the 80 % range of that, by the rule of the ranking's tie groups."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from cost_models.constants import SHAPE_RANGE, UNMODELLED_RANGE
from cost_models.hardware import Calibration
from cost_models.step.range_widths import PLANS_APART, range_widths
from cost_models.step.ranges import is_tied
from cost_models.terms import TIME_NAMES, Tier
from planner.answer.apart import steps_apart
from planner.one_plan.pair import calibrations_of


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    request = {
        "model": {"preset": "llama-3.1-8b"}, "cluster": {"preset": "dgx-h100", "num_nodes": 1},
        "training": {"seq_length": 4096, "global_batch_size": 8, "framework": "megatron", "precision": "bf16"},
    }  # fmt: skip
    (found,) = calibrations_of(request)
    return found


def evaluation(**terms_s: float) -> dict[str, Any]:
    terms = dict.fromkeys(TIME_NAMES, 0.0) | terms_s
    return {
        "step_time_s": sum(terms.values()), "time_breakdown_s": terms,
        "provenance": {"terms": dict.fromkeys(TIME_NAMES, "nominal")},
    }  # fmt: skip


def test_a_range_is_what_the_differing_terms_leave_open(calibration: Calibration) -> None:
    """Only the exchange differs, by 2 s: its own width, what no term describes, and what two unlike plans err by."""
    leader, other = evaluation(gemm=8.0, tp_comm=1.0), evaluation(gemm=8.0, tp_comm=3.0)
    apart = steps_apart([leader, other], leader=0, calibrations=[calibration])
    width = calibration.residual("collective", Tier.NOMINAL) * 2.0
    # The products take equally long, so that they count as the same; the steps are as unlike as 2 s over PLANS_APART, or wholly.
    unlike = min(2.0 / PLANS_APART, (9.0 + 11.0) / 2)
    half = math.sqrt(width**2 + (UNMODELLED_RANGE.value * 2.0) ** 2 + (range_widths().plans * unlike) ** 2)
    assert apart.difference_s.tolist() == [0.0, 2.0]
    assert apart.low_s[1] == pytest.approx(2.0 - half)
    assert apart.high_s[1] == pytest.approx(2.0 + half)
    assert SHAPE_RANGE.value > 0  # products of other shapes would have widened it


@pytest.mark.parametrize(
    ("factors", "times"),
    [((0.5, 0.8), 0.8), ((1.5, 0.8), 1.5), ((0.01, 0.02), None)],
    ids=["the plan of which less was learnt", "wider than the models say", "repeats scatter"],
)
def test_what_was_learnt_narrows_a_difference(
    calibration: Calibration, factors: tuple[float, float], times: float | None
) -> None:
    """The larger factor of the two counts; the half-width stays at 3 % of the mean step of 9 and 11 s, which is 0.3 s, or more."""
    plain = [evaluation(gemm=8.0, tp_comm=seconds) for seconds in (1.0, 3.0)]
    learnt = [
        each | {"provenance": each["provenance"] | {"range_factor": f}} for each, f in zip(plain, factors, strict=True)
    ]
    before, after = (steps_apart(plans, leader=0, calibrations=[calibration]) for plans in (plain, learnt))
    expected = 0.3 if times is None else times * (before.high_s[1] - 2.0)
    assert after.high_s[1] - 2.0 == pytest.approx(expected)
    assert after.tied.tolist() == ((after.low_s <= 0) & (after.high_s >= 0)).tolist()


def test_ties_are_the_rankings_and_agree_with_the_range(calibration: Calibration) -> None:
    plans = [evaluation(gemm=10.0, pp_bubble=extra) for extra in (0.0, 0.01, 0.2, 1.0, 3.0, 9.0)]
    terms = {name: np.array([plan["time_breakdown_s"][name] for plan in plans]) for name in TIME_NAMES}
    tiers = {name: np.full(len(plans), Tier.NOMINAL.value) for name in TIME_NAMES}
    apart = steps_apart(plans, leader=0, calibrations=[calibration])
    assert apart.tied.tolist() == is_tied(calibration, terms, tiers, leader=0).tolist()
    assert apart.tied.tolist() == ((apart.low_s <= 0) & (apart.high_s >= 0)).tolist()
    assert apart.tied[1]
    assert not apart.tied[-1]


def test_turned_round_the_difference_changes_its_sign(calibration: Calibration) -> None:
    plans = [evaluation(gemm=10.0), evaluation(gemm=9.0, tp_comm=2.0)]
    one = steps_apart(plans, leader=0, calibrations=[calibration])
    other = steps_apart(plans, leader=1, calibrations=[calibration])
    assert one.difference_s[1] == -other.difference_s[0] == pytest.approx(1.0)
    assert one.low_s[1] == pytest.approx(-other.high_s[0])
