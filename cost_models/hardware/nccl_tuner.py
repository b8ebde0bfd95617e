"""NCCL's own estimate of every algorithm and protocol that it has, by which it chooses one for each call.          [C-22]

It prices clusters whose library is stated (`cluster.collectives`). Answers without that field know rings and trees alone, at the
bandwidth that they were measured to reach (`nccl`), as they did before the field was there. NVLS is priced by the bytes that it moves,
which fits measurements better than NCCL's own bandwidth for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cost_models.hardware.bus import bus_factor
from cost_models.hardware.nccl import (
    BASE_US,
    HOP_US,
    LL_NODE_BYTES_PER_S,
    LL_NODES_BYTES_PER_S,
    NETWORK_HOP_S,
    POST_US,
    PROTOCOLS,
    RING_SIMPLE_ALL_REDUCE,
    Hop,
)
from cost_models.operations import Op
from cost_models.specs.collectives import Algorithm, Protocol
from cost_models.units import GB, MICRO

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NVLS_EFFICIENCY = {"hopper": 0.85, "blackwell": 0.74}
"""Share of the link that sums in the switch reach, by generation; others have none. Source: NCCL 2.30 nvlsEfficiency."""
NVLS_INSIDE_US, NVLS_TREE_NETWORK_US = 25.0, 20.9
"""Microseconds of NVLS inside a node, and of a hop of its tree between nodes. Source: NCCL 2.30 hwLatencies."""
COLLNET_HOP_US, COLLNET_ARITY_US, COLLNET_NETWORK_US = 3.7, 0.4, 31.0
"""Microseconds of CollNet's hop inside a node, of each further rank of the node, and of the switch. Source: the same file."""
PAT_BASE_US, PAT_RANK_US, PAT_HOP_DIVISOR, PAT_SHARE = 8.0, 2.8, 3.5, 0.75
"""Microseconds of a call of PAT and of each rank, what a network hop is divided by, and its share of the bandwidth. Source: the same
file."""
TREE_SHARE, LL128_BETWEEN_NODES, LL128_IN_A_NODE, LL_OF_TREE = 0.92, 120.0 / 128.0, 7.0 / 9.0, 1.0 / 3.8
"""Shares of the bandwidth that trees reach, and LL128 and LL of that. Source: the same file."""
TREE_BY_SIZE: tuple[tuple[float, ...], ...] = (
    (1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0),
    (1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0),
    (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
)  # fmt: skip
"""Share of a tree's bandwidth under LL, LL128 and Simple, by powers of two from 64 B; 1 beyond. Source: the same file,
treeCorrectionFactor."""


@dataclass(frozen=True, slots=True)
class Way:
    """One algorithm and protocol for a batch of calls, arrays that broadcast to shape (N,)."""

    algorithm: Algorithm
    protocol: Protocol | None
    latency_s: Floats
    bandwidth_s: Floats
    possible: Bools
    """Whether the library could take it for this group at all."""
    covers_node: bool = False
    """Whether the time inside the node is in these seconds already."""


@dataclass(frozen=True, slots=True)
class Group:
    """The groups of a batch as NCCL sees them; arrays that broadcast to shape (N,)."""

    ranks: Floats
    members: Floats
    """Ranks of the group on one node."""
    nodes: Floats
    hop: Hop
    generation: str
    inside_bytes_per_s: Floats | float
    """What one rank's link carries inside the node."""
    network_bytes_per_s: Floats | float
    """What the NICs of the group's ranks on one node carry together."""
    extra_hop_s: float = 0.0
    """Seconds per hop that a stated link takes beyond NCCL's table."""
    network_s: float = NETWORK_HOP_S
    has_switch: bool = True
    """Whether a switch inside the node can sum (NVSwitch)."""

    @property
    def is_across(self) -> Bools:
        return np.asarray(self.nodes > 1)

    @property
    def bytes_per_s(self) -> Floats:
        """What bounds a ring: one rank's link inside a node, the NICs of a node between nodes."""
        return np.where(self.is_across, self.network_bytes_per_s, self.inside_bytes_per_s)

    @property
    def steps_of_tree(self) -> Floats:
        """Levels of a tree over the nodes, rounded down as NCCL does."""
        return np.floor(np.log2(np.maximum(self.nodes, 1.0)))

    def network_hop_s(self, us: float, *, times: float = 1.0) -> Floats | float:
        """Seconds of a tabled network hop, with what this network takes longer than InfiniBand."""
        return max(us * MICRO + (self.network_s - NETWORK_HOP_S) * times, 0.0)

    def inside_hop_s(self, algorithm: Literal["tree", "ring"], number: int) -> float:
        """Seconds of a hop inside the node under a protocol by its number."""
        return max(HOP_US[self.hop][algorithm][number] * MICRO + self.extra_hop_s, 0.0)


def nccl_ways(op: Op, size: Floats, group: Group) -> Iterator[Way]:
    """Every algorithm and protocol of NCCL for one operation. [C-22]

    Args:
        op: all-reduce, all-gather, reduce-scatter or broadcast.
        size: bytes of the whole array, shape (N,).
        group: where the ranks sit, and what lies between them.

    Source: NCCL 2.30 src/graph/tuning.cc (ncclTopoTuneModel, ncclTopoGetAlgoTime), for Intel hosts. Its limits per channel are left
    out, since nobody states channels.
    """
    # A tree sums on the way up and copies on the way down: operations that do one of the two alone take rings.
    for number in range(len(PROTOCOLS)):
        yield _ring(op, size, group, number)
        if op == "all_reduce":
            yield _tree(size, group, number)
    if op != "broadcast" and group.has_switch and group.generation in NVLS_EFFICIENCY:
        yield _nvls(op, size, group)
        if op == "all_reduce":
            yield _nvls_tree(size, group)
    if op == "all_reduce":
        yield _collnet(size, group)
    elif op in ("all_gather", "reduce_scatter"):
        yield _pat(size, group)


def _ll_limit(group: Group) -> Floats:
    """Bytes per second that LL moves at most: by the GPU inside a node, by the number of nodes between them."""
    two, more = LL_NODES_BYTES_PER_S
    between = np.where(group.nodes > 2, more, two)
    return np.where(group.is_across, between, LL_NODE_BYTES_PER_S.get(group.generation, 87.7 * GB))


def _ring(op: Op, size: Floats, group: Group, number: int) -> Way:
    simple = PROTOCOLS[number] == "Simple"
    both = 2.0 if op == "all_reduce" else 1.0
    # A node with one rank of the group sends and receives through the same GPU, and such hops wait like a tree's.
    alone = group.network_hop_s(HOP_US["network"]["tree"][number], times=2.0 if simple else 1.0)
    among = group.network_hop_s(HOP_US["network"]["ring"][number], times=2.0 if simple else 1.0)
    net_s = np.where(group.members <= 1, alone, among)
    inside_s = group.inside_hop_s("ring", number)
    posted_s = np.where(group.is_across, max(inside_s, POST_US * MICRO * (3.0 if simple else 1.0)), inside_s)
    hops = both * ((group.ranks - group.nodes) * posted_s + (group.nodes - 1.0) * net_s)
    latency_s = BASE_US["ring"][number] * MICRO + hops
    if simple and op == "all_reduce":
        latency_s = latency_s * np.where(group.is_across, RING_SIMPLE_ALL_REDUCE, 1.0)
    share = (0.5, TREE_SHARE, 1.0)[number]
    rate = group.bytes_per_s * share
    # LL polls flags through the processor's cache lines, which bounds it by the host and not by the link.
    if number == 0:
        rate = np.minimum(rate, _ll_limit(group))
    moved = bus_factor(op, np.asarray(group.ranks)) * size
    return Way("ring", PROTOCOLS[number], np.asarray(latency_s), moved / rate, np.asarray(group.ranks > 1))


def _tree(size: Floats, group: Group, number: int) -> Way:
    simple = PROTOCOLS[number] == "Simple"
    # Under Simple the receiver flushes what the network wrote to the GPU, which takes the network's delay once more.
    net_s = group.network_hop_s(HOP_US["network"]["tree"][number], times=2.0 if simple else 1.0)
    hops = 2.0 * ((group.members - 1.0) * group.inside_hop_s("tree", number) + group.steps_of_tree * net_s)
    rate = group.bytes_per_s * TREE_SHARE
    if number == 0:
        rate = np.minimum(rate * LL_OF_TREE, _ll_limit(group))
    elif number == 1:
        rate = rate * np.where(group.is_across, LL128_BETWEEN_NODES, LL128_IN_A_NODE)
    # Every byte goes up one of two trees and down again, so that the array passes a node's links twice.
    seconds = 2.0 * size / (rate * _tree_share(size, number))
    return Way("tree", PROTOCOLS[number], BASE_US["tree"][number] * MICRO + hops, seconds, np.asarray(group.ranks > 1))


def _tree_share(size: Floats, number: int) -> Floats:
    """Share of a tree's bandwidth at a size, shape (N,)."""
    table = np.array([*TREE_BY_SIZE[number], 1.0])
    # NCCL looks the power of two up that lies below the size, without interpolation; estimates jump there.
    position = np.floor(np.log2(np.maximum(size, 64.0) / 64.0))
    return table[np.minimum(position, len(table) - 1.0).astype(np.int64)]


def _nvls(op: Op, size: Floats, group: Group) -> Way:
    """Sums and copies in the switch of one node: a rank sends and receives (n + 1) / n of the array, where a ring moves
    2 (n - 1) / n.
    """
    # NCCL's own bandwidth for it, 2 e B (n / 2 (n - 1)), is 31 to 50 % above what H200s reach with 8 to 5 ranks (C-22).
    n, rate = group.ranks, group.inside_bytes_per_s * NVLS_EFFICIENCY[group.generation]
    moved = size * ((n + 1.0) / n if op == "all_reduce" else n / np.maximum(n - 1.0, 1.0))
    possible = ~group.is_across & (n > 1)
    latency_s = np.full(np.shape(size), NVLS_INSIDE_US * MICRO)
    return Way("nvls", "Simple", latency_s, np.asarray(moved / rate), np.asarray(possible))


def _nvls_tree(size: Floats, group: Group) -> Way:
    efficiency = NVLS_EFFICIENCY[group.generation]
    latency_s = NVLS_INSIDE_US * MICRO + 2.0 * group.steps_of_tree * group.network_hop_s(
        NVLS_TREE_NETWORK_US, times=2.0
    )
    # Between two nodes the tree is one exchange, in which each byte crosses once.
    wire = group.network_bytes_per_s * np.where(group.nodes > 2, 1.0, 2.0) * efficiency
    # Inside each node the switch sums for all of its ranks at once, up and down side by side; hence 2.
    rate = np.minimum(2.0 * efficiency * group.inside_bytes_per_s * group.members, wire)
    seconds = bus_factor("all_reduce", np.asarray(group.ranks)) * size / rate
    return Way("nvls-tree", "Simple", np.asarray(latency_s), seconds, group.is_across)


def _collnet(size: Floats, group: Group) -> Way:
    """Sums in the network's switches (SHARP): every node sends the array once and receives it once."""
    peers = group.members - 1.0
    # All ranks of a node hand their parts to one head each in a single hop; only their number adds a little.
    latency_s = MICRO * 2.0 * (np.minimum(peers, 1.0) * COLLNET_HOP_US + peers * COLLNET_ARITY_US)
    latency_s = latency_s + group.network_hop_s(COLLNET_NETWORK_US, times=2.0)
    rate = group.network_bytes_per_s * (0.85 if group.generation in NVLS_EFFICIENCY else 1.0)
    return Way("collnet", "Simple", np.asarray(latency_s), np.asarray(size / rate), group.is_across)


def _pat(size: Floats, group: Group) -> Way:
    """Parallel aggregated trees, for groups with one rank on each node."""
    # The 3.5 and the part that grows with the ranks are how NCCL fits its own measurements, not the algorithm.
    hop_s = group.network_hop_s(HOP_US["network"]["tree"][2], times=2.0) / PAT_HOP_DIVISOR
    latency_s = PAT_BASE_US * MICRO + group.steps_of_tree * hop_s + group.ranks * PAT_RANK_US * MICRO
    seconds = size / (group.network_bytes_per_s * PAT_SHARE)
    return Way("pat", "Simple", np.asarray(latency_s), np.asarray(seconds), group.is_across & (group.members <= 1))
