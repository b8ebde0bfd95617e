"""80 % intervals of step times, and whether two plans can be told apart.

Each term has a relative half-width that follows from its tier and the calibration's residuals. The terms' errors are taken
as independent, so their half-widths add in quadrature. For the difference between two plans only what differs counts: a
term on which both spend the same time cancels.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cost_models.constants import SHAPE_RANGE, UNMODELLED_RANGE
from cost_models.hardware.calibrated import Calibration
from cost_models.step.exposure import Exposure
from cost_models.step.host_range import HostRange
from cost_models.strategies.strategy import Bools, Codes, Floats, Ints
from cost_models.terms import TIME_NAMES, TIME_TERMS, Family, Tier

NETWORK: Family = "network"
"""What a collective takes in place of its own family where its group leaves its node."""
OVERLAP: Family = "overlap"
"""What a term takes beside its own where it is what overlapping leaves."""

_WIDEST = 0.9
"""Largest half-width, as a share of the step. One of the whole step would put the low end at 0 s or below, which no step takes:
nominal tiers of several dominant terms can add up to that."""
_SAME = 1e-9
"""Two plans whose matmul seconds differ relatively by no more than this run products of the same shapes."""


@lru_cache(maxsize=64)
def _half_widths(calibration: Calibration) -> NDArray[np.float64]:
    """Relative half-width by term and tier, shape (terms, tiers)."""
    return np.array([[calibration.residual(term.family, tier) for tier in Tier] for term in TIME_TERMS])


def step_time_range(
    calibration: Calibration,
    terms_s: Mapping[str, Floats],
    tiers: Mapping[str, Codes],
    total_s: Floats,
    *,
    exposed: Exposure | None = None,
    host: HostRange | None = None,
) -> tuple[Floats, Floats]:
    """Low and high end of the 80 % interval of step times, in seconds, shape (N,) each. [T-3]

    Args:
        calibration: supplies the residual of each family and tier.
        terms_s: seconds by term, which sum to `total_s`.
        tiers: tier of each term.
        total_s: seconds of the step.
        exposed: which communication leaves its node or overlaps; None treats all of it as inside a node and not overlapped.
        host: what a faster and a slower host would change; None leaves the wait for it its own width.
    """
    widths = _half_widths(calibration)
    # What no term describes (data loading, allocator, clocks) is a share of the whole step, independent of the terms'
    # own errors.
    square = (UNMODELLED_RANGE.value * total_s) ** 2
    waits: Floats | float = 0.0
    for row, name in enumerate(TIME_NAMES):
        width = widths[row][tiers[name]]
        if exposed is not None and name in exposed.crosses:
            width = _communication_width(calibration, width, name, tiers[name], exposed)
        if name == "launch" and host is not None:
            waits = (width * terms_s[name]) ** 2
            continue
        square += (width * terms_s[name]) ** 2
    if host is None:
        half = np.minimum(np.sqrt(square), _WIDEST * total_s)
        return total_s - half, total_s + half
    shorter, longer = (np.maximum(waits, each**2) for each in (host.shorter_s, host.longer_s))
    down, up = (np.minimum(np.sqrt(square + each), _WIDEST * total_s) for each in (shorter, longer))
    return total_s - down, total_s + up


def _communication_width(calibration: Calibration, width: Floats, name: str, tier: Codes, exposed: Exposure) -> Floats:
    """Relative half-width of a communication term, shape (N,): that of its links, in quadrature with that of overlapping."""
    crosses = exposed.crosses[name]
    if crosses.any():
        network = np.array([calibration.residual(NETWORK, each) for each in Tier])
        width = np.where(crosses, network[tier], width)
    if name in exposed.overlaps and exposed.overlaps[name].any():
        # The errors of link time and of the share of it that overlapping hides are taken as independent, like the terms'.
        beside = calibration.residual(OVERLAP, exposed.beside[name])
        width = np.sqrt(width**2 + np.where(exposed.overlaps[name], beside, 0.0) ** 2)
    return width


def is_tied(
    calibration: Calibration, terms_s: Mapping[str, Floats], tiers: Mapping[str, Codes], *, leader: int | Ints
) -> Bools:
    """Whether the 80 % interval of each plan's difference to the leader contains 0, shape (N,). [T-4]

    Args:
        calibration: supplies the residual of each family and tier.
        terms_s: seconds by term, shape (N,) each.
        tiers: tier of each term.
        leader: row that all rows are compared with, or the row of each row's own leader, shape (N,).
    """
    widths = _half_widths(calibration)
    difference = np.zeros(len(next(iter(terms_s.values()))))
    square = np.zeros_like(difference)
    for row, name in enumerate(TIME_NAMES):
        apart = terms_s[name] - terms_s[name][leader]
        width = np.maximum(widths[row][tiers[name]], widths[row][tiers[name][leader]])
        # One of the two plans may know the term better than the other; what is known least bounds what is known of
        # the difference.
        difference += apart
        square += (width * apart) ** 2
    # Equal shapes err alike and cancel in the difference. Products of other shapes are priced from other points of
    # the efficiency surface, so that each plan keeps an error of its own even where the two times happen to be close.
    gemm = terms_s["gemm"]
    other_shapes = np.abs(gemm - gemm[leader]) > _SAME * gemm
    square += np.where(other_shapes, SHAPE_RANGE.value**2 * (gemm**2 + gemm[leader] ** 2), 0.0)
    square += (UNMODELLED_RANGE.value * difference) ** 2
    return np.asarray(difference**2 <= square, np.bool_)
