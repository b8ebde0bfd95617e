"""Seconds of collectives on placed groups: measured curves inside a fast domain, link arithmetic beyond it.

Sizes are nccl-tests' totals: the whole array for all-gather, reduce-scatter and broadcast, one rank's buffer for all-reduce,
all-to-all and send/recv. Every curve is a row of one table of log2 seconds on a grid of powers of two, so a batch is two
gathers. Which algorithm the library picks is not modelled beyond rings and trees.

Array suffixes: R ranks 0...R-1, P grid sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cost_models.constants import (
    NIC_EFFICIENCY,
    NOMINAL_CALL_S,
    NOMINAL_HOP_S,
    NOMINAL_LINK_EFFICIENCY,
    PCIE_CROSS_SOCKET,
    PCIE_EFFICIENCY,
    PEER_S,
    RING_HOP_S,
    SEND_S,
    TREE_HOP_S,
)
from cost_models.estimate import Estimate
from cost_models.placement import Placement
from cost_models.specs.cluster import Cluster
from cost_models.terms import Tier

if TYPE_CHECKING:
    from cost_models.calibration.document import CalibrationDocument, CollectiveFit

Floats = NDArray[np.float64]
Codes = NDArray[np.int8]
Op = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]
OPS: tuple[Op, ...] = get_args(Op)
_FIRST_LOG2, _LAST_LOG2 = 9, 36
"""The grid: 512 B to 64 GiB; below the time is flat, above it grows with size."""
_GRID_LOG2 = np.arange(_FIRST_LOG2, _LAST_LOG2 + 1, dtype=np.float64)
_NO_TIME_LOG2 = -1000.0
_MAX_TABLE_RANKS = 1024
_TREE_OPS = ("all_reduce", "broadcast")
"""Latency grows with the logarithm of the ranks past what was measured; elsewhere linearly."""


def bus_factor(op: Op, ranks: Floats) -> Floats:
    """Bytes each rank's link carries over the total size: nccl-tests' ratio of bus to algorithm bandwidth."""
    share = np.where(ranks > 1, (ranks - 1.0) / np.maximum(ranks, 1.0), 0.0)
    if op == "all_reduce":
        return 2.0 * share
    return np.where(ranks > 1, 1.0, 0.0) if op in {"broadcast", "send_recv"} else share


@dataclass(frozen=True, eq=False)
class CurveTable:
    """One operation on one tier: seconds by ranks and size."""

    log2_s_RP: Floats
    tier_RP: Codes

    def seconds(self, ranks: Floats, size_bytes: Floats) -> tuple[Floats, Codes]:
        """Interpolated in log-log, and the tier of the nearest grid size; groups of one cost nothing, empty calls a start."""
        num_rows, num_sizes = self.log2_s_RP.shape
        position = np.log2(np.maximum(size_bytes, 1.0)) - _FIRST_LOG2
        past = np.maximum(position - (num_sizes - 1), 0.0)  # beyond the grid: proportional to size
        position = np.clip(position, 0.0, num_sizes - 1)
        cell = np.minimum(position.astype(np.int64), num_sizes - 2)
        row = np.minimum(ranks, num_rows - 1).astype(np.int64) * num_sizes
        at = row + cell
        flat = self.log2_s_RP.ravel()
        low = flat.take(at)
        fraction = position - cell
        seconds = np.exp2(low + fraction * (flat.take(at + 1) - low) + past)
        return seconds, self.tier_RP.ravel().take(at + (fraction > 0.5))


@dataclass(frozen=True, eq=False)
class Links:
    """Everything that prices a collective on one cluster."""

    cluster: Cluster
    domain: Mapping[Op, CurveTable]
    """Inside a fast domain."""
    node: Mapping[Op, CurveTable]
    """Inside a node across fast domains: PCIe and the socket link. Empty where a domain fills its node."""

    @property
    def gpu_network_bytes_per_s(self) -> float:
        """Achieved NIC bandwidth of one GPU's share of its node, one direction, all GPUs sending."""
        network = self.cluster.network
        wire = network.node_bytes_per_s / self.cluster.gpus_per_node / max(network.oversubscription, 1.0)
        return wire * NIC_EFFICIENCY[network.fabric].value

    @property
    def nic_bytes_per_s(self) -> float:
        """Achieved bandwidth of one NIC, one direction."""
        network = self.cluster.network
        wire = network.nic_bytes_per_s / max(network.oversubscription, 1.0)
        return wire * NIC_EFFICIENCY[network.fabric].value


