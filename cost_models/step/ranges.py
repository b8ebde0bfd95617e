"""80 % intervals of step times, and whether two plans can be told apart.

Each term has a relative half-width that follows from its tier and the calibration's residuals. The terms' errors are taken
as independent, so their half-widths add in quadrature, and so does what all plans on one machine have in common. The sum is scaled
by what measured runs of the same regime show (`range_widths`). For the difference between two plans only what differs counts: the
machine's common offset, and a term on which both spend the same time, cancel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cost_models.constants import SHAPE_RANGE, UNMODELLED_RANGE
from cost_models.corrections.applied import narrowed
from cost_models.hardware.calibrated import Calibration
from cost_models.step.exposure import Exposure
from cost_models.step.host_range import HostRange
from cost_models.step.range_widths import PLANS_APART, range_widths, regimes
from cost_models.strategies.strategy import Bools, Codes, Floats, Ints
from cost_models.terms import HOST_BOUND, TIME_NAMES, TIME_TERMS, Family, Tier

NETWORK: Family = "network"
"""What a collective takes in place of its own family where its group leaves its node."""
OVERLAP: Family = "overlap"
"""What a term takes beside its own where it is what overlapping leaves."""

_CLOCKED = tuple(term.name for term in TIME_TERMS if term.family in ("gemm", "attention"))
"""Terms that the clock of the multiply units paces."""
_BEHIND_HOST = ("gemm", "attention", "elementwise", "recompute")
"""Terms of a layer that run behind their launches."""
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
    has_experts: bool = False,
    host: HostRange | None = None,
) -> tuple[Floats, Floats]:
    """Low and high end of the 80 % interval of step times, in seconds, shape (N,) each. [T-3]

    Args:
        calibration: supplies the residual of each family and tier, and tells whether the machine was profiled.
        terms_s: seconds by term, which sum to `total_s`.
        tiers: tier of each term.
        total_s: seconds of the step.
        exposed: which communication leaves its node or overlaps; None treats all of it as inside a node and not overlapped.
        has_experts: whether the model has routed experts.
        host: what a faster and a slower host would change; None leaves the wait for it its own width.
    """
    widths = range_widths()
    machine = widths.machine(is_profiled=calibration.is_profiled)
    below, above = own_half_widths(calibration, terms_s, tiers, total_s, exposed=exposed, host=host)
    factor = widths.factor_R[regimes(terms_s, total_s, exposed=exposed, has_experts=has_experts)]
    down, up = (factor * np.sqrt(own**2 + machine**2) for own in (below, above))
    # A factor either way: half and twice the time are equally far off, and no width reaches 0 s.
    return total_s * np.exp(-down), total_s * np.exp(up)


def own_half_widths(
    calibration: Calibration,
    terms_s: Mapping[str, Floats],
    tiers: Mapping[str, Codes],
    total_s: Floats,
    *,
    exposed: Exposure | None = None,
    host: HostRange | None = None,
) -> tuple[Floats, Floats]:
    """Half-widths of what a plan's own terms leave open below and above, as shares of its step, shape (N,) each. [T-3]"""
    if host is None:
        both = own_half_width(calibration, terms_s, tiers, total_s, exposed=exposed)
        return both, both
    waits = terms_s["launch"]
    others = own_half_width(calibration, {**terms_s, "launch": 0.0 * waits}, tiers, total_s, exposed=exposed)
    row = TIME_NAMES.index("launch")
    least_s = _half_widths(calibration)[row][tiers["launch"]] * waits
    shares = (
        np.maximum(least_s, each_s) / np.where(total_s > 0, total_s, 1.0) for each_s in (host.shorter_s, host.longer_s)
    )
    below, above = (np.hypot(others, share) for share in shares)
    return below, above


