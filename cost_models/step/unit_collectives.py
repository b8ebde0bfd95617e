"""Seconds of moving one unit's bytes in several collective calls or over two kinds of group, and of what a framework does
around each call.
"""

from __future__ import annotations

import numpy as np

from cost_models.constants import LIST_CALL_S, LIST_SLICE_S, LIST_TRAFFIC
from cost_models.estimate import Estimate
from cost_models.hardware.placement import Placement
from cost_models.job import Job
from cost_models.operations import Op
from cost_models.strategies.strategy import Floats


def split_calls(job: Job, op: Op, size: Floats, placement: Placement, calls: float) -> Estimate:
    """Seconds of the unit in equal calls, one after another."""
    estimate = job.calibration.collective_s(op, size / calls, placement=placement)
    return Estimate(estimate.seconds * calls, estimate.tier) if calls != 1.0 else estimate


def listed_calls(job: Job, op: Op, size: Floats, placement: Placement, calls: float) -> Estimate:
    """The same on lists of slices: around each a copy per rank, the tensor moved in memory, and a host that waits. [C-14]"""
    estimate = split_calls(job, op, size, placement, calls)
    memory_s = LIST_TRAFFIC[op] * size / job.calibration.memory_bytes_per_s_effective.value
    around_s = calls * (LIST_CALL_S.value + placement.ranks * LIST_SLICE_S.value) + memory_s
    return Estimate(np.where(placement.ranks > 1, estimate.seconds + around_s, 0.0), estimate.tier)


def reduce_in_shards(job: Job, size: Floats, shard: Placement, replica: Placement | None, calls: float) -> Estimate:
    """Reduce-scatter inside a shard group, then all-reduce of each shard across the groups."""
    scatter = split_calls(job, "reduce_scatter", size, shard, calls)
    across = reduce_across(job, size, shard, replica, calls)
    return Estimate(scatter.seconds + across.seconds, np.maximum(scatter.tier, across.tier))


def reduce_across(job: Job, size: Floats, shard: Placement, replica: Placement | None, calls: float) -> Estimate:
    """All-reduce of each shard across the groups that hold a copy of the state."""
    if replica is None or np.all(replica.ranks == 1):
        return Estimate(np.zeros(len(size)), np.zeros(len(size), np.int8))
    return split_calls(job, "all_reduce", size / shard.ranks, replica, calls)
