"""By how much the steps of plans differ from one of them, with the 80 % range of each difference and whether 0 lies in it.

The terms are read back from the answers, so that plans of any search, and predictions of files, are compared by the same code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cost_models.hardware import Calibration
from cost_models.step.ranges import differences, is_tied
from cost_models.strategies.strategy import Bools, Floats
from cost_models.terms import TIME_NAMES, Tier


@dataclass(frozen=True, eq=False)
class StepsApart:
    """Differences of step times to a leader, shape (N,) each, in seconds; positive where a plan takes longer. [T-4]"""

    difference_s: Floats
    low_s: Floats
    """Low end of the 80 % range."""
    high_s: Floats
    tied: Bools
    """Whether the range contains 0, so that the two are too close to call."""


def range_factors(evaluations: Sequence[Mapping[str, Any]]) -> Floats:
    """What measured runs multiply the half-widths of each evaluation's range by, shape (N,); 1 where there were none."""
    return np.array([each["provenance"].get("range_factor") or 1.0 for each in evaluations], np.float64)


def steps_apart(
    evaluations: Sequence[Mapping[str, Any]], *, leader: int, calibrations: Sequence[Calibration]
) -> StepsApart:
    """The differences of evaluated plans to one of them.

    Args:
        evaluations: evaluations with `time_breakdown_s` and `provenance`.
        leader: place of the plan that all are compared with.
        calibrations: what they were priced with, one for each pool.
    """
    codes = {tier.label: tier.value for tier in Tier}
    terms = {name: np.array([each["time_breakdown_s"].get(name, 0.0) for each in evaluations]) for name in TIME_NAMES}
    tiers = {
        name: np.array([codes[each["provenance"]["terms"].get(name, Tier.MEASURED.label)] for each in evaluations])
        for name in TIME_NAMES
    }
    # Pools are priced by calibrations of their own; a difference that one of them leaves open is open.
    each = [differences(calibration, terms, tiers, leader=leader) for calibration in calibrations]
    learnt = range_factors(evaluations)
    widths = [apart.half_width_s(leader, range_factor=learnt) for apart in each]
    ties = [is_tied(calibration, terms, tiers, leader=leader, range_factor=learnt) for calibration in calibrations]
    difference = each[0].difference_s
    widest = np.max(widths, axis=0)
    return StepsApart(difference, difference - widest, difference + widest, np.any(ties, axis=0))