def collective_s(op: Op, size_bytes: Floats | float, *, placement: Placement, links: Links) -> Estimate:
    """Seconds of one call on each placed group, shape (N,).

        inside a domain      curve(op, n, S)                                                                  [C-1]
        over islands         max(curve(op, k, S bus(n)/bus(k)), bus(n) S / (k gpu_nic)) + latency             [C-2]
        all-to-all           max(curve(k, S k/n), S (n-k)/n / gpu_nic) + latency                              [C-3]
        send/recv            S / min(nic, node_nic / senders) + latency                                       [C-4]

    n ranks of which k share an island (node or fast domain) and its NICs; gpu_nic is one GPU's share of them.

    Args:
        op: the operation.
        size_bytes: total size, shape (N,) or a number.
        placement: the group, shape (N,).
        links: curves and cluster.
    """
    size, ranks = np.broadcast_arrays(np.asarray(size_bytes, dtype=np.float64), placement.ranks)
    seconds, tier = _inside_domain(op, size, placement, links)
    if links.node and np.any(placement.per_island > placement.per_domain):
        seconds, tier = _across_domains(op, size, placement, links, seconds, tier)
    if np.any(placement.islands > 1):
        seconds, tier = _across_islands(op, size, placement, links, seconds, tier)
    costs = (ranks > 1) & (size > 0)
    return Estimate(np.where(costs, seconds, 0.0), np.where(costs, tier, np.int8(Tier.MEASURED)))


def _part(op: Op, size: Floats, members: Floats, ranks: Floats) -> Floats:
    """Size of the call among `members` of a larger group that moves what the larger call moves between them."""
    if op == "all_to_all":
        return size * (members / ranks)
    ratio = bus_factor(op, ranks) / np.maximum(bus_factor(op, members), 0.5)
    return size * np.where(members > 1, np.maximum(ratio, 0.0), 0.0)


def _inside_domain(op: Op, size: Floats, placement: Placement, links: Links) -> tuple[Floats, Codes]:
    """What moves over the fast link."""
    if op == "send_recv":
        return links.domain[op].seconds(np.where(placement.domains > 1, 1.0, 2.0), size)
    if np.all(placement.domains == 1):
        return links.domain[op].seconds(placement.ranks, size)
    part = _part(op, size, placement.per_domain, placement.ranks)
    return links.domain[op].seconds(placement.per_domain, part)


def _across_domains(
    op: Op, size: Floats, placement: Placement, links: Links, inner_s: Floats, inner_tier: Codes
) -> tuple[Floats, Codes]:
    """Also what moves over PCIe between the fast domains of a node; the slower of the two."""
    crosses = placement.per_island > placement.per_domain
    members = np.where(crosses, placement.per_island, 1.0)
    if op == "send_recv":
        members, part = np.where(crosses & (placement.islands == 1), 2.0, 1.0), size
    else:
        part = _part(op, size, members, placement.ranks)
    outer_s, outer_tier = links.node[op].seconds(members, part)
    return np.maximum(inner_s, outer_s), np.where(crosses, np.maximum(inner_tier, outer_tier), inner_tier)


def _across_islands(
    op: Op, size: Floats, placement: Placement, links: Links, inner_s: Floats, inner_tier: Codes
) -> tuple[Floats, Codes]:
    """Also what crosses the network, with its latency."""
    ranks, members, islands = placement.ranks, placement.per_island, placement.islands
    crosses = islands > 1
    if op == "all_to_all":
        wire_s = size * (1.0 - members / ranks) / links.gpu_network_bytes_per_s
    elif op == "send_recv":
        node_bytes_per_s = links.gpu_network_bytes_per_s * links.cluster.gpus_per_node
        senders = np.clip(placement.stride, 1.0, links.cluster.gpus_per_node)
        wire_s = size / np.minimum(links.nic_bytes_per_s, node_bytes_per_s / senders)
    else:
        wire_s = bus_factor(op, ranks) * size / (links.gpu_network_bytes_per_s * members)
    total_s = np.maximum(inner_s, wire_s) + _network_latency_s(op, ranks, members, islands, links)
    return np.where(crosses, total_s, inner_s), np.where(crosses, np.int8(Tier.NOMINAL), inner_tier)


