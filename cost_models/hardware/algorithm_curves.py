"""Seconds by size of every algorithm that could run one collective on a group, whatever a library would choose.      [C-23]"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cost_models.hardware.algorithms import OFFERED, ROUTED, TAKEN, obstacle
from cost_models.hardware.call_parts import ways_inside
from cost_models.hardware.collectives import Links, ways_over_islands
from cost_models.hardware.placement import Placement
from cost_models.operations import Op
from cost_models.specs.collectives import Algorithm, Collectives, Library, Protocol

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """One algorithm of one library, by size: arrays of shape (N,)."""

    library: Library
    algorithm: Algorithm
    is_taken: bool
    """Whether the library takes it by itself; otherwise only where it is forced."""
    protocol: tuple[Protocol | None, ...]
    """The fastest at each size."""
    latency_s: Floats
    seconds: Floats


def algorithm_curves(
    op: Op, size: Floats, *, placement: Placement, links: Links, libraries: tuple[Library, ...]
) -> Iterator[Curve]:
    """The curves of all algorithms that the group can have, library by library; none for all-to-alls and sends.

    Args:
        op: the operation.
        size: bytes as nccl-tests count them, shape (N,).
        placement: the group, once for each size.
        links: what the cluster's links carry.
        libraries: those that run on its GPUs.
    """
    if op not in ROUTED:
        return
    for library in libraries:
        for algorithm in OFFERED[library][op]:
            if obstacle(links.cluster, algorithm) is None:
                curve = _curve(op, size, placement, links, library, algorithm)
                if curve is not None:
                    yield curve


def _curve(
    op: Op, size: Floats, placement: Placement, links: Links, library: Library, algorithm: Algorithm
) -> Curve | None:
    # A formula is asked of a cluster on which that very algorithm is forced, so that a curve here is what a plan would be priced with.
    forced = replace(links, cluster=replace(links.cluster, collectives=Collectives(library, ((op, algorithm),))))
    # The group is the same at every size, so that one of its places says where it lies.
    across = bool(placement.islands[0] > 1)
    ways = (ways_over_islands if across else ways_inside)(op, size, placement, forced)
    own = [way for way in ways if way.algorithm == algorithm and np.all(way.possible)]
    if not own:
        return None
    each_s = np.stack([np.broadcast_to(way.latency_s + way.bandwidth_s, size.shape) for way in own])
    latencies_s = np.stack([np.broadcast_to(way.latency_s, size.shape) for way in own])
    best = np.argmin(each_s, axis=0)
    places = np.arange(len(size))
    return Curve(
        library, algorithm, algorithm in TAKEN[library][op], tuple(own[way].protocol for way in best.tolist()),
        latencies_s[best, places], each_s[best, places],
    )  # fmt: skip
