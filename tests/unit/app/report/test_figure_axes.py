"""Where values lie on an axis, and which lines it has."""

from __future__ import annotations

import pytest

from app.report.figures.axes import Axis, fitted, from_zero


def test_a_linear_axis_divides_its_length_evenly() -> None:
    axis = Axis(10.0, 20.0, start=0.0, end=200.0)
    assert [axis.place(value) for value in (10.0, 12.5, 20.0)] == [0.0, 50.0, 200.0]
    assert axis.ticks(6) == [10.0, 12.0, 14.0, 16.0, 18.0, 20.0]
    assert Axis(0.0, 1.0, 0.0, 1.0).ticks(3) == [0.0, 0.5, 1.0]


def test_a_logarithmic_axis_gives_each_factor_the_same_length() -> None:
    axis = Axis(1.0, 100.0, start=0.0, end=200.0, log=True)
    assert [axis.place(value) for value in (1.0, 10.0, 100.0)] == pytest.approx([0.0, 100.0, 200.0])
    assert axis.ticks() == [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
    # Closer lines where these would be few.
    assert Axis(25.0, 90.0, 0.0, 1.0, log=True).ticks() == [30.0, 40.0, 50.0, 70.0]


def test_values_lie_inside_a_fitted_axis_whose_kind_follows_their_ratio() -> None:
    for low, high, is_log in ((1.0, 2.0, False), (1.0, 30.0, True), (5.0, 5.0, False)):
        axis = fitted(low, high, start=40.0, end=500.0)
        assert axis.log is is_log
        assert 40.0 < axis.place(low) <= axis.place(high) < 500.0
        assert axis.ticks()


def test_an_axis_from_zero_begins_there() -> None:
    axis = from_zero(10.0, start=100.0, end=0.0)
    assert axis.place(0.0) == 100.0
    assert 0.0 < axis.place(10.0) < 100.0
    assert from_zero(0.0, start=1.0, end=0.0).place(0.0) == 1.0
