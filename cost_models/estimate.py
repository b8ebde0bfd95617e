"""A predicted quantity together with how it came about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds, and the tier of each; both broadcast to the same shape."""

    seconds: NDArray[np.float64]
    tier: NDArray[np.int8]
    """Codes of `terms.Tier`."""


FREE = Estimate(np.zeros(1), np.zeros(1, np.int8))
"""What a collective costs that no strategy of a batch uses; broadcasts to any shape."""
