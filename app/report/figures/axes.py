"""Axes of figures: where a value lies, and at which round values lines are drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_OF_A_DECADE, _OF_A_SHORT_ONE = (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
_FEW = 4
"""Lines of a logarithmic axis below which closer values are taken."""
LOG_FROM = 3.0
"""Ratio of the largest to the smallest value from which a logarithmic axis shows more than a linear one."""

STRIP = 3.0
"""How often the strip that holds all values must fit between 0 and the largest for an axis to begin above 0."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from values to coordinates."""

    low: float
    high: float
    start: float
    """Coordinate of `low`."""
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        """Coordinate of a value."""
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values between the ends, at most so many on a linear axis."""
        return _log_ticks(self.low, self.high) if self.log else _linear_ticks(self.low, self.high, most)


def fitted(low: float, high: float, *, start: float, end: float) -> Axis:
    """An axis on which all values from `low` to `high`, both positive, lie a little inside the ends."""
    # A share of the ratio, or of the span, is left at both ends, so that no point lies on the figure's edge.
    if high >= LOG_FROM * low:
        room = (high / low) ** 0.06
        return Axis(low / room, high * room, start, end, log=True)
    # Equal values get a width of their own, so that the axis has one.
    margin = 0.08 * (high - low) or 0.05 * high
    return Axis(low - margin, high + margin, start, end)


def from_zero(high: float, *, start: float, end: float) -> Axis:
    """A linear axis from 0 to a little above `high`."""
    return Axis(0.0, 1.12 * high or 1.0, start, end)


def from_zero_or_fitted(low: float, high: float, *, start: float, end: float) -> Axis:
    """A linear axis from 0, or a cut one where all values lie in a strip of less than a third of it."""
    if low > 0.0 and high - low < (high / STRIP):
        # Equal values lie in the middle; others take half of the axis at least.
        margin = max(0.25 * (high - low), 0.02 * high)
        return Axis(low - margin, high + margin, start, end)
    return from_zero(high, start=start, end=end)


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(power * each for each in _STEPS if (high - low) / (power * each) <= most)
    # The last digits of a division must not decide whether the line at an end is drawn.
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * each, 12) for each in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    # Lines at 1, 2 and 5 lie evenly; an axis shorter than a decade would have two of them.
    for parts in (_OF_A_DECADE, _OF_A_SHORT_ONE):
        found = [each * 10.0**power for power in powers for each in parts if low <= each * 10.0**power <= high]
        if len(found) >= _FEW:
            break
    return found
