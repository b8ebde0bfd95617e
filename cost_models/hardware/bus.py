"""What each rank's link carries of a collective, as nccl-tests define it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cost_models.operations import Op

Floats = NDArray[np.float64]


def bus_factor(op: Op, ranks: Floats) -> Floats:
    """Bytes that each rank's link carries over the total size: nccl-tests' ratio of bus to algorithm bandwidth, 0...2."""
    share = np.where(ranks > 1, (ranks - 1.0) / np.maximum(ranks, 1.0), 0.0)
    if op == "all_reduce":
        return 2.0 * share
    return np.where(ranks > 1, 1.0, 0.0) if op in {"broadcast", "send_recv"} else share
