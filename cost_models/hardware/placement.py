"""Where the members of a communication group sit: the domains, nodes, PCIe switches, sockets and network leaves it spans.

Ranks are numbered node by node, so a group is a size and a stride; which groups a strategy has is in `groups`. Nothing here
assumes powers of two: where groups straddle boundaries differently, the worst one counts, because everybody waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd

import numpy as np
from numpy.typing import NDArray

from cost_models.specs.cluster import Cluster

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Placement:
    """One group of every strategy, shape (N,) each."""

    ranks: Floats
    per_domain: Floats
    """Members inside one fast domain (NVLink, NVSwitch, an island of xGMI); the fewest where domains differ."""
    domains: Floats
    """Fast domains that the group spans, the most where groups differ; 1 means that it never leaves one."""
    stride: Floats
    per_island: Floats
    """Members inside one island: the node, or the fast domain where that is larger. They share the island's NICs."""
    islands: Floats
    """Islands that the group spans; 1 means that it needs no network."""
    switches: Floats
    """PCIe switches that the group spans, the most where groups differ; `islands` where no group crosses PCIe."""
    sockets: Floats
    """Sockets that the group spans, the most where groups differ; `islands` where no group crosses PCIe."""
    leaves: Floats
    """Network leaves that the group spans, the most where groups differ; 1 where it never needs the spine."""

    def take(self, index: NDArray[np.int64]) -> Placement:
        """The placements at these positions."""
        return Placement(*(getattr(self, name)[index] for name in Placement.__slots__))

    def over_network(self) -> Placement:
        """The same group where its neighbours are sure to sit on different nodes."""
        return replace(
            self,
            domains=np.maximum(self.domains, 2.0),
            islands=np.maximum(self.islands, 2.0),
            switches=np.maximum(self.switches, 2.0),
            sockets=np.maximum(self.sockets, 2.0),
        )

    def inside_islands(self) -> Placement:
        """The members that share an island, as a group of their own: for what still moves once it has arrived there."""
        one = np.ones_like(self.ranks)
        return replace(
            self,
            ranks=self.per_island,
            domains=self.per_island / self.per_domain,
            islands=one,
            switches=self.switches / self.islands,
            sockets=self.sockets / self.islands,
            leaves=one,
        )

    def one_per_island(self) -> Placement:
        """One member of every island, with `siblings` such groups on each: for what crosses the network once per island."""
        one = np.ones_like(self.ranks)
        return replace(
            self,
            ranks=self.islands,
            per_domain=one,
            domains=self.islands,
            per_island=one,
            switches=self.islands,
            sockets=self.islands,
        )


def placed_together(placements: Sequence[Placement]) -> Placement:
    """Placements of several batches as one, in their order."""
    if len(placements) == 1:
        return placements[0]
    return Placement(*(np.concatenate([getattr(p, name) for p in placements]) for name in Placement.__slots__))


def place(
    size: Floats | float,
    *,
    stride: Floats | float,
    cluster: Cluster,
    world: Floats | float | None = None,
    domain: Floats | float | None = None,
) -> Placement:
    """Placement of the groups {offset + i*stride, 0 <= i < size} on nodes that are filled in rank order.

    Args:
        size: members of a group, shape (N,).
        stride: distance in ranks between neighbours, shape (N,).
        cluster: nodes and fast domains.
        world: ranks in use, shape (N,); all of the cluster by default. Groups beyond it do not exist.
        domain: consecutive ranks that share a fast domain, shape (N,); the cluster's by default.
    """
    ranks, step, used = np.broadcast_arrays(
        np.atleast_1d(np.asarray(size, dtype=np.float64)),
        np.atleast_1d(np.asarray(stride, dtype=np.float64)),
        np.asarray(float(cluster.num_gpus) if world is None else world, dtype=np.float64),
    )
    whole = max(1, min(cluster.nvlink_domain_gpus, cluster.num_gpus))
    blocks = np.broadcast_to(np.asarray(float(whole) if domain is None else domain), ranks.shape)
    different = np.unique(blocks)
    # Without segments that differ between strategies, one pass over the whole batch does.
    if len(different) <= 1:
        return _on_blocks(ranks, step, used, cluster, domain=int(different[0]) if len(different) else whole)
    columns = {name: np.empty(ranks.shape) for name in Placement.__slots__}
    for block in different:
        rows = np.flatnonzero(blocks == block)
        part = _on_blocks(ranks[rows], step[rows], used[rows], cluster, domain=int(block))
        for name, column in columns.items():
            column[rows] = getattr(part, name)
    return Placement(**columns)


def _on_blocks(ranks: Floats, step: Floats, used: Floats, cluster: Cluster, *, domain: int) -> Placement:
    """Placement of groups on fast domains of `domain` consecutive ranks."""
    island = island_gpus(cluster, domain)
    per_domain, domains = _spread(ranks, step, used, domain)
    per_island, islands = (per_domain, domains) if island == domain else _spread(ranks, step, used, island)
    switches = sockets = islands
    if domain < island:
        switches, sockets = (
            _parts(ranks, step, used, block, island, per_island, islands)
            for block in (cluster.pcie_gpus_per_switch, cluster.pcie_gpus_per_socket)
        )
    return Placement(
        ranks=ranks,
        per_domain=per_domain,
        domains=domains,
        stride=step,
        per_island=per_island,
        islands=islands,
        switches=switches,
        sockets=sockets,
        leaves=_leaves(ranks, step, used, cluster, per_island, islands),
    )


