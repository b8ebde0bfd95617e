"""Tables of collective times inside a node: one row per group size, one column per power-of-two message size. [C-1]

They come from measured curves where a document was measured on such a link, carried to another bandwidth and other group
sizes; else from NCCL's published latencies plus bytes over bandwidth. Nothing here leaves the node. Array suffixes: R ranks
0...R-1, P grid sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.calibration.document import CalibrationDocument, CollectiveFit
from cost_models.constants import (
    FASTEST_PCIE_BYTES_PER_S,
    INTRA_LATENCY_S,
    NOMINAL_CALL_S,
    NOMINAL_HOP_S,
    NOMINAL_LINK_EFFICIENCY,
)
from cost_models.hardware.algorithms import inside_seconds, is_measured_by
from cost_models.hardware.bus import bus_factor
from cost_models.hardware.nccl import Hop, inside_choices
from cost_models.hardware.pcie import PCIE_SAME_SWITCH, pcie_rates
from cost_models.operations import OPS, Op
from cost_models.specs.cluster import Cluster
from cost_models.terms import Tier

Floats = NDArray[np.float64]
Codes = NDArray[np.int8]
_FIRST_LOG2, _LAST_LOG2 = 9, 36
"""The grid: 512 B to 64 GiB; below the time is flat, above it grows with size."""
GRID_LOG2 = np.arange(_FIRST_LOG2, _LAST_LOG2 + 1, dtype=np.float64)
_NO_TIME_LOG2 = -1000.0
_MAX_TABLE_RANKS = 1024
_TREE_OPS = ("all_reduce", "broadcast")
"""Operations whose latency grows with the logarithm of the ranks beyond what was measured; that of the others grows
linearly."""


def grid_position(size_bytes: Floats) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Grid cell of each size, fraction of the way to the cell's end, and log2 of how far the size lies beyond the grid."""
    last = len(GRID_LOG2) - 1
    position = np.log2(np.maximum(size_bytes, 1.0)) - _FIRST_LOG2
    past = np.maximum(position - last, 0.0)  # beyond the grid time is proportional to size
    position = np.clip(position, 0.0, last)
    cell = np.minimum(position.astype(np.int64), last - 1)
    return cell, position - cell, past


@dataclass(frozen=True, eq=False)
class CurveTable:
    """Seconds of one operation on one tier, by ranks and size."""

    log2_s_RP: Floats
    tier_RP: Codes
    start_s_R: Floats
    """The part of these seconds that depends on no bytes and no link."""

    def start_s(self, ranks: Floats) -> Floats:
        """Seconds of a call that do not depend on its size, shape of `ranks`."""
        return self.start_s_R.take(np.minimum(ranks, len(self.start_s_R) - 1).astype(np.int64))

    def seconds(self, ranks: Floats, size_bytes: Floats) -> tuple[Floats, Codes]:
        """Seconds interpolated in log-log, and the tier of the nearest grid size, shape of `ranks`.

        Groups of one rank cost nothing; an empty call still costs a start.
        """
        num_rows, num_sizes = self.log2_s_RP.shape
        cell, fraction, past = grid_position(size_bytes)
        row = np.minimum(ranks, num_rows - 1).astype(np.int64) * num_sizes
        at = row + cell
        # Interpolating log time over log size is exact at both ends of a curve, constant latency and constant
        # bandwidth. A flat index takes one gather where two-dimensional indexing would be slower.
        flat = self.log2_s_RP.ravel()
        low = flat.take(at)
        seconds = np.exp2(low + fraction * (flat.take(at + 1) - low) + past)
        return seconds, self.tier_RP.ravel().take(at + (fraction > 0.5))


def fast_tables(cluster: Cluster, document: CalibrationDocument | None, *, ranks: int) -> dict[Op, CurveTable]:
    """Tables of the fast link for groups of up to `ranks`; a custom link is priced like the kind it stands for. [C-1]

    Curves of another machine may say less about this link than its bandwidth does: inside a node, a borrowed or nominal link is
    never slower than the PCIe beside it.
    """
    mesh = _mesh_share(cluster, _rows(ranks))
    if document is None or _link_family(document.fingerprint.interconnect) != _link_family(cluster.link_kind):
        bytes_per_s = cluster.intra_bytes_per_s * NOMINAL_LINK_EFFICIENCY.value * mesh
        tables = _nominal_tables(cluster, bytes_per_s, ranks=ranks, hop="nvlink")
    else:
        tables = _curve_tables(cluster, document, ranks=ranks, link_bytes_per_s=cluster.intra_bytes_per_s, mesh=mesh)
    return _at_least_pcie(cluster, tables, ranks=ranks)


