"""Every cost of a batch of strategies: named time terms that sum to the step time, memory per stage, ranges, verdict.

`step.total` sums the time, `step.ranges` makes its 80 % range; `memory.stage_memory` makes the peaks and their range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from cost_models.job import Job
from cost_models.memory.stage_memory import StageMemory, stage_memory
from cost_models.step.exposure import exposure
from cost_models.step.ranges import step_time_range
from cost_models.step.total import step_time
from cost_models.strategies.strategy import Codes, Floats, Strategies

DEFAULT_HEADROOM_FRACTION = 0.03
"""Share of capacity that must stay free for a plan to count as fitting (contract)."""


class Verdict(IntEnum):
    FITS = 0
    AT_RISK = 1
    OOM = 2

    @property
    def label(self) -> str:
        return ("fits", "at-risk", "oom")[self]


@dataclass(frozen=True, eq=False)
class Evaluated:
    """Costs of N strategies, arrays of shape (N,) unless a suffix says otherwise."""

    strategies: Strategies
    step_time_s: Floats
    step_time_low_s: Floats
    """Low end of the 80 % interval of the step time."""
    step_time_high_s: Floats
    terms_s: Mapping[str, Floats]
    """One entry per name of `terms.TIME_NAMES`; they sum to step_time_s."""
    tiers: Mapping[str, Codes]
    """`terms.Tier` of each time term."""
    memory: StageMemory
    verdict: Codes
    """Codes of `Verdict`."""
    host_exceeded: np.ndarray
    """Whether offloaded state exceeds the node's memory, which is an out-of-memory of its own."""


def evaluate(job: Job, strategies: Strategies, *, headroom_fraction: float = DEFAULT_HEADROOM_FRACTION) -> Evaluated:
    """Costs of N strategies. They must be legal: `planner.rules` decides that, and nothing is checked here.

    Args:
        job: model, cluster, training and prices.
        strategies: shape (N,).
        headroom_fraction: share of the GPU's capacity that must stay free.
    """
    memory = stage_memory(job, strategies)
    verdict, host_exceeded = memory_verdict(job, memory, headroom_fraction=headroom_fraction)
    time = step_time(job, strategies)
    low, high = step_time_range(
        job.calibration, time.terms_s, time.tiers, time.total_s, exposed=exposure(job, strategies)
    )
    return Evaluated(
        strategies=strategies,
        step_time_s=time.total_s,
        step_time_low_s=low,
        step_time_high_s=high,
        terms_s=time.terms_s,
        tiers=time.tiers,
        memory=memory,
        verdict=verdict,
        host_exceeded=host_exceeded,
    )


def memory_verdict(job: Job, memory: StageMemory, *, headroom_fraction: float) -> tuple[Codes, np.ndarray]:
    """Verdict by the contract's rule, and whether host memory is what overflows; shape (N,) each.

    A plan `fits` when the high end of its memory's interval is within the limit, and is `oom` when the low end is above capacity.
    """
    capacity = job.cluster.capacity_bytes
    limit = capacity * (1.0 - headroom_fraction)
    host = job.cluster.host_memory_bytes
    host_exceeded = np.zeros(len(memory.device), np.bool_) if host is None else memory.host_bytes_per_node > host
    # The headroom applies to fitting only: a plan that would just fill the card is a risk, not a certain
    # out-of-memory.
    over = (memory.device_low > capacity) | host_exceeded
    verdict = np.where(over, Verdict.OOM, np.where(memory.device_high <= limit, Verdict.FITS, Verdict.AT_RISK))
    return verdict.astype(np.int8), host_exceeded
