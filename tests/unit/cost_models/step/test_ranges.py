"""Intervals of step times in quadrature, and which plans cannot be told apart."""

from __future__ import annotations

import numpy as np
import pytest

from builders import job_of, tiny_model
from cost_models.calibration import NOMINAL_RESIDUALS
from cost_models.constants import UNMODELLED_RANGE
from cost_models.step.exposure import Exposure
from cost_models.step.range_widths import Regime, range_widths
from cost_models.step.ranges import NETWORK, OVERLAP, is_tied, own_half_width, step_time_range
from cost_models.terms import TIME_NAMES, TIME_TERMS, Tier

CALIBRATION, NO_CURVES = (job_of(tiny_model(), gpu=gpu).calibration for gpu in ("H100-SXM-80GB", "MI300X-192GB"))
PROFILE = "h100x4-nvls-off-2026-11-28"


def terms(**seconds: list[float]) -> dict[str, np.ndarray]:
    n = len(next(iter(seconds.values())))
    return {name: np.array(seconds.get(name, [0.0] * n)) for name in TIME_NAMES}


def tiers(n: int, tier: Tier = Tier.INTERPOLATED) -> dict[str, np.ndarray]:
    return {name: np.full(n, tier, np.int8) for name in TIME_NAMES}


def width(name: str, tier: Tier = Tier.INTERPOLATED) -> float:
    return CALIBRATION.residual(next(term.family for term in TIME_TERMS if term.name == name), tier)


def test_every_term_has_a_family_that_the_calibration_knows() -> None:
    for name in TIME_NAMES:
        assert 0 < width(name, Tier.MEASURED) <= width(name, Tier.NOMINAL) < 1


def test_every_residual_family_is_some_terms() -> None:
    """Nothing is measured or written down that no range uses."""
    assert {*(term.family for term in TIME_TERMS), NETWORK, OVERLAP} == set(NOMINAL_RESIDUALS)


def test_collectives_between_nodes_and_overlapped_ones_have_widths_of_their_own() -> None:
    """Three plans of 1 s of gradient reduction alone, nominal links: inside a node 0.30 of it, between nodes 0.35, and
    overlapped between nodes 0.35 and nominal interference's 0.50 in quadrature; 0.05 of the whole for what no term holds.
    """
    flags = np.array([False, True, True]), np.array([False, False, True])
    exposed = Exposure({"dp_comm": flags[0]}, {"dp_comm": flags[1]}, {"dp_comm": Tier.NOMINAL})
    nominal, one = tiers(3, Tier.NOMINAL), np.ones(3)
    found = own_half_width(NO_CURVES, terms(dp_comm=[1.0, 1.0, 1.0]), nominal, one, exposed=exposed)
    assert found == pytest.approx([np.hypot(0.30, 0.05), np.hypot(0.35, 0.05), np.sqrt(0.35**2 + 0.50**2 + 0.05**2)])


def test_half_widths_add_in_quadrature() -> None:
    """[T-3] 3 s of matmuls, 1 s of collectives, a share of the whole for what no term holds, and the clock, of which an H100 keeps
    0.85 to 0.95 under load: half the logarithm of that ratio, over the matmuls alone.
    """
    found = own_half_width(CALIBRATION, terms(gemm=[3.0], dp_comm=[1.0]), tiers(1), np.array([4.0]))
    clock = 3 * np.log(0.95 / 0.85) / 2
    whole = 4 * UNMODELLED_RANGE.value
    assert found * 4 == pytest.approx(np.sqrt((3 * width("gemm")) ** 2 + width("dp_comm") ** 2 + whole**2 + clock**2))


def test_one_clock_paces_products_and_attention_together() -> None:
    """2 s of matmuls and 2 s of attention share the clock's error: that of their 4 s, not that of 2 s and 2 s in quadrature."""
    together = own_half_width(CALIBRATION, terms(gemm=[2.0], attention=[2.0]), tiers(1), np.array([4.0]))
    clock = np.log(0.95 / 0.85) / 2
    apart = np.hypot(2 * width("gemm"), 2 * width("attention")) / 4
    assert together == pytest.approx(np.sqrt(apart**2 + clock**2 + UNMODELLED_RANGE.value**2))