def _parts(
    size: Floats, stride: Floats, world: Floats, block: int, island: int, per_island: Floats, islands: Floats
) -> Floats:
    """Parts of `block` GPUs of a node that a group spans.

    Where such parts do not fill a node they are counted from whole nodes, as each node then starts a part of its own.
    """
    if island % block:
        return np.asarray(islands * np.ceil(per_island / block))
    return _spread(size, stride, world, block)[1]


def _leaves(
    size: Floats, stride: Floats, world: Floats, cluster: Cluster, per_island: Floats, islands: Floats
) -> Floats:
    """Network leaves that a group spans.

    A rail joins the GPUs of the same place in their nodes, and keeps all other groups apart.
    """
    leaf = leaf_gpus(cluster)
    if leaf is None:
        return islands  # no spine slower than its leaves, or none is told
    spanned = _spread(size, stride, world, leaf)[1]
    if not cluster.network.rail_optimized:
        return spanned
    # One rank a node at the same place of every node stays on its rail, whatever the number of nodes.
    off_rail = (per_island == 1) & (np.fmod(stride, cluster.gpus_per_node) != 0)
    return np.where(off_rail, islands, spanned)


def leaf_gpus(cluster: Cluster) -> int | None:
    """GPUs whose NICs hang on one leaf (one of each rail); None where leaving it costs nothing."""
    network = cluster.network
    if network.oversubscription <= 1 or network.nodes_per_leaf is None:
        return None
    return max(network.nodes_per_leaf * cluster.gpus_per_node, island_gpus(cluster, cluster.nvlink_domain_gpus))


def island_gpus(cluster: Cluster, domain: int) -> int:
    """GPUs that need no network between them: the node's, or the fast domain's where that is larger."""
    return min(max(domain, cluster.gpus_per_node), cluster.num_gpus)


def sits_alike(size: Floats, stride: Floats, block: int) -> NDArray[np.bool_]:
    """Whether every group sits alike on its blocks, shape of `size`: a set of groups repeats every size * stride ranks."""
    extent, divides = size * stride, _divides(block)
    regular = (stride >= block) | (size == 1) | divides[np.minimum(extent, block + 1.0).astype(np.int64)]
    blocks = extent / block
    return np.asarray(
        regular | ((blocks == np.floor(blocks)) & divides[np.minimum(stride, block + 1.0).astype(np.int64)])
    )


@lru_cache(maxsize=64)
def _divides(block: int) -> NDArray[np.bool_]:
    """Whether each number up to the block divides it; the entry after the last stands for all larger numbers."""
    return np.array([number > 0 and block % number == 0 for number in range(block + 2)])


def _spread(size: Floats, stride: Floats, world: Floats, block: int) -> tuple[Floats, Floats]:
    """Fewest members in one block of `block` consecutive ranks, and most blocks spanned, over all groups."""
    inside = np.clip(np.floor(block / stride), 1.0, size)
    spanned = np.ceil(size / inside)
    extent = size * stride
    # Regular groups follow from a division. Only the few that straddle blocks are walked through, once per distinct
    # case.
    odd = np.flatnonzero(~sits_alike(size, stride, block))
    if len(odd):
        sets = np.maximum(np.floor(world[odd] / extent[odd]), 1.0)
        keys = np.stack([size[odd], stride[odd], np.minimum(sets, block)], axis=1).astype(np.int64)
        distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        worst = np.array([_straddling(int(n), int(s), int(g), block) for n, s, g in distinct], dtype=np.float64)
        inside[odd], spanned[odd] = worst[inverse.reshape(-1)].T
    return inside, spanned


@lru_cache(maxsize=65536)
def _straddling(size: int, stride: int, sets: int, block: int) -> tuple[int, int]:
    """Fewest members in a block and most blocks spanned, over every offset that `sets` repetitions of the groups take.

    The stride must be shorter than the block.
    """
    extent = size * stride
    # After so many repetitions the groups start at the same offset of a block again.
    repeats = min(block // gcd(extent, block), sets)
    starts = (np.arange(repeats)[:, None] * extent + np.arange(stride)) % block
    offset = np.unique(starts)
    spanned = (offset + (size - 1) * stride) // block + 1
    # No step is longer than a block, so no block is skipped. Member counts of blocks repeat with a period of stride /
    # gcd.
    edges = np.arange(min(int(spanned.max()), stride // gcd(stride, block) + 1) + 1)
    before = np.clip(-((offset[:, None] - edges * block) // stride), 0, size)  # members below each edge
    counts = np.diff(before, axis=1)
    last = size - np.clip(-((offset - (spanned - 1) * block) // stride), 0, size)
    fewest = min(int(counts[counts > 0].min()), int(last.min()))
    return fewest, int(spanned.max())
