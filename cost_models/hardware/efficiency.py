"""What share of its peak a GPU reaches, where another one of its generation was measured. [F-1]

A share belongs to a peak: a part with a quarter of the multiply units behind the same memory keeps them busier.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cost_models.constants import BLACKWELL_EFFICIENCY, PRECISION_EFFICIENCY, TOP_SHARE
from cost_models.specs.cluster import Generation

Floats = NDArray[np.float64]


def precision_efficiency(generation: Generation, precision: str) -> float:
    """Share of its own peak that a precision reaches, over bf16's share at the same shape, on a GPU whose table is its
    own.
    """
    return (BLACKWELL_EFFICIENCY if generation == "blackwell" else PRECISION_EFFICIENCY)[precision].value


def carried_share(share: float, *, ratio: float, clock: float, waiting_clock: float) -> float:
    """Share of its own peak that a GPU reaches, where another one of its generation reaches `share` in a burst. [F-1]

        t / operations = 1 / (peak top clock) + (1/share - 1/top) / (measured peak waiting clock)

    The first part is the multiply units' own. The second is what the measured GPU waits for its operands and for kernels to start,
    which a lower peak does not lengthen. At the measured peak and clock this gives the measured share.

    Args:
        share: share of the measured GPU's peak.
        ratio: peak over the measured GPU's.
        clock: sustained over data-sheet clock.
        waiting_clock: clock of what it waits for; equal to `clock` where the measured GPU is this one.
    """
    return float(carried_shares(np.asarray(share), ratio=ratio, clock=clock, waiting_clock=waiting_clock))


def carried_shares(share: Floats, *, ratio: float, clock: float, waiting_clock: float) -> Floats:
    """`carried_share` of an array of shares, in their shape. [F-1]"""
    top = TOP_SHARE.value
    waits = np.maximum(1.0 / share - 1.0 / top, 0.0)
    return np.asarray(1.0 / (1.0 / (np.maximum(top, share) * clock) + ratio * waits / waiting_clock))