@pytest.mark.parametrize(("launch", "paced"), [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.4, 1.0)])
def test_a_host_that_layers_wait_for_paces_all_of_them(launch: float, paced: float) -> None:
    """Of 1 s, `launch` is spent waiting and the rest in elementwise kernels, whose own residual counts as well. What is not known of the
    host holds for the wait, and for the kernels behind it in proportion up to a tenth of the step.
    """
    seconds = terms(elementwise=[1 - launch], launch=[launch])
    found = own_half_width(CALIBRATION, seconds, tiers(1, Tier.NOMINAL), np.array([1.0]))
    host = width("launch", Tier.NOMINAL) * (launch + paced * (1 - launch))
    kernels = width("elementwise", Tier.NOMINAL) * (1 - launch)
    assert found == pytest.approx(np.sqrt(host**2 + kernels**2 + UNMODELLED_RANGE.value**2))


def test_a_machine_that_was_profiled_has_its_clock_in_the_samples() -> None:
    profiled = job_of(tiny_model(), gpu="H100-SXM-80GB", cluster={"calibration": PROFILE}).calibration
    assert profiled.is_profiled
    assert not CALIBRATION.is_profiled
    found = own_half_width(profiled, terms(gemm=[1.0]), tiers(1), np.array([1.0]))
    assert found == pytest.approx(np.hypot(profiled.residual("gemm", Tier.INTERPOLATED), UNMODELLED_RANGE.value))


@pytest.mark.parametrize("calibration", ["", PROFILE])
def test_the_range_is_a_factor_either_way_of_plan_and_machine_together(calibration: str) -> None:
    """[T-3] What the plan's terms leave open and what its machine does, in quadrature, times the factor of its regime."""
    given = {"calibration": calibration} if calibration else {}
    prices = job_of(tiny_model(), gpu="H100-SXM-80GB", cluster=given).calibration
    seconds, each, total = terms(gemm=[3.0]), tiers(1), np.array([3.0])
    low, high = step_time_range(prices, seconds, each, total)
    widths = range_widths()
    machine = widths.machine_profiled if calibration else widths.machine_reference
    half = widths.factor_R[Regime.COMPUTE] * np.hypot(own_half_width(prices, seconds, each, total), machine)
    assert np.log(high / total) == pytest.approx(half)
    assert low * high == pytest.approx(total**2)
    more = step_time_range(prices, seconds, each, total, has_experts=True)
    ratio = widths.factor_R[Regime.EXPERTS] / widths.factor_R[Regime.COMPUTE]
    assert np.log(more[1] / total) == pytest.approx(half * ratio)


def test_a_worse_tier_is_never_narrower() -> None:
    each = [step_time_range(CALIBRATION, terms(gemm=[3.0]), tiers(1, tier), np.array([3.0])) for tier in Tier]
    highs = [float(high[0]) for _, high in each]
    assert highs == sorted(highs)
    assert highs[0] < highs[-1]


def test_a_plan_ties_with_itself_and_with_one_that_differs_by_less_than_is_known() -> None:
    """[T-4] The same collectives, matmuls 1 s apart: told apart, since a share of the difference alone is uncertain."""
    found = is_tied(CALIBRATION, terms(gemm=[3.0, 3.0, 4.0], dp_comm=[1.0, 1.0, 1.0]), tiers(3), plans=0.0, leader=0)
    assert found.tolist() == [True, True, False]


@pytest.mark.parametrize("nominal", [0, 1])
def test_the_less_certain_of_two_plans_decides_whether_they_tie(nominal: int) -> None:
    """4 and 3 s of collectives, of which a longer bubble takes 0.75 s back. What is not known of that 1 s of collectives hides the
    0.25 s that remain where either plan's are nominal, and does not where both were measured. Who leads changes nothing.
    """
    seconds = terms(dp_comm=[4.0, 3.0], pp_bubble=[1.0, 1.75])
    mixed = tiers(2, Tier.MEASURED)
    mixed["dp_comm"][nominal] = Tier.NOMINAL
    certain, doubtful = width("dp_comm", Tier.MEASURED), width("dp_comm", Tier.NOMINAL)
    bubble = 0.75 * width("pp_bubble", Tier.MEASURED)
    unmodelled = UNMODELLED_RANGE.value * 0.25
    assert np.hypot(np.hypot(certain, bubble), unmodelled) < 0.25 < np.hypot(np.hypot(doubtful, bubble), unmodelled)
    for leader in (0, 1):
        assert is_tied(CALIBRATION, seconds, mixed, plans=0.0, leader=leader).tolist() == [True, True]
        measured = is_tied(CALIBRATION, seconds, tiers(2, Tier.MEASURED), plans=0.0, leader=leader)
        assert measured.tolist() == [leader == 0, leader == 1]


