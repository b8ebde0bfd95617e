"""Which library has which algorithm, and what each of them takes on the groups of a cluster.                      [C-23]

`OFFERED` is what one may force, `TAKEN` what a library takes by itself, of which a call gets the fastest. An algorithm that a group
cannot have, such as NVLS between nodes, leaves that group to the library's choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from cost_models.constants import INTRA_LATENCY_S, NETWORK_LATENCY_S, NIC_EFFICIENCY
from cost_models.hardware.nccl import Hop
from cost_models.hardware.nccl_tuner import NVLS_EFFICIENCY, Floats, Group, Way, nccl_ways
from cost_models.hardware.textbook import Cost, Link, best_chunks, chain, halving_doubling, hierarchical, ring, torus_2d
from cost_models.operations import Op
from cost_models.specs.cluster import Cluster
from cost_models.specs.collectives import Algorithm, Collectives, Library

Table = Mapping[Op, tuple[Algorithm, ...]]
ROUTED: tuple[Op, ...] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
"""Operations that have algorithms; all others are messages straight from rank to rank."""
_NCCL: Table = {
    "all_reduce": ("ring", "tree", "nvls", "nvls-tree", "collnet"),
    "all_gather": ("ring", "nvls", "pat"),
    "reduce_scatter": ("ring", "nvls", "pat"),
    "broadcast": ("ring",),
}
_PROGRAMS: Table = {
    "all_reduce": ("ring", "halving-doubling", "hierarchical", "torus-2d"), "all_gather": ("ring",), "reduce_scatter": ("ring",),
    "broadcast": ("chain",),
}  # fmt: skip
_RINGS: Table = {
    "all_reduce": ("ring", "tree"),
    "all_gather": ("ring",),
    "reduce_scatter": ("ring",),
    "broadcast": ("ring",),
}
_GLOO: Table = {
    "all_reduce": ("ring", "halving-doubling"), "all_gather": ("ring",), "reduce_scatter": ("ring",), "broadcast": ("chain",),
}  # fmt: skip
OFFERED: Mapping[Library, Table] = {
    "nccl": _NCCL,
    "rccl": {**_RINGS, "all_reduce": ("ring", "tree", "halving-doubling", "hierarchical", "torus-2d")},
    "msccl": _PROGRAMS,
    "gloo": _GLOO,
}
"""Algorithms of each library. Sources: NCCL 2.30 src/graph/tuning.cc; the programs of msccl-tools (mscclang), which MSCCL runs and RCCL
through it; gloo docs/algorithms.md."""
# CollNet is off in NCCL unless NCCL_COLLNET_ENABLE is 1, and RCCL runs MSCCL's programs only where one hands them over.
TAKEN: Mapping[Library, Table] = {
    "nccl": {op: tuple(name for name in names if name != "collnet") for op, names in _NCCL.items()},
    "rccl": _RINGS,
    "msccl": _PROGRAMS,
    "gloo": _GLOO,
}
"""Algorithms that each library takes by itself."""
_NCCL_KIND = ("nccl", "rccl")


def is_measured_by(cluster: Cluster, op: Op) -> bool:
    """Whether curves that a calibration measured, which run NCCL or RCCL, say something of the cluster's library."""
    stated = cluster.collectives
    return stated is None or stated.library in _NCCL_KIND or op not in ROUTED


def library_of(cluster: Cluster) -> Library:
    """The library that is stated, or else the one of the GPU's vendor."""
    if cluster.collectives is not None:
        return cluster.collectives.library
    return "rccl" if cluster.gpu.generation.startswith("cdna") else "nccl"


def stated_ways(cluster: Cluster, op: Op, size: Floats, group: Group, *, gpu_network_bytes_per_s: float) -> list[Way]:
    """What the stated library may take for each call: the forced algorithm and protocol, where a group can have them.

    Args:
        cluster: with `collectives`.
        op: one of `ROUTED`.
        size: bytes of the whole array, shape (N,).
        group: where the ranks sit.
        gpu_network_bytes_per_s: what one GPU's share of its node's NICs carries, all GPUs sending.
    """
    stated = cluster.collectives
    assert stated is not None
    ways = list(all_ways(cluster, op, size, group, gpu_network_bytes_per_s=gpu_network_bytes_per_s))
    return _allowed(ways, stated, op)


