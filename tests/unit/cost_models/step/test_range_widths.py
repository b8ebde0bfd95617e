"""What a step is bound by, and the widths that this release ships."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cost_models.step.exposure import Exposure
from cost_models.step.range_widths import WIDTHS_FILE, Regime, range_widths, regimes, widths_of
from cost_models.terms import COMMUNICATION, TIME_NAMES


def seconds(**given: float) -> dict[str, np.ndarray]:
    return {name: np.array([given.get(name, 0.0)]) for name in TIME_NAMES}


def regime(crosses: tuple[str, ...] = (), *, experts: bool = False, **given: float) -> Regime:
    found = regimes(
        seconds(**given),
        np.array([sum(given.values())]),
        exposed=Exposure({name: np.array([name in crosses]) for name in COMMUNICATION}, {}, {}),
        has_experts=experts,
    )
    return Regime(int(found[0]))


@pytest.mark.parametrize(
    ("given", "crosses", "expected"),
    [
        # Of 100 s: 14 s of exposed communication leave the step to its products, 15 s do not.
        ({"gemm": 86.0, "tp_comm": 14.0}, (), Regime.COMPUTE),
        ({"gemm": 85.0, "tp_comm": 15.0}, (), Regime.LINKS),
        # The larger part decides where communication runs on both.
        ({"gemm": 84.0, "tp_comm": 9.0, "dp_comm": 7.0}, ("dp_comm",), Regime.LINKS),
        ({"gemm": 84.0, "tp_comm": 7.0, "dp_comm": 9.0}, ("dp_comm",), Regime.NETWORK),
        ({"gemm": 88.0, "tp_comm": 6.0, "pp_comm": 6.0}, ("pp_comm",), Regime.COMPUTE),
        # 9 s of waiting for launches are not yet a step that its host decides, 10 s are, whatever else is exposed.
        ({"gemm": 91.0, "launch": 9.0}, (), Regime.COMPUTE),
        ({"gemm": 90.0, "launch": 10.0}, (), Regime.HOST),
        ({"gemm": 50.0, "launch": 10.0, "dp_comm": 40.0}, ("dp_comm",), Regime.HOST),
    ],
)
def test_shares_of_the_step_decide_what_it_is_bound_by(
    given: dict[str, float], crosses: tuple[str, ...], expected: Regime
) -> None:
    assert regime(crosses, **given) == expected


def test_experts_are_a_regime_of_their_own() -> None:
    assert regime(experts=True, gemm=50.0, launch=50.0) == Regime.EXPERTS


def test_without_exposure_all_communication_is_inside() -> None:
    found = regimes(seconds(gemm=1.0, dp_comm=1.0), np.array([2.0]), exposed=None, has_experts=False)
    assert found.tolist() == [Regime.LINKS]


def test_figures_are_read_by_their_names() -> None:
    factors = {"compute": 1.0, "links": 2.0, "network": 3.0, "host": 4.0, "experts": 5.0}
    found = widths_of({"machine": {"reference": 0.2, "profiled": 0.1}, "factors": factors, "plans": 0.3})
    assert (found.machine_reference, found.machine_profiled, found.plans) == (0.2, 0.1, 0.3)
    assert found.factor_R.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert found.machine(is_profiled=True) == 0.1
    assert found.machine(is_profiled=False) == 0.2


def test_the_shipped_file_is_what_ranges_use_and_a_profile_narrows_them() -> None:
    shipped = widths_of(json.loads(WIDTHS_FILE.read_text(encoding="utf-8")))
    used = range_widths()
    assert shipped.factor_R.tolist() == used.factor_R.tolist()
    assert 0 < used.machine_profiled < used.machine_reference < 1
    assert (used.factor_R > 0).all()