def strided_tables(cluster: Cluster, document: CalibrationDocument | None, *, ranks: int) -> dict[Op, CurveTable]:
    """Tables of groups inside one fast domain whose members are not neighbours, for the operations that were measured so. [C-1]

    For the other operations the table of neighbours holds.
    """
    if document is None or document.kind != "measured":
        return {}
    curves = _crowded_curves(document, strided=True)
    if not curves or _link_family(document.fingerprint.interconnect) != _link_family(cluster.link_kind):
        return {}
    on_pcie = cluster.link_kind == "pcie"
    link = cluster.pcie_bytes_per_s if on_pcie else cluster.intra_bytes_per_s
    slower, best = _slower_and_tier(cluster, document, link)
    share = np.ones(len(_rows(ranks))) if on_pcie else _mesh_share(cluster, _rows(ranks))
    meshed = document.fingerprint.interconnect in {"xgmi", "nvlink-mesh"}
    return {
        op: _carried_table(op, fits, share, meshed=meshed, slower=slower, best=best)
        for op, fits in curves.items()
        if is_measured_by(cluster, op)
    }


def _link_family(interconnect: str) -> str:
    """The family of links whose curves may stand for each other: all kinds of NVLink are one."""
    return "nvlink" if interconnect.startswith("nv") else interconnect


def _mesh_share(cluster: Cluster, rows: Floats) -> Floats:
    """Share of a GPU's links that groups of each size use: those to the group's g - 1 other members where every peer has
    its own.
    """
    peers = cluster.mesh_peers
    if peers is None:
        return np.ones_like(rows)
    return np.clip((rows - 1.0) / peers, 1.0 / peers, 1.0)


def _at_least_pcie(cluster: Cluster, tables: dict[Op, CurveTable], *, ranks: int) -> dict[Op, CurveTable]:
    """The tables, where borrowed and nominal calls take PCIe if it is the faster path."""
    pcie = cluster.gpu.pcie_bytes_per_s
    if cluster.interconnect == "custom" and cluster.link_kind == "nvswitch":
        pcie = max(pcie, min(cluster.intra_bytes_per_s, FASTEST_PCIE_BYTES_PER_S))
    rows = _rows(ranks)
    others = _nominal_tables(cluster, np.full(len(rows), pcie * PCIE_SAME_SWITCH.value), ranks=ranks, hop="pcie")
    inside = ((rows > 1) & (rows <= cluster.gpus_per_node))[:, None]
    return {
        op: CurveTable(
            np.where(
                inside & (table.tier_RP > Tier.INTERPOLATED),
                np.minimum(table.log2_s_RP, others[op].log2_s_RP),
                table.log2_s_RP,
            ),
            table.tier_RP,
            table.start_s_R,
        )
        for op, table in tables.items()
    }


def _own_pcie(document: CalibrationDocument | None) -> CalibrationDocument | None:
    """The document if it measured this user's own PCIe, else None: what another server's cards reach says little of this one's.

    Whether cards have peer access, and how they hang on switches and sockets, moves a server between 0.04 and 0.8 of its lanes:
    eight L40S without peer access (the public curves) move 1.2 of 31.5 GB/s.
    """
    measured = document is not None and document.kind == "measured" and document.fingerprint.interconnect == "pcie"
    return document if measured else None


def pcie_tables(cluster: Cluster, document: CalibrationDocument | None, *, ranks: int) -> dict[Op, CurveTable]:
    """Tables of groups that cross PCIe inside a node; beyond the GPUs of one socket they cross the socket link as well.
    [C-1]
    """
    own = _own_pcie(document)
    if own is not None:
        return _curve_tables(cluster, own, ranks=ranks, link_bytes_per_s=cluster.pcie_bytes_per_s)
    rates = pcie_rates(cluster)
    bytes_per_s = np.full(len(_rows(ranks)), rates.socket)
    tables = _nominal_tables(cluster, bytes_per_s, ranks=ranks, hop="pcie")
    far = _rows(ranks) > cluster.pcie_gpus_per_socket
    slower = np.where(far, np.log2(rates.socket / rates.both_sockets), 0.0)[:, None]
    return {op: CurveTable(table.log2_s_RP + slower, table.tier_RP, table.start_s_R) for op, table in tables.items()}