def _allowed(ways: list[Way], stated: Collectives, op: Op) -> list[Way]:
    forced = stated.algorithm(op)
    taken = [way for way in ways if way.algorithm in TAKEN[stated.library][op]]
    # NCCL_PROTO bounds what each algorithm may speak; where none of them speaks it, NCCL would refuse to start.
    if stated.protocol is not None:
        spoken = [way for way in taken if way.protocol == stated.protocol]
        taken = spoken or taken
    if forced is None:
        return taken
    chosen = [way for way in ways if way.algorithm == forced and stated.protocol in (None, way.protocol)]
    if not chosen:
        return taken
    # Where the group cannot have the forced algorithm, the library is left to choose.
    can = np.any([np.broadcast_to(way.possible, np.shape(way.bandwidth_s)) for way in chosen], axis=0)
    return [*chosen, *(_where(way, ~can) for way in taken if way.algorithm != forced)]


def _where(way: Way, places: NDArray[np.bool_]) -> Way:
    return Way(way.algorithm, way.protocol, way.latency_s, way.bandwidth_s, way.possible & places, way.covers_node)


def all_ways(cluster: Cluster, op: Op, size: Floats, group: Group, *, gpu_network_bytes_per_s: float) -> Iterator[Way]:
    """Every algorithm and protocol that the cluster's library offers for an operation. Arguments as of `stated_ways`. [C-23]"""
    library = library_of(cluster)
    names = OFFERED[library][op]
    if library in _NCCL_KIND:
        for way in nccl_ways(op, size, group):
            if way.algorithm in names and not (way.algorithm == "collnet" and cluster.network.fabric != "infiniband"):
                yield way
    near, edge, share = _links(cluster, group, gpu_network_bytes_per_s)
    if library == "gloo":
        yield from _gloo_ways(cluster, op, size, group)
        return
    for name in names:
        cost = _program(name, op, size, group, near=near, edge=edge, share=share)
        # NCCL's own ring, with its protocols, is what NCCL and RCCL run under that name.
        if cost is not None and not (library in _NCCL_KIND and name == "ring"):
            possible = np.asarray(group.ranks > 1)
            if name == "torus-2d":
                possible = possible & group.is_across & (group.members > 1) & (cluster.network.nics_per_node >= 2)
            if name == "hierarchical":
                possible = possible & group.is_across
            yield Way(name, None, cost.latency_s, cost.bandwidth_s, possible, covers_node=name not in ("ring", "chain"))


def _links(cluster: Cluster, group: Group, share: float) -> tuple[Link, Link, Link]:
    """Links inside a node, of the edges between nodes of one ring, and of one GPU's share of the NICs."""
    network, achieved = cluster.network, NIC_EFFICIENCY[cluster.network.fabric].value
    near = Link(cluster.intra_latency_s, group.inside_bytes_per_s)
    # One ring crosses from node to node over a single NIC; the sibling groups of a node leave it no more than its members' shares.
    one_nic = np.minimum(network.nic_wire_bytes_per_s * achieved, share * group.members)
    return near, Link(network.latency_s, one_nic), Link(network.latency_s, share)


def _program(
    name: Algorithm, op: Op, size: Floats, group: Group, *, near: Link, edge: Link, share: Link
) -> Cost | None:
    """Seconds of one of the textbook's algorithms; None where it is not one, or does not run the operation."""
    nodes, members = np.asarray(group.nodes), np.asarray(group.members)
    # Every round of a ring or chain has one message on the edge between two nodes, which all others wait for.
    slowest = _slower(near, edge, group)
    if name == "ring":
        return ring(size, np.asarray(group.ranks), slowest, rounds_of=2.0 if op == "all_reduce" else 1.0)
    if name == "chain":
        ranks = np.asarray(group.ranks)
        return chain(size, ranks, slowest, chunks=best_chunks(size, ranks, slowest))
    if op != "all_reduce":
        return None
    # Each rank sends over its own share of the NICs here, while a hierarchical call leaves them to the node's leader.
    if name == "halving-doubling":
        return halving_doubling(size, members=members, nodes=nodes, near=near, far=share)
    if name == "hierarchical":
        return hierarchical(size, members=members, nodes=nodes, near=near, far=edge)
    return torus_2d(size, members=members, nodes=nodes, near=near, far=share) if name == "torus-2d" else None


def _slower(near: Link, far: Link, group: Group) -> Link:
    """The level that every round waits for: that between nodes, where the group leaves its node."""
    across = group.is_across
    return Link(
        np.where(across, np.maximum(near.latency_s, far.latency_s), near.latency_s),
        np.where(across, np.minimum(near.bytes_per_s, far.bytes_per_s), near.bytes_per_s),
    )


