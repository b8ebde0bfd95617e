"""What share of its peak a GPU reaches, where another one of its generation was measured. [F-1]

A share belongs to a peak: a part with a quarter of the multiply units behind the same memory keeps them busier.
"""

from __future__ import annotations

from cost_models.constants import BLACKWELL_EFFICIENCY, PRECISION_EFFICIENCY, TOP_SHARE
from cost_models.specs.cluster import Generation


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
    top = TOP_SHARE.value
    waits = max(1.0 / share - 1.0 / top, 0.0)
    return 1.0 / (1.0 / (max(top, share) * clock) + ratio * waits / waiting_clock)
