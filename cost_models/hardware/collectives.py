"""Seconds of collectives on placed groups: measured curves inside a fast domain, arithmetic of links beyond it.

Sizes are nccl-tests' totals: the whole array for all-gather, reduce-scatter and broadcast; one rank's buffer for all-reduce,
all-to-all and send/recv. Every curve is a row of one table of log2 seconds on a grid of powers of two, so that a batch takes
two gathers. Between nodes a call takes the fastest of NCCL's rings, trees and protocols.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cost_models.constants import NIC_EFFICIENCY, NOMINAL_LINK_EFFICIENCY, PEER_S, SEND_S
from cost_models.estimate import Estimate
from cost_models.hardware.algorithms import group_of, stated_ways
from cost_models.hardware.bus import bus_factor
from cost_models.hardware.link_tables import (
    CurveTable,
    extra_hop_s,
    grid_position,
)
from cost_models.hardware.nccl import Choice, Hop, network_choices
from cost_models.hardware.nccl_tuner import Group, Way
from cost_models.hardware.pcie import PCIE_SAME_SWITCH
from cost_models.hardware.placement import Placement
from cost_models.operations import Op
from cost_models.specs.cluster import Cluster
from cost_models.terms import Tier

Floats = NDArray[np.float64]
Codes = NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class NetworkCurves:
    """Measured over modelled seconds of one operation on groups that leave their island, for J measured groups."""

    islands_J: Floats
    per_island_J: Floats
    log2_ratio_JP: Floats
    covered_JP: NDArray[np.bool_]
    """Whether a grid size lies inside the measured range."""
    tier: Tier


@dataclass(frozen=True, eq=False)
class Links:
    """Everything that prices a collective on one cluster."""

    cluster: Cluster
    domain: Mapping[Op, CurveTable]
    """Tables of groups inside a fast domain."""
    node: Mapping[Op, CurveTable]
    """Tables of groups inside a node that span fast domains, one block of rows per reach (switch, socket, node).
    Empty where a domain fills its node."""
    strided: Mapping[Op, CurveTable] = field(default_factory=dict)
    """Tables of groups inside a fast domain whose members are not neighbours, where a calibration measured such
    groups."""
    node_rows: int = 0
    """Rows of one reach in `node`."""
    network: Mapping[Op, NetworkCurves] = field(default_factory=dict)
    """What a calibration measured between nodes of this cluster."""

    @property
    def gpu_network_bytes_per_s(self) -> float:
        """Achieved NIC bandwidth of one GPU's share of its node, one direction, all GPUs sending."""
        network = self.cluster.network
        wire = network.node_bytes_per_s / self.cluster.gpus_per_node
        return wire * NIC_EFFICIENCY[network.fabric].value

    @property
    def nic_achieved_bytes_per_s(self) -> float:
        """Achieved bandwidth of one NIC, one direction."""
        network = self.cluster.network
        return network.nic_wire_bytes_per_s * NIC_EFFICIENCY[network.fabric].value

    @property
    def leaf_ranks(self) -> float:
        """GPUs whose NICs hang on one leaf (or one leaf per rail); one island's where the network does not say."""
        cluster = self.cluster
        island = max(cluster.gpus_per_node, min(cluster.nvlink_domain_gpus, cluster.num_gpus))
        return float(max((cluster.network.nodes_per_leaf or 0) * cluster.gpus_per_node, island))


