"""Seconds of moving the bytes of one unit (a layer, say) in several collective calls, or over two kinds of group.

Some frameworks also copy and wait around each call; `listed_calls` adds what that takes.
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
    """Seconds of `size` bytes moved in equal calls, one after another, shape of `size`, and their tier."""
    estimate = job.calibration.collective_s(op, size / calls, placement=placement)
    return Estimate(estimate.seconds * calls, estimate.tier) if calls != 1.0 else estimate


def listed_calls(job: Job, op: Op, size: Floats, placement: Placement, calls: float) -> Estimate:
    """Seconds of `size` bytes moved in calls on lists of slices, as DeepSpeed made them until mid-2021. [C-14]

    Around every call PyTorch copies one slice per rank, the tensor is moved through memory several times, and the host waits
    for the device.
    """
    estimate = split_calls(job, op, size, placement, calls)
    memory_s = LIST_TRAFFIC[op] * size / job.calibration.memory_bytes_per_s_effective.value
    around_s = calls * (LIST_CALL_S.value + placement.ranks * LIST_SLICE_S.value) + memory_s
    # The copies and the host's wait follow one another, so they add to the link time instead of hiding behind it.
    return Estimate(np.where(placement.ranks > 1, estimate.seconds + around_s, 0.0), estimate.tier)


def reduce_in_shards(job: Job, size: Floats, shard: Placement, replica: Placement | None, calls: float) -> Estimate:
    """Seconds of a reduce-scatter inside a shard group and an all-reduce of each shard across the groups, and their tier."""
    scatter = split_calls(job, "reduce_scatter", size, shard, calls)
    across = reduce_across(job, size, shard, replica, calls)
    return Estimate(scatter.seconds + across.seconds, np.maximum(scatter.tier, across.tier))


def reduce_across(job: Job, size: Floats, shard: Placement, replica: Placement | None, calls: float) -> Estimate:
    """Seconds of an all-reduce of each shard across the groups that hold a copy of the state, and their tier."""
    if replica is None or np.all(replica.ranks == 1):
        return Estimate(np.zeros(len(size)), np.zeros(len(size), np.int8))
    return split_calls(job, "all_reduce", size / shard.ranks, replica, calls)
