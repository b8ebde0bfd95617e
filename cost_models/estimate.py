"""A predicted quantity together with how it came about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds with their tiers; both arrays broadcast to the same shape."""

    seconds: NDArray[np.float64]
    tier: NDArray[np.int8]
    """Codes of `terms.Tier`."""


FREE = Estimate(np.zeros(1), np.zeros(1, np.int8))
"""The estimate of a collective that no strategy of a batch uses: 0 s, measured. It broadcasts to any shape."""
