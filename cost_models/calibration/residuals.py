"""How far a term may be from the truth: 80 % half-widths by family and tier. [T-3]

They are the documents' own leave-one-out errors and spreads where there are any. Else they are the widths written here, which
come from re-measured machines (measured), the reference tables' leave-one-out errors (interpolated), the scatter between
machines of one kind (extrapolated) and the plausible range of the constants involved (nominal).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import numpy as np

from cost_models.calibration.document import CalibrationDocument
from cost_models.calibration.fit import RESIDUAL_QUANTILE
from cost_models.calibration.samples import CollectiveSample
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
_KINDS: Mapping[str, frozenset[str]] = {
    "elementwise": frozenset({"elementwise", "copy"}),
    "optimizer": frozenset({"optimizer"}),
    "host": frozenset({"host_to_device", "device_to_host", "host_both_ways", "nvme_read", "nvme_write"}),
}
"""The kinds of memory sample that a family rests on."""


def residuals_of(
    compute: CalibrationDocument | None, network: CalibrationDocument | None
) -> dict[tuple[str, Tier], float]:
    """Relative half-width of the 80 % interval for every (family, tier)."""
    table = {(family, tier): widths[tier] for family, widths in NOMINAL_RESIDUALS.items() for tier in Tier}
    gemm = [fit.residual_fraction for fit in compute.gemm_fits if fit.residual_fraction > 0] if compute else []
    curves, between = _curve_residuals(network, inside=True), _curve_residuals(network, inside=False)
    for family, own in (("gemm", gemm), ("collective", curves), ("network", between)):
        if own:
            # Interpolating between measured points cannot be surer than the points themselves.
            table[family, Tier.INTERPOLATED] = max(median(own), table[family, Tier.MEASURED])
    samples = (("gemm", compute.gemm if compute else ()), ("collective", _calls(network, inside=True)))
    for family, rows in samples:
        spreads = [row.spread_fraction for row in rows if row.spread_fraction > 0]
        if spreads:
            # At least 1 %: repeats of one run say nothing about another day.
            table[family, Tier.MEASURED] = max(float(np.quantile(spreads, RESIDUAL_QUANTILE)), 0.01)
    for family, groups in _other_spreads(compute, network).items():
        # These families hold more than the kernel that was timed, so a spread of that kernel can only widen them.
        for each in filter(None, groups):
            table[family, Tier.MEASURED] = max(
                float(np.quantile(each, RESIDUAL_QUANTILE)), table[family, Tier.MEASURED]
            )
    # A worse tier is never narrower: a plan must not look surer because less of it was measured.
    for family in NOMINAL_RESIDUALS:
        for better, worse in zip(list(Tier)[:-1], list(Tier)[1:], strict=True):
            table[family, worse] = max(table[family, worse], table[family, better])
    return table


def _calls(network: CalibrationDocument | None, *, inside: bool) -> list[CollectiveSample]:
    """Collectives that were measured inside nodes, or between them."""
    samples = network.collectives if network else ()
    return [s for s in samples if (s.ranks == s.ranks_per_node) == inside]


def _curve_residuals(network: CalibrationDocument | None, *, inside: bool) -> list[float]:
    """Residuals of the curves measured inside nodes, or between them; those of 0 say nothing and are left out."""
    fits = network.collective_fits if network else ()
    chosen = [fit for fit in fits if (fit.ranks == fit.ranks_per_node) == inside]
    return [fit.residual_fraction for fit in chosen if fit.residual_fraction > 0]


def _other_spreads(
    compute: CalibrationDocument | None, network: CalibrationDocument | None
) -> dict[str, list[list[float]]]:
    """Spreads of repeats by family, one list for each group of samples that the family rests on."""
    found = {"network": [[s.spread_fraction for s in _calls(network, inside=False)]]}
    if compute is None:
        return found
    memory = {
        family: [s.spread_fraction for s in compute.memory_bandwidth if s.kind in kinds]
        for family, kinds in _KINDS.items()
    }
    found["attention"] = [[s.spread_fraction for s in compute.attention]]
    found["attention"] += [[s.spread_fraction for s in compute.math_attention]]
    found["host"] = [memory.pop("host"), [s.spread_fraction for s in compute.host_adam]]
    return found | {family: [spreads] for family, spreads in memory.items()}