def reach_tables(cluster: Cluster, document: CalibrationDocument | None, *, ranks: int) -> dict[Op, CurveTable]:
    """Tables of groups that cross PCIe inside a node, a block of `reach_rows(ranks)` rows for each reach. [C-1]

    The reaches are one switch, one socket, both sockets. Measured curves are of neighbouring GPUs, so they already cross what a
    group of their size crosses.
    """
    rows = _rows(ranks)[:, None]
    rates = pcie_rates(cluster)
    slower = np.log2(rates.socket / rates.both_sockets)
    own = _own_pcie(document)
    if own is not None:
        near = _curve_tables(cluster, own, ranks=ranks, link_bytes_per_s=cluster.pcie_bytes_per_s)
        switch, socket = near, near
        slower = np.where(rows > cluster.pcie_gpus_per_socket, 0.0, slower)
    else:
        each = np.ones(len(rows))
        switch = _nominal_tables(cluster, rates.switch * each, ranks=ranks, hop="pcie")
        socket = _nominal_tables(cluster, rates.socket * each, ranks=ranks, hop="pcie")
    return {
        op: CurveTable(
            np.concatenate([switch[op].log2_s_RP, socket[op].log2_s_RP, socket[op].log2_s_RP + slower]),
            np.concatenate([switch[op].tier_RP, socket[op].tier_RP, socket[op].tier_RP]),
            np.concatenate([switch[op].start_s_R, socket[op].start_s_R, socket[op].start_s_R]),
        )
        for op in OPS
    }


def reach_rows(ranks: int) -> int:
    """Rows of one reach in `reach_tables`."""
    return len(_rows(ranks))


def _rows(ranks: int) -> Floats:
    return np.arange(min(ranks, _MAX_TABLE_RANKS) + 1, dtype=np.float64)


def _as_table(seconds_RP: Floats, tier_RP: Codes, start_s_R: Floats) -> CurveTable:
    log2_s = np.log2(np.maximum(seconds_RP, 1e-12))
    log2_s[:2] = _NO_TIME_LOG2  # nobody to talk to, and nothing uncertain about it
    tier_RP[:2] = np.int8(Tier.MEASURED)
    return CurveTable(log2_s, tier_RP, np.where(np.arange(len(start_s_R)) > 1, start_s_R, 0.0))


def extra_hop_s(cluster: Cluster) -> float:
    """Seconds per hop that a stated link takes beyond its kind's in NCCL's table; negative where it is faster."""
    return cluster.intra_latency_s - INTRA_LATENCY_S[cluster.link_kind]


def _nominal_tables(cluster: Cluster, bytes_per_s_R: Floats, *, ranks: int, hop: Hop) -> dict[Op, CurveTable]:
    """NCCL's published latencies plus bytes over bandwidth, with the fastest protocol of each call; sends as a call and
    hops. [C-5]
    """
    rows, bytes_per_s = _rows(ranks)[:, None], bytes_per_s_R[:, None]
    tables: dict[Op, CurveTable] = {}
    for op in OPS:
        moved = bus_factor(op, rows) * np.exp2(GRID_LOG2)
        if op in {"all_to_all", "send_recv"}:
            hop_s = max(NOMINAL_HOP_S.value, 0.5 * cluster.intra_latency_s)
            start_s = NOMINAL_CALL_S.value + cluster.intra_latency_s + np.maximum(rows - 2.0, 0.0) * hop_s
            seconds = start_s + moved / bytes_per_s
        elif cluster.collectives is not None:
            seconds, start_s = inside_seconds(cluster, op, rows, np.exp2(GRID_LOG2), hop=hop, bytes_per_s=bytes_per_s)
        else:
            choices = list(
                inside_choices(op, rows, hop=hop, extra_hop_s=extra_hop_s(cluster), generation=cluster.gpu.generation)
            )
            # NCCL's tuner estimates every algorithm and protocol by latency plus bytes over bandwidth and takes the
            # fastest, so the minimum over them is its own choice.
            start_s = np.min([c.latency_s for c in choices], axis=0)
            seconds = np.min(
                [
                    c.latency_s + moved / np.minimum(bytes_per_s * c.bandwidth_share, c.most_bytes_per_s)
                    for c in choices
                ],
                axis=0,
            )
        tables[op] = _as_table(seconds, np.full(seconds.shape, np.int8(Tier.NOMINAL)), start_s[:, 0])
    return tables


