"""How a collective's seconds come about: the algorithm and protocol that are assumed, what is latency and what is bytes.   [C-23]

The parts add up to what `collective_s` prices. A time that was measured has the algorithm that the library took when it was, which no
calibration records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.constants import PEER_S, SEND_S
from cost_models.hardware.algorithms import ROUTED, group_of, stated_ways
from cost_models.hardware.bus import bus_factor
from cost_models.hardware.collectives import Links, collective_s, group_on, start_s, ways_over_islands
from cost_models.hardware.nccl import inside_choices
from cost_models.hardware.nccl_tuner import Way
from cost_models.hardware.placement import Placement
from cost_models.operations import Op
from cost_models.terms import Tier

Floats = NDArray[np.float64]
MEASURED, DIRECT = "measured", "direct"
"""Names in place of an algorithm: a measured time, and messages straight from rank to rank."""


@dataclass(frozen=True, slots=True)
class CallParts:
    """The calls of a batch, shape (N,) each."""

    algorithm: tuple[str, ...]
    """An algorithm's name, `MEASURED` or `DIRECT`."""
    protocol: tuple[str | None, ...]
    latency_s: Floats
    bandwidth_s: Floats
    tier: NDArray[np.int8]


def call_parts(op: Op, size_bytes: Floats, *, placement: Placement, links: Links) -> CallParts:
    """The parts of each call, shape (N,). Arguments as of `collective_s`. [C-23]"""
    priced = collective_s(op, size_bytes, placement=placement, links=links)
    size = np.broadcast_to(np.asarray(size_bytes, dtype=np.float64), placement.ranks.shape)
    across = placement.islands > 1
    if op not in ROUTED:
        peers = placement.ranks - placement.per_island if op == "all_to_all" else 0.0
        waiting_s = SEND_S.value + links.cluster.network.latency_s + PEER_S.value * peers
        latency_s = np.where(across, waiting_s, start_s(op, placement, links))
        return _parts([DIRECT] * len(size), [None] * len(size), latency_s, priced.seconds, priced.tier)
    # Calibrations keep seconds, and nobody logged NCCL's choices beside them.
    names: list[str] = [MEASURED] * len(size)
    protocols: list[str | None] = [None] * len(size)
    latency_s = np.array(start_s(op, placement, links), dtype=np.float64)
    # Between nodes only a group that was itself measured has no formula in its time; inside, whatever is not nominal is a curve.
    by_formula = np.where(across, priced.tier != Tier.MEASURED, priced.tier == Tier.NOMINAL)
    for crosses in (False, True):
        rows = np.flatnonzero((across == crosses) & by_formula)
        if not len(rows):
            continue
        part = placement.take(rows)
        ways = ways_over_islands(op, size[rows], part, links) if crosses else ways_inside(op, size[rows], part, links)
        # The same minimum that the price is, taken once more to see which way it was.
        shape = (len(rows),)
        each_s = np.stack(
            [np.broadcast_to(np.where(way.possible, way.latency_s + way.bandwidth_s, np.inf), shape) for way in ways]
        )
        latencies_s = np.stack([np.broadcast_to(way.latency_s, shape) for way in ways])
        best = np.argmin(each_s, axis=0)
        latency_s[rows] = latencies_s[best, np.arange(len(rows))]
        for row, way in zip(rows.tolist(), best.tolist(), strict=True):
            names[row], protocols[row] = ways[way].algorithm, ways[way].protocol
    return _parts(names, protocols, latency_s, priced.seconds, priced.tier)


def _parts(
    names: list[str], protocols: list[str | None], latency_s: Floats, seconds: Floats, tier: NDArray[np.int8]
) -> CallParts:
    # A measured call of few bytes may take less than a formula's latency alone.
    within_s = np.minimum(latency_s, seconds)
    return CallParts(tuple(names), tuple(protocols), within_s, seconds - within_s, tier)


def ways_inside(op: Op, size: Floats, placement: Placement, links: Links) -> list[Way]:
    """What groups inside a node may take where no curve prices them. Arguments as of `collective_s`, of an operation of
    `algorithms.ROUTED`.
    """
    cluster, group = links.cluster, group_on(placement, links)
    if cluster.collectives is not None:
        inside = group_of(
            cluster, ranks=placement.ranks, nodes=np.ones_like(placement.ranks), hop=group.hop,
            bytes_per_s=group.inside_bytes_per_s,
        )  # fmt: skip
        return stated_ways(cluster, op, size, inside, gpu_network_bytes_per_s=links.gpu_network_bytes_per_s)
    moved = bus_factor(op, placement.ranks) * size
    choices = inside_choices(
        op, placement.ranks, hop=group.hop, extra_hop_s=group.extra_hop_s, generation=cluster.gpu.generation
    )
    return [
        Way(
            choice.algorithm, choice.protocol, choice.latency_s,
            moved / np.minimum(group.inside_bytes_per_s * choice.bandwidth_share, choice.most_bytes_per_s),
            np.asarray(placement.ranks > 1),
        )
        for choice in choices
    ]  # fmt: skip
