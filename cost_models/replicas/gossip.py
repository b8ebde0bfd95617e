"""Gossip: every replica averages its parameters with a few neighbours and not with all. [C-42]"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cost_models.specs.method import Topology

Floats = NDArray[np.float64]


def gossip_degree(topology: Topology, ranks: Floats | float) -> Floats:
    """Neighbours that a replica sends its parameters to at every step, shape (N,); one replica has none. [C-42]

    One peer at a time at distances 1, 2, 4 …; both neighbours of a ring; or all log2 n distances at once.

    Source: Ying et al. 2021 (arXiv 2110.13363); BlueFog's topologies ExponentialTwoGraph and RingGraph.
    """
    n = np.asarray(ranks, np.float64)
    if topology == "one-peer-exp":
        degree = np.ones_like(n)
    elif topology == "ring":
        degree = np.minimum(n - 1.0, 2.0)
    else:
        degree = np.ceil(np.log2(np.maximum(n, 2.0)))
    return np.asarray(np.where(n > 1, degree, 0.0))


def gossip_s(
    size_bytes: Floats | float, *, degree: Floats | float, bytes_per_s: Floats | float, latency_s: Floats | float
) -> Floats:
    """Seconds in which a replica sends `size_bytes` to so many neighbours and receives as much: degree (a + S / B). [C-42]"""
    return np.asarray(degree * (np.asarray(latency_s) + np.asarray(size_bytes) / np.asarray(bytes_per_s)))