def _curve_tables(
    cluster: Cluster,
    document: CalibrationDocument,
    *,
    ranks: int,
    link_bytes_per_s: float,
    mesh: Floats | None = None,
) -> dict[Op, CurveTable]:
    """Measured curves, carried to this cluster's link where that is another; nominal tables for operations without a
    curve.
    """
    curves = _one_node_curves(document)
    slower, best = _slower_and_tier(cluster, document, link_bytes_per_s)
    share = np.ones(len(_rows(ranks))) if mesh is None else mesh
    meshed = document.fingerprint.interconnect in {"xgmi", "nvlink-mesh"}
    hop: Hop = "pcie" if document.fingerprint.interconnect == "pcie" else "nvlink"
    bytes_per_s = link_bytes_per_s * NOMINAL_LINK_EFFICIENCY.value * share
    nominal = _nominal_tables(cluster, bytes_per_s, ranks=ranks, hop=hop)
    return {
        op: _carried_table(op, curves[op], share, meshed=meshed, slower=slower, best=best)
        if op in curves and is_measured_by(cluster, op)
        else nominal[op]
        for op in OPS
    }


def _slower_and_tier(cluster: Cluster, document: CalibrationDocument, link_bytes_per_s: float) -> tuple[float, Tier]:
    """The measured link's bandwidth over this one's, and the best tier that its curves can have here."""
    measured = document.device.link_bytes_per_s
    slower = measured / link_bytes_per_s if measured > 0 and link_bytes_per_s > 0 else 1.0
    own = abs(slower - 1.0) < 0.01 and document.fingerprint.gpu == cluster.gpu.name
    return slower, Tier.EXTRAPOLATED if not own else Tier.MEASURED if document.kind == "measured" else Tier.INTERPOLATED


def _one_node_curves(document: CalibrationDocument) -> dict[Op, list[CollectiveFit]]:
    """Curves of groups of neighbours inside one node, by operation; missing point-to-point operations are derived."""
    curves = _crowded_curves(document, strided=False)
    pairs = [fit for fit in curves.get("all_to_all", []) if fit.ranks == 2]
    if "send_recv" not in curves and not pairs and document.pairs:
        curves["send_recv"] = [_slowest_pair(document)]
    if "send_recv" not in curves and pairs:  # each of two ranks sends half of the total to the other
        curves["send_recv"] = [_reinterpreted(pairs[0], "send_recv", 0.5)]
    if "broadcast" not in curves and "all_gather" in curves:  # the same ring, which carries (n-1)/n of the total
        curves["broadcast"] = [_reinterpreted(f, "broadcast", (f.ranks - 1) / f.ranks) for f in curves["all_gather"]]
    return curves


def _crowded_curves(document: CalibrationDocument, *, strided: bool) -> dict[Op, list[CollectiveFit]]:
    """Curves of groups inside one node, of neighbours or of ranks apart (`strided`), by operation.

    In training all sibling groups communicate at once, so of one group size the most crowded measurement is the comparable one.
    """
    found: dict[Op, dict[int, CollectiveFit]] = {}
    for fit in document.collective_fits:
        if fit.ranks == fit.ranks_per_node and (fit.stride > 1) == strided and fit.ranks > 1:
            groups = found.setdefault(fit.op, {})
            if fit.ranks not in groups or fit.concurrent_groups > groups[fit.ranks].concurrent_groups:
                groups[fit.ranks] = fit
    return {op: list(groups.values()) for op, groups in found.items()}


