"""Time by size of one collective on a cluster: of every algorithm, of what plans are priced with, and measured points, as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np

from cost_models.errors import InvalidInputError, Problem
from cost_models.hardware.algorithm_curves import algorithm_curves
from cost_models.hardware.algorithms import library_of
from cost_models.hardware.calibrated import Calibration
from cost_models.hardware.call_parts import call_parts
from cost_models.hardware.placement import Placement, place
from cost_models.operations import Op
from cost_models.specs.collectives import Library
from cost_models.terms import Tier

Document = dict[str, Any]
SIZES_LOG2 = (10, 33)
"""Sizes are powers of two from 1 KiB to 8 GiB."""
_TIERS = tuple(tier.label for tier in Tier)


def collective_curves(
    calibration: Calibration, op: Op, *, ranks: int, stride: int, libraries: tuple[Library, ...] | None
) -> Document:
    """The document that `meshwright collectives --json` prints.

    Args:
        calibration: the prices of a cluster, which say what its links carry and what was measured.
        op: the operation.
        ranks: ranks of the group; one group of every node, or of all nodes, communicates with its siblings at the same time.
        stride: distance between neighbours of the group, in ranks.
        libraries: whose algorithms are shown; None for the cluster's own library.

    Raises:
        InvalidInputError: the group does not fit on the cluster.
    """
    cluster = calibration.cluster
    _check_group(ranks, stride, cluster.num_gpus)
    size = np.exp2(np.arange(SIZES_LOG2[0], SIZES_LOG2[1] + 1, dtype=np.float64))
    placement = place(np.full(len(size), float(ranks)), stride=np.full(len(size), float(stride)), cluster=cluster)
    links = calibration.links
    shown = (library_of(cluster),) if libraries is None else libraries
    parts = call_parts(op, size, placement=placement, links=links)
    return {
        "cluster": cluster.name,
        "op": op,
        "num_ranks": ranks,
        "num_nodes": int(placement.islands[0]),
        "stride": stride,
        "library": library_of(cluster),
        "calibration": calibration.name,
        "size_bytes": size.tolist(),
        "priced": {
            "seconds": (parts.latency_s + parts.bandwidth_s).tolist(),
            "latency_s": parts.latency_s.tolist(),
            "algorithm": list(parts.algorithm),
            "protocol": list(parts.protocol),
            "tier": [_TIERS[tier] for tier in parts.tier.tolist()],
        },
        "algorithms": [
            {
                "library": curve.library,
                "algorithm": curve.algorithm,
                "taken": curve.is_taken,
                "seconds": curve.seconds.tolist(),
                "latency_s": curve.latency_s.tolist(),
                "protocol": list(curve.protocol),
            }
            for curve in algorithm_curves(op, size, placement=placement, links=links, libraries=shown)
        ],
        "measured": _measured(calibration, op, placement),
    }


def _check_group(ranks: int, stride: int, gpus: int) -> None:
    if ranks < 2 or ranks * stride > gpus:
        message = f"a group of {ranks} ranks {stride} apart does not fit on {gpus} GPUs"
        raise InvalidInputError([Problem("", message, "Give --ranks from 2 up, times --stride at most the GPUs.")])


def _measured(calibration: Calibration, op: Op, placement: Placement) -> Document | None:
    """The points that were measured of this very group, alone or beside its siblings; None where there are none."""
    document = calibration.network
    if document is None:
        return None
    ranks, per_node = float(placement.ranks[0]), float(placement.per_island[0])
    # Stride 4 and stride 2 inside a node differ little beside neighbours and ranks apart, which do.
    own = [
        fit for fit in document.collective_fits
        if fit.op == op and (fit.ranks, fit.ranks_per_node, fit.stride > 1) == (ranks, per_node, bool(placement.stride[0] > 1))
    ]  # fmt: skip
    if not own:
        return None
    # Siblings communicate at once in training, so that the most crowded measurement is the one that plans are priced with.
    fit = max(own, key=lambda each: each.concurrent_groups)
    return {
        "calibration": document.name,
        "concurrent_groups": fit.concurrent_groups,
        "size_bytes": list(fit.size_bytes),
        "seconds": list(fit.time_s),
    }