def collective_s(op: Op, size_bytes: Floats | float, *, placement: Placement, links: Links) -> Estimate:
    """Seconds of one call on each placed group, shape (N,), and their tier.

        inside a domain      curve(op, n, S)                                                                  [C-1]
        over islands         max(curve(op, k, S bus(n)/bus(k)), bus(n) S / (k gpu_nic)) + latency             [C-2]
        all-to-all           max(curve(k, S k/n), S (n-k)/n / gpu_nic) + latency                              [C-3]
        send/recv            S / min(nic, node_nic / senders) + latency                                       [C-4]
        through the spine    wire time x max(1, o share), share: of the traffic that leaves its leaf          [C-6]

    n ranks, of which k share an island (node or fast domain) and its NICs; gpu_nic is one GPU's share of them; o is the
    oversubscription.

    Args:
        op: the operation.
        size_bytes: total size, shape (N,) or a number.
        placement: the group, shape (N,).
        links: curves and cluster.
    """
    size, ranks = np.broadcast_arrays(np.asarray(size_bytes, dtype=np.float64), placement.ranks)
    seconds, tier = _inside_island(op, size, placement, links)
    if np.any(placement.islands > 1):
        seconds, tier = _across_islands(op, size, placement, links, seconds, tier)
        if op in links.network:
            seconds, tier = _as_measured(links.network[op], size, placement, seconds, tier)
    # A call of nothing, or by nobody else, is not made; its price is known exactly.
    costs = (ranks > 1) & (size > 0)
    return Estimate(np.where(costs, seconds, 0.0), np.where(costs, tier, np.int8(Tier.MEASURED)))


def _part(op: Op, size: Floats, members: Floats, ranks: Floats) -> Floats:
    """Bytes of the call among `members` of a larger group that moves what the larger call moves between them."""
    if op == "all_to_all":
        return size * (members / ranks)
    ratio = bus_factor(op, ranks) / np.maximum(bus_factor(op, members), 0.5)
    return size * np.where(members > 1, np.maximum(ratio, 0.0), 0.0)


def _inside_island(op: Op, size: Floats, placement: Placement, links: Links) -> tuple[Floats, Codes]:
    """Seconds of what moves without the network, and their tier."""
    seconds, tier = _inside_domain(op, size, placement, links)
    if links.node and np.any(placement.per_island > placement.per_domain):
        return _across_domains(op, size, placement, links, seconds, tier)
    return seconds, tier


def start_s(op: Op, placement: Placement, links: Links) -> Floats:
    """Seconds of a call inside an island that do not depend on its size."""
    start_s = links.domain[op].start_s(placement.per_domain)
    crosses = placement.per_island > placement.per_domain
    if not links.node or not np.any(crosses):
        return start_s
    row = _reach(placement) * links.node_rows + np.where(crosses, placement.per_island, 1.0)
    return np.maximum(start_s, links.node[op].start_s(row))


def _reach(placement: Placement) -> Floats:
    """How far a group reaches inside its node: 0 within one PCIe switch, 1 within one socket, 2 across sockets."""
    return np.where(placement.sockets > placement.islands, 2.0, (placement.switches > placement.islands) * 1.0)


def _inside_domain(op: Op, size: Floats, placement: Placement, links: Links) -> tuple[Floats, Codes]:
    """Seconds of what moves over the fast link, and their tier."""
    seconds, tier = _among(op, size, placement, links.domain[op])
    if op in links.strided and np.any(placement.stride > 1):
        apart_s, apart_tier = _among(op, size, placement, links.strided[op])
        apart = placement.stride > 1
        seconds, tier = np.where(apart, apart_s, seconds), np.where(apart, apart_tier, tier)
    return seconds, tier


def _among(op: Op, size: Floats, placement: Placement, table: CurveTable) -> tuple[Floats, Codes]:
    """Seconds of what moves over the fast link by one table, and their tier."""
    if op == "send_recv":
        return table.seconds(np.where(placement.domains > 1, 1.0, 2.0), size)
    if np.all(placement.domains == 1):
        return table.seconds(placement.ranks, size)
    part = _part(op, size, placement.per_domain, placement.ranks)
    return table.seconds(placement.per_domain, part)


def _across_domains(
    op: Op, size: Floats, placement: Placement, links: Links, inner_s: Floats, inner_tier: Codes
) -> tuple[Floats, Codes]:
    """Seconds inside a node, with what moves over PCIe between its fast domains: the slower of the two paths."""
    crosses = placement.per_island > placement.per_domain
    members = np.where(crosses, placement.per_island, 1.0)
    reach = _reach(placement)
    if op == "send_recv":
        members, part = np.where(crosses & (placement.islands == 1), 2.0, 1.0), size
    else:
        part = _part(op, size, members, placement.ranks)
    outer_s, outer_tier = links.node[op].seconds(reach * links.node_rows + members, part)
    # A ring passes bridges and PCIe in one cycle; its chunks are in flight on both at the same time, so the slower
    # path sets the rate and the times do not add.
    return np.maximum(inner_s, outer_s), np.where(crosses, np.maximum(inner_tier, outer_tier), inner_tier)