def _gloo_ways(cluster: Cluster, op: Op, size: Floats, group: Group) -> Iterator[Way]:
    """Gloo's algorithms between processes, which talk over TCP, with the copies from and to the GPU."""
    network = cluster.network
    wire = min(network.nic_wire_bytes_per_s, _wire_of_gpu(cluster)) * NIC_EFFICIENCY["tcp"].value
    host = cluster.host_link_bytes_per_s or cluster.gpu.pcie_bytes_per_s
    latency_s = max(NETWORK_LATENCY_S["tcp"], network.latency_s)
    # Inside a node too, messages go through the host's network stack; its memory is faster than the link to the GPU.
    near, far = Link(latency_s, host), Link(latency_s, wire)
    copies_s = 2.0 * size / host
    for name in OFFERED["gloo"][op]:
        cost = _program(name, op, size, group, near=near, edge=far, share=far)
        assert cost is not None
        yield Way(
            name, None, cost.latency_s, cost.bandwidth_s + copies_s, np.asarray(group.ranks > 1), covers_node=True
        )


def obstacle(cluster: Cluster, algorithm: Algorithm) -> str | None:
    """Why no group of the cluster can have an algorithm of its library, as the end of a sentence; None where one can."""
    switched = cluster.link_kind == "nvswitch"
    if algorithm in ("nvls", "nvls-tree") and not (switched and cluster.gpu.generation in NVLS_EFFICIENCY):
        return "needs GPUs of Hopper or later behind an NVSwitch, which sums for them"
    if algorithm == "nvls-tree" and cluster.num_nodes < 2:
        return "runs between nodes, and the cluster has one"
    if algorithm == "collnet" and (cluster.network.fabric != "infiniband" or cluster.num_nodes < 2):
        return "needs InfiniBand switches between nodes that sum (SHARP)"
    if algorithm == "torus-2d" and (cluster.num_nodes < 2 or cluster.network.nics_per_node < 2):
        return "needs several nodes with two NICs or more in each"
    # On one node either would be another algorithm: a tree without its ring, a tree without its network.
    if algorithm in ("hierarchical", "pat") and cluster.num_nodes < 2:
        return "runs between nodes, and the cluster has one"
    return None


def inside_seconds(
    cluster: Cluster, op: Op, ranks: Floats, size: Floats, *, hop: Hop, bytes_per_s: Floats
) -> tuple[Floats, Floats]:
    """Seconds of the stated library's fastest way inside a node, and of a call that moves nothing, both of shape (R, P).

    Args:
        cluster: with `collectives`.
        op: one of `ROUTED`.
        ranks: ranks of the group, shape (R, 1).
        size: bytes of the whole array, shape (P,).
        hop: what lies between neighbours.
        bytes_per_s: what one rank's link carries, shape (R, 1).
    """
    # Nobody asks for groups of one rank; two keep the arithmetic defined.
    group = group_of(cluster, ranks=np.maximum(ranks, 2.0), nodes=np.ones_like(ranks), hop=hop, bytes_per_s=bytes_per_s)
    sizes = np.broadcast_to(size, (len(ranks), len(size)))
    ways = stated_ways(cluster, op, sizes, group, gpu_network_bytes_per_s=_wire_of_gpu(cluster))
    seconds = [np.where(way.possible, way.latency_s + way.bandwidth_s, np.inf) for way in ways]
    starts = [np.where(way.possible, np.broadcast_to(way.latency_s, sizes.shape), np.inf) for way in ways]
    return np.min(seconds, axis=0), np.min(starts, axis=0)


def group_of(
    cluster: Cluster, *, ranks: Floats, nodes: Floats, hop: Hop, bytes_per_s: Floats | float, members: Floats | None = None,
    network_bytes_per_s: Floats | float | None = None,
) -> Group:  # fmt: skip
    """Groups of a cluster as its library sees them, shape (N,); without `members` they lie on one node."""
    wire = cluster.network.node_bytes_per_s if network_bytes_per_s is None else network_bytes_per_s
    return Group(
        ranks=ranks,
        members=ranks if members is None else members,
        nodes=nodes,
        hop=hop,
        generation=cluster.gpu.generation,
        inside_bytes_per_s=bytes_per_s,
        network_bytes_per_s=wire,
        extra_hop_s=cluster.intra_latency_s - INTRA_LATENCY_S[cluster.link_kind],
        network_s=cluster.network.latency_s,
        has_switch=cluster.link_kind == "nvswitch" and hop == "nvlink",
    )


def _wire_of_gpu(cluster: Cluster) -> float:
    return cluster.network.node_bytes_per_s / cluster.gpus_per_node
