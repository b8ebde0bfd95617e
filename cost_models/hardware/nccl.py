"""NCCL's own published estimate of a collective's latency, by algorithm and protocol: the nominal tier of small calls. [C-5]

NCCL chooses an algorithm and a protocol for every call by these numbers. LL and LL128 cost less per hop and carry less of the
link's bandwidth than Simple; a call takes the fastest. All-reduce has rings and trees, everything else only rings. Left out
are NVLS and CollNet over nodes, which need switches set up for them, PAT, and the larger hop that NCCL counts since 2.23 for
one rank per node (64 nodes: 211 us against 266 us of the ring here).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cost_models.specs.collectives import Protocol
from cost_models.units import GB, MICRO

Floats = NDArray[np.float64]
Algorithm = Literal["tree", "ring"]
Hop = Literal["nvlink", "pcie", "network"]

PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
BASE_US: dict[Algorithm, tuple[float, float, float]] = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4)}
"""Microseconds of a call, by protocol. Source: NCCL 2.28 src/graph/tuning.cc, baseLat."""
HOP_US: dict[Hop, dict[Algorithm, tuple[float, float, float]]] = {
    "nvlink": {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4)},
    "pcie": {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7)},
    "network": {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0)},
}
"""Microseconds of one hop, by protocol. Source: the same file, hwLat."""
NETWORK_HOP_S = HOP_US["network"]["ring"][0] * MICRO
"""Seconds of one network hop with the fastest protocol on InfiniBand. What a slower network takes longer is added
to every hop."""
POST_US = 1.0
"""Microseconds to post one step of a ring that leaves the node; three times as much under Simple. Source: the same
file, getNetOverhead: 1 on Intel processors, 2 on AMD's."""
RING_SIMPLE_ALL_REDUCE = 1.4
"""Factor that NCCL applies to the latency of a ring all-reduce over nodes under Simple ("plateau effect of ring")."""
BANDWIDTH_SHARE: dict[Algorithm, tuple[float, float, float]] = {"ring": (0.5, 0.92, 1.0), "tree": (1 / 3.8, 0.92, 1.0)}
"""Share of the network's bandwidth, by protocol. A tree's own 0.92 is left out: it is in the bandwidth that
all-reduces were measured to reach."""
INSIDE_SHARE: dict[Algorithm, tuple[float, float, float]] = {
    "ring": (0.5, 0.92, 1.0), "tree": (0.92 / 3.8, 0.92 * 7 / 9, 0.92),
}  # fmt: skip
"""Share of a link's bandwidth inside a node, as rings reach it. Source: the same file, ncclTopoTuneModel at one
node."""
LL_NODES_BYTES_PER_S = (39.0 * GB, 20.4 * GB)
"""Bytes per second and node that LL moves at most, between two nodes and between more. Source: the same file,
llMaxBws, Intel processors."""
LL_NODE_BYTES_PER_S = {"volta": 39.0 * GB, "ampere": 87.7 * GB, "hopper": 141.0 * GB, "blackwell": 282.0 * GB}
"""Bytes per second that LL moves at most inside a node, by GPU generation; 87.7e9 for others. Source: the same
table."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One algorithm and protocol for a batch of calls."""

    algorithm: Algorithm
    protocol: Protocol
    latency_s: Floats
    bandwidth_share: float
    """Share of the link's bandwidth that the protocol carries."""
    most_bytes_per_s: Floats | float
    """Bus bandwidth of the whole node that the protocol never exceeds; infinite where it has no such limit."""


def inside_choices(op: str, ranks: Floats, *, hop: Hop, extra_hop_s: float, generation: str) -> Iterator[Choice]:
    """Every algorithm and protocol of one operation inside a node. [C-1]

    NCCL builds trees for all-reduce only; every other operation has the ring alone.

    Args:
        op: the operation: an all-reduce, all-gather, reduce-scatter or broadcast.
        ranks: ranks of the call.
        hop: what lies between neighbours.
        extra_hop_s: seconds per hop that a stated link takes beyond NCCL's table.
        generation: generation of the GPU, which bounds what LL moves.
    """
    cap = LL_NODE_BYTES_PER_S.get(generation, 87.7 * GB)
    ways: tuple[Algorithm, ...] = ("ring", "tree") if op == "all_reduce" else ("ring",)
    steps = np.maximum(ranks - 1.0, 0.0) * (2.0 if op == "all_reduce" else 1.0)
    for algorithm in ways:
        for number, protocol in enumerate(PROTOCOLS):
            each_s = np.maximum(HOP_US[hop][algorithm][number] * MICRO + extra_hop_s, 0.0)
            yield Choice(
                algorithm, protocol, BASE_US[algorithm][number] * MICRO + steps * each_s,
                INSIDE_SHARE[algorithm][number], cap if protocol == "LL" else np.inf,
            )  # fmt: skip


def network_choices(
    op: str, *, members: Floats, nodes: Floats, ranks: Floats, hop: Hop, extra_hop_s: float, network_s: float
) -> Iterator[Choice]:
    """Every algorithm and protocol of one operation between nodes. [C-5]

        ring  base + (steps - inter) max(hop, post) + inter * net,  inter = N - 1 (all-reduce: twice)
        tree  base + 2 ((k - 1) hop + log2 N net)                   (all-reduce alone)

    Args:
        op: the operation, as in `inside_choices`.
        members: ranks of the call on one node, shape (N,).
        nodes: nodes that it spans, shape (N,).
        ranks: ranks of the call, shape (N,).
        hop: what lies between neighbours inside a node.
        extra_hop_s: seconds per hop that a stated link takes beyond NCCL's table.
        network_s: seconds of one network hop with the fastest protocol.
    """
    both = 2.0 if op == "all_reduce" else 1.0
    slower_s = network_s - NETWORK_HOP_S
    levels = np.log2(np.maximum(nodes, 1.0))
    most = np.where(nodes > 2, LL_NODES_BYTES_PER_S[1], LL_NODES_BYTES_PER_S[0])
    ways: tuple[Algorithm, ...] = ("ring", "tree") if op == "all_reduce" else ("ring",)
    for algorithm in ways:
        for number, protocol in enumerate(PROTOCOLS):
            simple = protocol == "Simple"
            inside_s = max(HOP_US[hop][algorithm][number] * MICRO + extra_hop_s, 0.0)
            net_s = max(HOP_US["network"][algorithm][number] * MICRO + slower_s * (2.0 if simple else 1.0), 0.0)
            if algorithm == "tree":
                latency_s = both * ((members - 1.0) * inside_s + levels * net_s)
            else:
                # NCCL's tuner takes the larger of the hop and the network's overhead for every step: rings between
                # nodes also have to launch each of their steps on the network (ncclTopoTuneModel).
                step_s = max(inside_s, POST_US * MICRO * (3.0 if simple else 1.0))
                latency_s = both * ((ranks - nodes) * step_s + (nodes - 1.0) * net_s)
            latency_s = latency_s + BASE_US[algorithm][number] * MICRO
            if simple and algorithm == "ring" and op == "all_reduce":
                latency_s = latency_s * RING_SIMPLE_ALL_REDUCE
            yield Choice(
                algorithm, protocol, latency_s, BANDWIDTH_SHARE[algorithm][number], most if protocol == "LL" else np.inf
            )