def _across_islands(
    op: Op, size: Floats, placement: Placement, links: Links, inner_s: Floats, inner_tier: Codes
) -> tuple[Floats, Codes]:
    """Seconds with what crosses the network between islands, latency included, and their tier."""
    ranks, members, islands = placement.ranks, placement.per_island, placement.islands
    crosses = islands > 1
    if op == "all_to_all":
        wire_s = size * (1.0 - members / ranks) / links.gpu_network_bytes_per_s
    elif op == "send_recv":
        node_bytes_per_s = links.gpu_network_bytes_per_s * links.cluster.gpus_per_node
        # Ranks send to the rank one stride further, so the last `stride` ranks of a node cross its boundary at the
        # same time.
        senders = np.clip(placement.stride, 1.0, links.cluster.gpus_per_node)
        wire_s = size / np.minimum(links.nic_achieved_bytes_per_s, node_bytes_per_s / senders)
    else:
        wire_s = bus_factor(op, ranks) * size / (links.gpu_network_bytes_per_s * members)
    crossing_s: Floats = np.multiply(wire_s, _spine(op, placement, links))
    if op in {"all_to_all", "send_recv"}:
        peers = ranks - members if op == "all_to_all" else 0.0
        wait_s = SEND_S.value + links.cluster.network.latency_s + PEER_S.value * peers
        # All-to-all and sends are direct messages, which start independently of each other; only their fixed costs
        # add.
        total_s = np.maximum(inner_s, crossing_s) + wait_s
    else:
        total_s = _fastest_s(op, size, placement, links, inner_s=inner_s, wire_s=crossing_s)
    return np.where(crosses, total_s, inner_s), np.where(crosses, np.int8(Tier.NOMINAL), inner_tier)


def _fastest_s(op: Op, size: Floats, placement: Placement, links: Links, *, inner_s: Floats, wire_s: Floats) -> Floats:
    """Seconds of a ring or tree over islands, with the algorithm and protocol that are fastest for each call. [C-5]

    A protocol's bandwidth bounds what crosses the network. The hops inside a node are part of its latency, so of the time measured
    there only the part that grows with the size counts beside it.
    """
    if links.cluster.collectives is not None:
        ways = ways_over_islands(op, size, placement, links, inner_s=inner_s)
        each_s = [np.where(way.possible, way.bandwidth_s + way.latency_s, np.inf) for way in ways]
        return np.asarray(np.min(each_s, axis=0))
    inner_s = np.maximum(inner_s - start_s(op, placement, links), 0.0)
    moved = bus_factor(op, placement.ranks) * size
    fastest = np.full(size.shape, np.inf)
    for choice in _choices(op, placement, links):
        own_s = np.maximum(wire_s / choice.bandwidth_share, moved / choice.most_bytes_per_s)
        fastest = np.minimum(fastest, np.maximum(inner_s, own_s) + choice.latency_s)
    return fastest


def ways_over_islands(
    op: Op, size: Floats, placement: Placement, links: Links, *, inner_s: Floats | None = None
) -> list[Way]:
    """What a group that leaves its island may take, with the seconds inside its islands and on the spine in them. [C-5] [C-23]

    Arguments as of `collective_s`, for an operation of `algorithms.ROUTED`; `inner_s` are the seconds inside the islands, where the
    caller has them.
    """
    if inner_s is None:
        inner_s, _ = _inside_island(op, size, placement, links)
    inner_s = np.maximum(inner_s - start_s(op, placement, links), 0.0)
    share = links.gpu_network_bytes_per_s
    if links.cluster.collectives is not None:
        ways = stated_ways(links.cluster, op, size, group_on(placement, links), gpu_network_bytes_per_s=share)
    else:
        moved = bus_factor(op, placement.ranks) * size
        ways = [
            _as_way(choice, moved / (share * placement.per_island), moved) for choice in _choices(op, placement, links)
        ]
    spine = _spine(op, placement, links)
    return [
        # What a way moves in the node runs beside what it moves between nodes, unless its own formula has both.
        replace(way, bandwidth_s=wire_s if way.covers_node else np.maximum(inner_s, wire_s))
        for way, wire_s in ((way, np.multiply(way.bandwidth_s, spine)) for way in ways)
    ]