def own_half_width(
    calibration: Calibration,
    terms_s: Mapping[str, Floats],
    tiers: Mapping[str, Codes],
    total_s: Floats,
    *,
    exposed: Exposure | None = None,
) -> Floats:
    """Half-width of what a plan's own terms leave open, as a share of its step, shape (N,); arguments as above. [T-3]"""
    widths = _half_widths(calibration)
    # What no term describes (data loading, allocator, repeats of one run) is a share of the whole step, independent of the
    # terms' own errors.
    square = (UNMODELLED_RANGE.value * total_s) ** 2
    if calibration.clock_half_width:
        # One clock paces all of these, so that its error is that of their sum.
        square = square + (calibration.clock_half_width * sum((terms_s[name] for name in _CLOCKED), 0.0 * total_s)) ** 2
    # Where layers wait for their launches, the host sets the pace of all of them and not only of the wait.
    paced = np.minimum(terms_s["launch"] / (HOST_BOUND * np.where(total_s > 0, total_s, 1.0)), 1.0)
    behind_s = paced * sum((terms_s[name] for name in _BEHIND_HOST), 0.0 * total_s)
    for row, name in enumerate(TIME_NAMES):
        width = widths[row][tiers[name]]
        if name == "launch":
            square += (width * (terms_s[name] + behind_s)) ** 2
            continue
        if exposed is not None and name in exposed.crosses:
            width = _communication_width(calibration, width, name, tiers[name], exposed)
        square += (width * terms_s[name]) ** 2
    return np.asarray(np.sqrt(square) / np.where(total_s > 0, total_s, 1.0))


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
    calibration: Calibration,
    terms_s: Mapping[str, Floats],
    tiers: Mapping[str, Codes],
    *,
    leader: int | Ints,
    plans: float | None = None,
    range_factor: Floats | None = None,
) -> Bools:
    """Whether the 80 % interval of each plan's difference to the leader contains 0, shape (N,). [T-4]

    Args:
        calibration: supplies the residual of each family and tier.
        terms_s: seconds by term, shape (N,) each.
        tiers: tier of each term.
        leader: row that all rows are compared with, or the row of each row's own leader, shape (N,).
        plans: half-width of what two plans of one machine err against each other; the shipped figure where None.
        range_factor: what measured runs multiply each plan's half-widths by, shape (N,); None leaves them.
    """
    pairs = differences(calibration, terms_s, tiers, leader=leader)
    half_s = pairs.half_width_s(leader, plans=plans, range_factor=range_factor)
    return np.asarray(np.abs(pairs.difference_s) <= half_s, np.bool_)


@dataclass(frozen=True, eq=False)
class Differences:
    """What sets plans apart from their leaders, in seconds, shape (N,) each."""

    difference_s: Floats
    """Time of the plan less that of its leader."""
    terms_s: Floats
    """80 % half-width of what the differing terms leave open of it."""
    unlike_s: Floats
    """As much of a step as the two do not share: their mean time, or less where their terms differ by less than `PLANS_APART`."""
    mean_s: Floats
    """Mean time of the two."""

    def half_width_s(
        self, leader: int | Ints, *, plans: float | None = None, range_factor: Floats | None = None
    ) -> Floats:
        """Half-width of the 80 % range of each difference, in seconds, shape (N,); arguments as of `is_tied`. [T-4]"""
        # Whatever else plans err by on their own machine, less the nearer they are to being the same plan.
        own_s = (range_widths().plans if plans is None else plans) * self.unlike_s
        half_s = np.asarray(np.sqrt(self.terms_s**2 + own_s**2))
        if range_factor is None:
            return half_s
        # The plan of which less was learnt bounds what is known of the difference.
        learnt = np.maximum(range_factor, range_factor[leader])
        return narrowed(half_s, learnt, of=self.mean_s)


def differences(
    calibration: Calibration, terms_s: Mapping[str, Floats], tiers: Mapping[str, Codes], *, leader: int | Ints
) -> Differences:
    """What sets plans apart from their leaders; arguments as of `is_tied`. [T-4]"""
    widths = _half_widths(calibration)
    difference = np.zeros(len(next(iter(terms_s.values()))))
    square, apart_square, sum_s = np.zeros_like(difference), np.zeros_like(difference), np.zeros_like(difference)
    for row, name in enumerate(TIME_NAMES):
        apart = terms_s[name] - terms_s[name][leader]
        width = np.maximum(widths[row][tiers[name]], widths[row][tiers[name][leader]])
        # One of the two plans may know the term better than the other; what is known least bounds what is known of
        # the difference.
        difference += apart
        square += (width * apart) ** 2
        apart_square += apart**2
        sum_s += terms_s[name] + terms_s[name][leader]
    # Equal shapes err alike and cancel in the difference. Products of other shapes are priced from other points of
    # the efficiency surface, so that each plan keeps an error of its own even where the two times happen to be close.
    gemm = terms_s["gemm"]
    other_shapes = np.abs(gemm - gemm[leader]) > _SAME * gemm
    square += np.where(other_shapes, SHAPE_RANGE.value**2 * (gemm**2 + gemm[leader] ** 2), 0.0)
    square += (UNMODELLED_RANGE.value * difference) ** 2
    unlike_s = np.minimum(np.sqrt(apart_square) / PLANS_APART, sum_s / 2.0)
    return Differences(difference, np.sqrt(square), unlike_s, sum_s / 2.0)