def _slowest_pair(document: CalibrationDocument) -> CollectiveFit:
    """Sends between two ranks at the rate of the slowest pair, since everybody waits for it; they start as a nominal call
    does.
    """
    rate = min(pair.bytes_per_s for pair in document.pairs)
    sizes = tuple(float(size) for size in np.exp2(GRID_LOG2))
    return CollectiveFit(
        op="send_recv", ranks=2, ranks_per_node=2, size_bytes=sizes,
        time_s=tuple(NOMINAL_CALL_S.value + size / rate for size in sizes), residual_fraction=0.0,
    )  # fmt: skip


def _reinterpreted(fit: CollectiveFit, op: Op, size_ratio: float) -> CollectiveFit:
    """The curve as one of another operation whose size is `size_ratio` times as large for the same traffic."""
    return fit.model_copy(update={"op": op, "size_bytes": tuple(s * size_ratio for s in fit.size_bytes)})


def _carried_table(
    op: Op, fits: Sequence[CollectiveFit], share_R: Floats, *, meshed: bool, slower: float, best: Tier
) -> CurveTable:
    """Every rank count from the nearest measured one, on a link that is `slower` times as slow. [C-1]

    The part above the small-message time scales with the bus factor and with the share of the links that a group uses. Of that
    part only the time that the bytes take at the bandwidth of the largest size scales with the link. What a smaller message loses
    beside that, it loses in protocol and start-up, whatever the link.
    """
    fits = sorted(fits, key=lambda fit: fit.ranks)
    rows = np.arange(len(share_R), dtype=np.float64)
    measured = np.array([fit.ranks for fit in fits], dtype=np.float64)
    grid = np.stack([on_grid(fit) for fit in fits])
    above = grid - grid[:, :1]
    wire = np.minimum(above, np.exp2(GRID_LOG2 - GRID_LOG2[-1]) * above[:, -1:])
    # Nearest by ratio, as bus factors go: 12 ranks are nearer to 16 than to 8.
    nearest = np.argmin(np.abs(np.log(np.maximum(rows, 1.0)[:, None] / measured)), axis=1)
    used = share_R[np.minimum(measured, len(share_R) - 1).astype(np.int64)] if meshed else np.ones_like(measured)
    ratio = bus_factor(op, rows) / bus_factor(op, measured)[nearest] * used[nearest] / share_R
    seconds = (above + wire * (slower - 1.0))[nearest] * ratio[:, None]
    start_s = _start_s(op, rows, measured, grid[:, 0])
    seconds = seconds + start_s[:, None]
    exact = np.isclose(rows[:, None], measured[nearest][:, None])
    low = np.array([np.log2(fit.size_bytes[0]) for fit in fits])[nearest][:, None]
    high = np.array([np.log2(fit.size_bytes[-1]) for fit in fits])[nearest][:, None]
    covered = exact & (np.floor(low) <= GRID_LOG2) & (np.ceil(high) >= GRID_LOG2)
    return _as_table(seconds, np.where(covered, np.int8(best), np.int8(Tier.EXTRAPOLATED)), start_s)


def _start_s(op: Op, rows: Floats, measured: Floats, start_s: Floats) -> Floats:
    """Small-message seconds by ranks: interpolated between measured counts, continued by their last slope."""
    position = np.log2(np.maximum(rows, 1.0)) if op in _TREE_OPS else rows
    known = np.log2(measured) if op in _TREE_OPS else measured
    inside: Floats = np.interp(position, known, start_s)
    if len(known) < 2:
        return inside
    slope = max((start_s[-1] - start_s[-2]) / (known[-1] - known[-2]), 0.0)
    beyond: Floats = slope * np.maximum(position - known[-1], 0.0)
    return inside + beyond


def on_grid(fit: CollectiveFit) -> Floats:
    """Seconds at the grid's sizes: log-log between samples, flat below them, the last two points' bandwidth above."""
    size, time_s = np.array(fit.size_bytes), np.array(fit.time_s)
    seconds: Floats = np.exp2(np.interp(GRID_LOG2, np.log2(size), np.log2(time_s)))
    if len(size) < 2:
        return seconds
    slope = (time_s[-1] - time_s[-2]) / (size[-1] - size[-2])
    beyond: Floats = slope * np.maximum(np.exp2(GRID_LOG2) - size[-1], 0.0)
    return seconds + beyond
