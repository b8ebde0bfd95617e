"""How far a term may be from the truth: 80 % half-widths by family and tier.

The documents' own leave-one-out errors and spreads where there are any; else the widths written here, which come from
re-measured machines (measured), the reference tables' leave-one-out errors (interpolated), the scatter between machines
of one kind (extrapolated) and the plausible range of the constants involved (nominal).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import numpy as np

from cost_models.calibration.document import CalibrationDocument
from cost_models.terms import Tier

NOMINAL_RESIDUALS: Mapping[str, tuple[float, float, float, float]] = {
    "gemm": (0.03, 0.06, 0.12, 0.25),
    "attention": (0.05, 0.08, 0.15, 0.20),
    "elementwise": (0.05, 0.08, 0.12, 0.15),
    "collective": (0.05, 0.08, 0.15, 0.30),
    "network": (0.08, 0.12, 0.20, 0.35),
    "host": (0.15, 0.22, 0.30, 0.50),
    "optimizer": (0.05, 0.08, 0.12, 0.15),
    "overlap": (0.10, 0.15, 0.30, 0.50),
    "jitter": (0.20, 0.30, 0.50, 0.80),
}
"""Relative half-widths, in the order of `Tier`."""


def residuals_of(
    compute: CalibrationDocument | None, network: CalibrationDocument | None
) -> dict[tuple[str, Tier], float]:
    """Half-width for every (family, tier)."""
    table = {(family, tier): widths[tier] for family, widths in NOMINAL_RESIDUALS.items() for tier in Tier}
    gemm = [fit.residual_fraction for fit in compute.gemm_fits if fit.residual_fraction > 0] if compute else []
    curves = [fit.residual_fraction for fit in network.collective_fits if fit.residual_fraction > 0] if network else []
    for family, own in (("gemm", gemm), ("collective", curves)):
        if own:
            table[family, Tier.INTERPOLATED] = max(median(own), table[family, Tier.MEASURED])
    samples = (("gemm", compute.gemm if compute else ()), ("collective", network.collectives if network else ()))
    for family, rows in samples:
        spreads = [row.spread_fraction for row in rows if row.spread_fraction > 0]
        if spreads:
            table[family, Tier.MEASURED] = max(float(np.quantile(spreads, 0.8)), 0.01)
    for family in NOMINAL_RESIDUALS:  # a worse tier is never narrower
        for better, worse in zip(list(Tier)[:-1], list(Tier)[1:], strict=True):
            table[family, worse] = max(table[family, worse], table[family, better])
    return table