def _as_way(choice: Choice, wire_s: Floats, moved: Floats) -> Way:
    bandwidth_s = np.maximum(wire_s / choice.bandwidth_share, moved / choice.most_bytes_per_s)
    return Way(choice.algorithm, choice.protocol, choice.latency_s, bandwidth_s, np.asarray(moved > 0))


def _choices(op: Op, placement: Placement, links: Links) -> Iterator[Choice]:
    cluster = links.cluster
    hop: Hop = "pcie" if cluster.link_kind == "pcie" else "nvlink"
    return network_choices(
        op, members=placement.per_island, nodes=placement.islands, ranks=placement.ranks, hop=hop,
        extra_hop_s=extra_hop_s(cluster), network_s=cluster.network.latency_s,
    )  # fmt: skip


def group_on(placement: Placement, links: Links) -> Group:
    cluster = links.cluster
    on_pcie = cluster.link_kind == "pcie"
    link = (
        cluster.pcie_bytes_per_s * PCIE_SAME_SWITCH.value
        if on_pcie
        else cluster.intra_bytes_per_s * NOMINAL_LINK_EFFICIENCY.value
    )
    return group_of(
        cluster, ranks=placement.ranks, members=placement.per_island, nodes=placement.islands,
        hop="pcie" if on_pcie else "nvlink", bytes_per_s=link,
        network_bytes_per_s=links.gpu_network_bytes_per_s * placement.per_island,
    )  # fmt: skip


def _spine(op: Op, placement: Placement, links: Links) -> Floats | float:
    """Factor by which the wire time grows where part of the traffic leaves its leaf over an oversubscribed uplink. [C-6]

    rings, trees     max(1, o leaves / islands)              one of a ring's edges in each leaf leaves it
    all-to-all       max(1, o (n - n/leaves) / (n - k))      what goes to ranks of other leaves
    send/recv        max(1, o min(1, stride / leaf ranks))   the ranks at the end of a leaf
    """
    over = links.cluster.network.oversubscription
    if over <= 1:
        return 1.0
    leaves = placement.leaves
    if op == "all_to_all":
        away = placement.ranks - placement.ranks / leaves
        share = away / np.maximum(placement.ranks - placement.per_island, 1.0)
    elif op == "send_recv":
        share = np.minimum(placement.stride / links.leaf_ranks, 1.0)
    else:
        share = leaves / placement.islands
    return np.where(leaves > 1, np.maximum(over * share, 1.0), 1.0)


def _as_measured(
    curves: NetworkCurves, size: Floats, placement: Placement, modelled_s: Floats, modelled_tier: Codes
) -> tuple[Floats, Codes]:
    """Seconds by formula times the ratio seen at the nearest measured group; exact where that very group was measured."""
    islands, members = np.log2(placement.islands), np.log2(placement.per_island)
    away = np.abs(islands - np.log2(curves.islands_J)[:, None])
    away = away + np.abs(members - np.log2(curves.per_island_J)[:, None])
    # Distance in log space: a group of twice as many ranks is as near as one of half as many.
    nearest = np.argmin(away, axis=0)
    cell, fraction, _ = grid_position(size)
    low, high = curves.log2_ratio_JP[nearest, cell], curves.log2_ratio_JP[nearest, cell + 1]
    ratio = np.exp2(low + fraction * (high - low))
    same = (away.min(axis=0) == 0) & curves.covered_JP[nearest, cell + (fraction > 0.5)]
    tier = np.where(same, np.int8(curves.tier), np.int8(Tier.EXTRAPOLATED))
    crosses = placement.islands > 1
    return np.where(crosses, modelled_s * ratio, modelled_s), np.where(crosses, tier, modelled_tier)
