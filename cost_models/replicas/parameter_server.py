"""Synchronous parameter servers: bytes that the busiest network card carries, as seconds of one push and pull. [C-41]

Every worker sends its gradients to the servers that hold the parameters and receives their sum. That is exact: the sum is that of
an all-reduce. Servers may run on machines of their own, beside the workers, or both (BytePS).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def byteps_ratio(workers: Floats | float, servers: Floats | float) -> Floats:
    """Seconds of one push and pull over those of sending the gradients once through one card, shape (N,). [C-41]

        2 n (n - 1) / (n² + k n - 2 k)

    Server processes run on all n workers' machines and on k machines without GPUs, and the parameters are spread over both so that
    every card carries the same. More such machines than workers do not help.

    Args:
        workers: n, machines with GPUs; one alone exchanges nothing.
        servers: k, machines without GPUs.

    Source: Jiang et al. 2020 (BytePS, OSDI), section 4.1.
    """
    n, k = np.asarray(workers, np.float64), np.minimum(servers, workers).astype(np.float64)
    several = np.maximum(n, 2.0)
    k = np.minimum(k, several)
    ratio = 2.0 * several * (several - 1.0) / (several**2 + k * several - 2.0 * k)
    return np.asarray(np.where(n > 1, ratio, 0.0))
