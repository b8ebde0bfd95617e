"""Which GPUs of a job share one NVLink domain where a domain spans nodes (GB200 NVL72: 18 nodes of 4).

A scheduler hands such a job its nodes in equal segments, each whole inside one domain (Slurm's topology/block plugin and
`sbatch --segment`), so consecutive ranks share a domain in blocks of a segment, not of the whole rack. Nothing here knows
which rack a segment ends up in: two segments are never taken to share one.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cost_models.specs.cluster import Cluster
from cost_models.strategies.strategy import Strategies

Floats = NDArray[np.float64]
_RADIX = 2**20
"""Larger than every number of GPUs and every product of degrees, so that three of them share one key."""


def spans_nodes(cluster: Cluster) -> bool:
    """Whether a fast domain holds more than one node, so that segments decide which ranks share it."""
    return _domain(cluster) > cluster.gpus_per_node


def segment_nodes(cluster: Cluster, *, world: int, dense: int = 1, experts: int = 1) -> int:
    """Number of nodes in one segment of a job on this cluster. [C-7]

    It is the stated number. Else it is the largest number of nodes that fits a domain, divides the job's nodes, fills more than
    half of the domain and holds whole groups. Where no number does, the job fills domain after domain, the last one in part.

    Args:
        cluster: nodes and domains.
        world: GPUs of the job.
        dense: ranks of one tensor- and context-parallel group, tp * cp.
        experts: ranks of one expert group, etp * ep.
    """
    if not spans_nodes(cluster):
        return 1
    whole = _domain(cluster) // cluster.gpus_per_node
    if cluster.segment_nodes is not None:
        return min(cluster.segment_nodes, whole)
    # Rounded up: a node that a job fills in part is given to it whole.
    nodes = -(-min(world, cluster.num_gpus) // cluster.gpus_per_node)
    return _best(nodes, whole, cluster.gpus_per_node, dense, experts)


@lru_cache(maxsize=65536)
def _best(nodes: int, whole: int, gpus_per_node: int, dense: int, experts: int) -> int:
    if nodes <= whole:
        return whole
    # Segments of at most half a domain would leave much of it unused, since two segments are never taken to share
    # one.
    even = [size for size in range(whole, whole // 2, -1) if nodes % size == 0]
    for size in even:
        gpus = size * gpus_per_node
        if all(group > gpus or gpus % group == 0 for group in (dense, experts)):
            return size
    return even[0] if even else whole


def domain_gpus(cluster: Cluster, strategies: Strategies) -> Floats:
    """GPUs of consecutive ranks that share a fast domain, shape (N,)."""
    if not spans_nodes(cluster):
        return np.full(len(strategies), float(_domain(cluster)))
    s = strategies
    code = (s.world * _RADIX + s.tp * s.cp) * _RADIX + s.etp * s.ep
    _, first, inverse = np.unique(code.astype(np.int64), return_index=True, return_inverse=True)
    sizes = [
        segment_nodes(cluster, world=int(world), dense=int(dense), experts=int(experts))
        for world, dense, experts in zip(s.world[first], (s.tp * s.cp)[first], (s.etp * s.ep)[first], strict=True)
    ]
    return np.array(sizes, dtype=np.float64)[inverse.reshape(-1)] * cluster.gpus_per_node


def _domain(cluster: Cluster) -> int:
    return max(1, min(cluster.nvlink_domain_gpus, cluster.num_gpus))
