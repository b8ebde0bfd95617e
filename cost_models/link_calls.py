"""Seconds of moving one unit's bytes in several collective calls, and of what a framework does around each."""

from __future__ import annotations

import numpy as np

from cost_models.constants import LIST_CALL_S, LIST_SLICE_S, LIST_TRAFFIC
from cost_models.estimate import Estimate
from cost_models.job import Job
from cost_models.link_tables import Op
from cost_models.placement import Placement
from cost_models.strategy import Floats


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