def _network_latency_s(op: Op, ranks: Floats, members: Floats, islands: Floats, links: Links) -> Floats:
    """Size-independent seconds of a call that leaves its island.                                            [C-5]

    All-reduce climbs and descends a tree of nodes. All-gather and reduce-scatter have only rings: every rank is a hop.
    """
    wire_s = links.cluster.network.latency_s
    levels = np.log2(np.maximum(islands, 1.0))
    if op == "all_reduce":
        return 2.0 * levels * (TREE_HOP_S.value + wire_s)
    if op == "broadcast":
        return levels * (TREE_HOP_S.value + wire_s)
    if op == "send_recv":
        return np.full(ranks.shape, SEND_S.value + wire_s)
    if op == "all_to_all":
        return SEND_S.value + wire_s + PEER_S.value * (ranks - members)
    return (ranks - islands) * RING_HOP_S.value + (islands - 1.0) * wire_s


# --- building the tables ----------------------------------------------------------------------------------------------


def build_links(cluster: Cluster, document: CalibrationDocument | None) -> Links:
    """Curve tables of a cluster, from a document's curves where they were measured on such a link, else nominal."""
    domain = max(1, min(cluster.nvlink_domain_gpus, cluster.num_gpus))
    node = min(cluster.gpus_per_node, cluster.num_gpus)
    fast = _pcie_tables if cluster.interconnect == "pcie" else _fast_tables
    return Links(
        cluster=cluster,
        domain=fast(cluster, document, max(domain, 2)),
        node=_pcie_tables(cluster, document, node) if domain < node else {},
    )


def _fast_tables(cluster: Cluster, document: CalibrationDocument | None, ranks: int) -> dict[Op, CurveTable]:
    on_fast_link = document is not None and document.fingerprint.interconnect != "pcie"
    same_kind = document is not None and _link_family(document.fingerprint.interconnect) == _link_family(
        cluster.interconnect
    )
    if document is None or not (on_fast_link and same_kind) or cluster.interconnect == "custom":
        bytes_per_s = cluster.intra_bytes_per_s * NOMINAL_LINK_EFFICIENCY.value
        return _nominal_tables(bytes_per_s, cluster.intra_latency_s, ranks)
    return _curve_tables(cluster, document, ranks, cluster.intra_bytes_per_s)


def _link_family(interconnect: str) -> str:
    return "nvlink" if interconnect.startswith("nv") else interconnect


def _pcie_tables(cluster: Cluster, document: CalibrationDocument | None, ranks: int) -> dict[Op, CurveTable]:
    if document is not None and document.fingerprint.interconnect == "pcie":
        return _curve_tables(cluster, document, ranks, cluster.gpu.pcie_bytes_per_s)
    bytes_per_s = cluster.gpu.pcie_bytes_per_s * PCIE_EFFICIENCY.value
    tables = _nominal_tables(bytes_per_s, cluster.intra_latency_s, ranks)
    far = np.arange(ranks + 1) > cluster.pcie_gpus_per_socket
    slower = np.where(far, -np.log2(PCIE_CROSS_SOCKET.value), 0.0)[:, None]
    return {op: CurveTable(table.log2_s_RP + slower, table.tier_RP) for op, table in tables.items()}


def _rows(ranks: int) -> Floats:
    return np.arange(min(ranks, _MAX_TABLE_RANKS) + 1, dtype=np.float64)


def _as_table(seconds_RP: Floats, tier_RP: Codes) -> CurveTable:
    log2_s = np.log2(np.maximum(seconds_RP, 1e-12))
    log2_s[:2] = _NO_TIME_LOG2  # nobody to talk to
    return CurveTable(log2_s, tier_RP)


def _nominal_tables(bytes_per_s: float, hop_s: float, ranks: int) -> dict[Op, CurveTable]:
    """A fixed cost per call and hop plus bytes over bandwidth."""
    rows = _rows(ranks)[:, None]
    extra_hop_s = max(NOMINAL_HOP_S.value, 0.5 * hop_s)
    tables: dict[Op, CurveTable] = {}
    for op in OPS:
        hops = np.log2(np.maximum(rows, 1.0)) if op in _TREE_OPS else np.maximum(rows - 2.0, 0.0)
        start_s = NOMINAL_CALL_S.value + hop_s + hops * extra_hop_s
        seconds = start_s + bus_factor(op, rows) * np.exp2(_GRID_LOG2) / bytes_per_s
        tables[op] = _as_table(seconds, np.full(seconds.shape, np.int8(Tier.NOMINAL)))
    return tables


