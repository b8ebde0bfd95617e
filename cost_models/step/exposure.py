"""Which communication of a strategy leaves its node, and which runs beside computation.

The uncertainty of a communication term depends on both; `ranges` turns these facts into half-widths. [T-3]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cost_models.job import Job
from cost_models.operations import Op
from cost_models.strategies.strategy import Bools, Strategies
from cost_models.terms import COMMUNICATION, Tier


@dataclass(frozen=True, eq=False)
class Exposure:
    """Facts about the communication terms of N strategies, shape (N,) by term."""

    crosses: Mapping[str, Bools]
    """Whether the term's widest group leaves its island of fast links and NICs."""
    overlaps: Mapping[str, Bools]
    """Whether the term is what overlapping leaves of a collective."""
    beside: Mapping[str, Tier]
    """Tier of what is known of the term's collectives while computation runs beside them."""


def exposure(job: Job, strategies: Strategies) -> Exposure:
    """Facts about the communication of these strategies, shape (N,) by term.

    Groups are taken to start at the first rank of an island. A group that straddles two islands although it would fit one is
    counted as inside; its price (`hardware.placement`) is exact, and only the width of its range is affected.
    """
    s, cluster = strategies, job.cluster
    island = max(cluster.gpus_per_node, min(cluster.nvlink_domain_gpus, cluster.num_gpus))
    extents = {
        # A group of this size and stride reaches this many consecutive ranks; more than an island holds must cross
        # the network.
        "tp_comm": s.tp, "cp_comm": s.tp * s.cp, "ep_comm": s.etp * s.ep, "pp_comm": s.world,
        "dp_comm": s.tp * s.dp_cp, "tied_embedding_comm": np.where(s.pp > 1, s.world, s.tp),
    }  # fmt: skip
    assert set(extents) == set(COMMUNICATION)
    overlaps = {
        "tp_comm": s.overlap_tp_comm, "ep_comm": s.overlap_moe_all_to_all, "pp_comm": s.overlap_p2p,
        "dp_comm": s.overlap_grad_reduce | s.overlap_param_gather,
    }  # fmt: skip
    return Exposure(
        crosses={name: np.asarray(extent > island) for name, extent in extents.items()},
        overlaps={name: np.asarray(flag, np.bool_) for name, flag in overlaps.items()},
        beside={
            # Pipelined tensor parallelism and overlapped experts are priced with constants that no profile replaces.
            "tp_comm": Tier.NOMINAL, "ep_comm": Tier.NOMINAL, "pp_comm": _tier(job, "send_recv"),
            "dp_comm": max(_tier(job, "all_gather"), _tier(job, "reduce_scatter")),
        },
    )  # fmt: skip


def _tier(job: Job, op: Op) -> Tier:
    """Tier of an operation beside computation: at best interpolated, since the job's sizes are not the measured ones."""
    return max(job.calibration.beside[op].tier, Tier.INTERPOLATED)
