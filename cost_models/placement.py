"""Where the members of a communication group sit: how many share a node or fast domain, how many domains it spans.

Ranks are numbered tp, cp, ep, dp, pp from the fastest-varying axis outward, node by node (Megatron's default order), so a
group is a size and a stride. Nothing here assumes powers of two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.specs.cluster import Cluster

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Placement:
    """A group of every strategy, shape (N,) each."""

    ranks: Floats
    per_domain: Floats
    """Members inside one fast domain (NVLink, NVSwitch, xGMI island, PCIe root); the fewest where domains differ."""
    domains: Floats
    """Fast domains the group spans; 1 means that it never leaves one."""
    siblings_per_domain: Floats
    """Groups of the same kind that share a domain, and so its NICs, at the same time."""
    stride: Floats


def place(size: Floats, *, stride: Floats, cluster: Cluster) -> Placement:
    """Placement of the group {offset + i*stride, 0 <= i < size} on nodes filled in rank order."""
    domain = float(max(1, min(cluster.nvlink_domain_gpus, cluster.num_gpus)))
    inside = np.maximum(np.floor(domain / stride), 1.0)
    per_domain = np.minimum(size, inside)
    domains = np.ceil(size / per_domain)
    return Placement(
        ranks=size,
        per_domain=per_domain,
        domains=domains,
        siblings_per_domain=domain / per_domain,
        stride=stride,
    )