def _curve_tables(
    cluster: Cluster, document: CalibrationDocument, ranks: int, link_bytes_per_s: float
) -> dict[Op, CurveTable]:
    """Measured curves, re-scaled to this cluster's link where it is another."""
    curves = _one_node_curves(document)
    measured = document.device.link_bytes_per_s
    scale = measured / link_bytes_per_s if measured > 0 and link_bytes_per_s > 0 else 1.0
    known = document.kind == "measured"
    own = abs(scale - 1.0) < 0.01 and document.fingerprint.gpu == cluster.gpu.name
    best = Tier.EXTRAPOLATED if not own else Tier.MEASURED if known else Tier.INTERPOLATED
    nominal = _nominal_tables(link_bytes_per_s * NOMINAL_LINK_EFFICIENCY.value, cluster.intra_latency_s, ranks)
    return {
        op: _scaled_table(op, curves[op], _rows(ranks), scale=scale, best=best) if op in curves else nominal[op]
        for op in OPS
    }


def _one_node_curves(document: CalibrationDocument) -> dict[Op, list[CollectiveFit]]:
    """Curves of contiguous groups inside one node, by operation; missing point-to-point ones derived."""
    curves: dict[Op, list[CollectiveFit]] = {}
    for fit in document.collective_fits:
        if fit.ranks == fit.ranks_per_node and fit.stride == 1 and fit.concurrent_groups == 1 and fit.ranks > 1:
            curves.setdefault(fit.op, []).append(fit)
    pairs = [fit for fit in curves.get("all_to_all", []) if fit.ranks == 2]
    if "send_recv" not in curves and pairs:  # each of two ranks sends half of the total to the other
        curves["send_recv"] = [_reinterpreted(pairs[0], "send_recv", 0.5)]
    if "broadcast" not in curves and "all_gather" in curves:  # the same ring, which carries (n-1)/n of the total
        curves["broadcast"] = [_reinterpreted(f, "broadcast", (f.ranks - 1) / f.ranks) for f in curves["all_gather"]]
    return curves


def _reinterpreted(fit: CollectiveFit, op: Op, size_ratio: float) -> CollectiveFit:
    return fit.model_copy(update={"op": op, "size_bytes": tuple(s * size_ratio for s in fit.size_bytes)})


def _scaled_table(op: Op, fits: Sequence[CollectiveFit], rows: Floats, *, scale: float, best: Tier) -> CurveTable:
    """Every rank count from the nearest measured one: the part above the small-message time goes with bus factor and link."""
    fits = sorted(fits, key=lambda fit: fit.ranks)
    measured = np.array([fit.ranks for fit in fits], dtype=np.float64)
    grid = np.stack([_on_grid(fit) for fit in fits])
    start = grid[:, :1]
    nearest = np.argmin(np.abs(np.log(np.maximum(rows, 1.0)[:, None] / measured)), axis=1)
    ratio = bus_factor(op, rows) / bus_factor(op, measured)[nearest] * scale
    seconds = (grid - start)[nearest] * ratio[:, None] + _start_s(op, rows, measured, start[:, 0])[:, None]
    exact = np.isclose(rows[:, None], measured[nearest][:, None])
    low = np.array([np.log2(fit.size_bytes[0]) for fit in fits])[nearest][:, None]
    high = np.array([np.log2(fit.size_bytes[-1]) for fit in fits])[nearest][:, None]
    covered = exact & (_GRID_LOG2 >= np.floor(low)) & (_GRID_LOG2 <= np.ceil(high))
    return _as_table(seconds, np.where(covered, np.int8(best), np.int8(Tier.EXTRAPOLATED)))


def _start_s(op: Op, rows: Floats, measured: Floats, start_s: Floats) -> Floats:
    """Small-message seconds by ranks: interpolated between measured counts, continued by their last slope."""
    position = np.log2(np.maximum(rows, 1.0)) if op in _TREE_OPS else rows
    known = np.log2(measured) if op in _TREE_OPS else measured
    inside = np.interp(position, known, start_s)
    if len(known) < 2:
        return inside
    slope = max((start_s[-1] - start_s[-2]) / (known[-1] - known[-2]), 0.0)
    return inside + slope * np.maximum(position - known[-1], 0.0)


def _on_grid(fit: CollectiveFit) -> Floats:
    """Seconds at the grid's sizes: log-log inside, flat below, the last two points' bandwidth above."""
    size, time_s = np.array(fit.size_bytes), np.array(fit.time_s)
    seconds = np.exp2(np.interp(_GRID_LOG2, np.log2(size), np.log2(time_s)))
    if len(size) < 2:
        return seconds
    slope = (time_s[-1] - time_s[-2]) / (size[-1] - size[-2])
    return np.asarray(seconds + slope * np.maximum(np.exp2(_GRID_LOG2) - size[-1], 0.0))
