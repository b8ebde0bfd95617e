"""80 % intervals of step times, and whether two plans can be told apart.

Each term has a relative half-width that follows from its tier and the calibration's residuals; terms are taken as
independent, so their half-widths add in quadrature. For the difference of two plans only what differs counts: a term that
both share to the last second cancels.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cost_models.constants import SHAPE_RANGE, UNMODELLED_RANGE
from cost_models.hardware.calibrated import Calibration
from cost_models.step.exposure import Exposure
from cost_models.strategies.strategy import Bools, Codes, Floats, Ints
from cost_models.terms import TIME_NAMES, Tier

FAMILY_OF_TERM: Mapping[str, str] = {
    "gemm": "gemm", "attention": "attention", "elementwise": "elementwise", "launch": "host", "embedding": "elementwise",
    "head": "gemm", "loss": "elementwise", "recompute": "gemm", "grad_accumulation": "elementwise",
    "tp_comm": "collective", "cp_comm": "collective", "ep_comm": "collective", "pp_comm": "collective",
    "pp_bubble": "gemm", "dp_comm": "collective", "tied_embedding_comm": "collective", "optimizer": "optimizer",
    "offload": "host", "jitter": "jitter",
}  # fmt: skip
"""Which residual of the calibration a term takes; where a collective's group leaves its node, NETWORK in its place, and
where a term is what overlapping leaves, OVERLAP beside it."""
NETWORK, OVERLAP = "network", "overlap"

_SAME = 1e-9
"""Matmul seconds this close, relatively, are of the same shapes."""


@lru_cache(maxsize=64)
def _half_widths(calibration: Calibration) -> NDArray[np.float64]:
    """Relative half-width by term and tier, shape (terms, tiers)."""
    return np.array([[calibration.residual(FAMILY_OF_TERM[name], tier) for tier in Tier] for name in TIME_NAMES])


def step_time_range(
    calibration: Calibration,
    terms_s: Mapping[str, Floats],
    tiers: Mapping[str, Codes],
    total_s: Floats,
    *,
    exposed: Exposure | None = None,
) -> tuple[Floats, Floats]:
    """Low and high end of the 80 % interval, seconds, shape (N,). [T-3]

    Args:
        calibration: whose residuals count.
        terms_s: seconds by term, which sum to `total_s`.
        tiers: how each of them came about.
        total_s: the step.
        exposed: which communication leaves its node or overlaps; None does neither.
    """
    widths = _half_widths(calibration)
    square = (UNMODELLED_RANGE.value * total_s) ** 2
    for row, name in enumerate(TIME_NAMES):
        width = widths[row][tiers[name]]
        if exposed is not None and name in exposed.crosses:
            width = _communication_width(calibration, width, name, tiers[name], exposed)
        square += (width * terms_s[name]) ** 2
    half = np.minimum(np.sqrt(square), 0.9 * total_s)
    return total_s - half, total_s + half


def _communication_width(calibration: Calibration, width: Floats, name: str, tier: Codes, exposed: Exposure) -> Floats:
    """Half-width of a communication term: of the links it uses, in quadrature with what overlapping leaves."""
    crosses = exposed.crosses[name]
    if crosses.any():
        network = np.array([calibration.residual(NETWORK, each) for each in Tier])
        width = np.where(crosses, network[tier], width)
    if name in exposed.overlaps and exposed.overlaps[name].any():
        beside = calibration.residual(OVERLAP, exposed.beside[name])
        width = np.sqrt(width**2 + np.where(exposed.overlaps[name], beside, 0.0) ** 2)
    return width


def is_tied(
    calibration: Calibration, terms_s: Mapping[str, Floats], tiers: Mapping[str, Codes], *, leader: int | Ints
) -> Bools:
    """Where the 80 % interval of the difference to the leader, or to each row's own, contains 0, shape (N,). [T-4]"""
    widths = _half_widths(calibration)
    difference = np.zeros(len(next(iter(terms_s.values()))))
    square = np.zeros_like(difference)
    for row, name in enumerate(TIME_NAMES):
        apart = terms_s[name] - terms_s[name][leader]
        width = np.maximum(widths[row][tiers[name]], widths[row][tiers[name][leader]])
        difference += apart
        square += (width * apart) ** 2
    gemm = terms_s["gemm"]
    other_shapes = np.abs(gemm - gemm[leader]) > _SAME * gemm
    square += np.where(other_shapes, SHAPE_RANGE.value**2 * (gemm**2 + gemm[leader] ** 2), 0.0)
    square += (UNMODELLED_RANGE.value * difference) ** 2
    return np.asarray(difference**2 <= square, np.bool_)