def test_each_row_may_have_a_leader_of_its_own() -> None:
    """The same two plans: the nominal one ties with either leader, its measured twin with none but itself."""
    seconds = terms(dp_comm=[4.0, 3.0, 3.0, 4.0], pp_bubble=[1.0, 1.75, 1.75, 1.0])
    mixed = tiers(4, Tier.MEASURED)
    mixed["dp_comm"][1] = Tier.NOMINAL
    assert is_tied(CALIBRATION, seconds, mixed, plans=0.0, leader=np.array([0, 0, 0, 1])).tolist() == [
        True,
        True,
        False,
        True,
    ]
    assert is_tied(CALIBRATION, seconds, mixed, plans=0.0, leader=np.array([0, 0, 2, 2])).tolist() == [
        True,
        True,
        True,
        False,
    ]


def test_plans_err_on_their_own_machine_the_less_the_nearer_they_are() -> None:
    """[T-4] Two plans of 10.0 and 10.4 s, of which the second spends 0.3 s more on its bubble and 0.1 s more on sends: apart by 0.32 s, 3.1
    % of their mean. At 20 % for plans with nothing in common that leaves 20 % of 3.2 s open, 0.63 s, and at 10 % still 0.32 s.
    Beyond a tenth of the step it is 20 % of the mean and no more: plans of 10 and 13 s are told apart, 10 and 12 s are not.
    """
    near = terms(elementwise=[10.0, 10.0], pp_bubble=[0.0, 0.3], pp_comm=[0.0, 0.1])
    measured = tiers(2, Tier.MEASURED)
    assert is_tied(CALIBRATION, near, measured, leader=0, plans=0.0).tolist() == [True, False]
    assert is_tied(CALIBRATION, near, measured, leader=0, plans=0.1).tolist() == [True, False]
    assert is_tied(CALIBRATION, near, measured, leader=0, plans=0.2).tolist() == [True, True]
    far = terms(optimizer=[10.0, 10.0, 10.0], pp_bubble=[0.0, 2.0, 3.0])
    assert is_tied(CALIBRATION, far, tiers(3, Tier.MEASURED), leader=0, plans=0.2).tolist() == [True, True, False]


def test_the_shipped_figure_ties_what_measured_pairs_did_not_tell_apart() -> None:
    seconds, each = terms(gemm=[3.0, 3.5, 5.0], dp_comm=[2.0, 1.6, 0.4]), tiers(3)
    shipped = is_tied(CALIBRATION, seconds, each, leader=0)
    assert shipped.tolist() == is_tied(CALIBRATION, seconds, each, leader=0, plans=range_widths().plans).tolist()


def test_what_cancels_says_nothing_and_what_differs_twice_hides_the_difference() -> None:
    """More matmuls for fewer collectives: +3 s and -2.99 s are uncertain by far more than the 0.01 s between them."""
    found = is_tied(CALIBRATION, terms(gemm=[3.0, 6.0], dp_comm=[4.0, 1.01]), tiers(2), plans=0.0, leader=0)
    assert found.tolist() == [True, True]


def test_matmuls_of_other_shapes_err_on_their_own() -> None:
    """3 % of 4.0 s and of 4.1 s in quadrature are 0.17 s: more than the 0.10 s between them, less than 0.20 s."""
    other = is_tied(CALIBRATION, terms(gemm=[4.0, 4.1, 4.2]), tiers(3), plans=0.0, leader=0)
    assert other.tolist() == [True, True, False]
    same = is_tied(CALIBRATION, terms(gemm=[4.0, 4.0], pp_bubble=[0.1, 0.2]), tiers(2), plans=0.0, leader=0)
    assert same.tolist() == [True, False]


def test_ties_are_mutual() -> None:
    seconds = terms(gemm=[3.0, 3.5, 5.0], dp_comm=[2.0, 1.6, 0.4])
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert (
            is_tied(CALIBRATION, seconds, tiers(3), plans=0.0, leader=a)[b]
            == is_tied(CALIBRATION, seconds, tiers(3), plans=0.0, leader=b)[a]
        )
