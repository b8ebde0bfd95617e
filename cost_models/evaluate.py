"""Every cost of a batch of strategies: named time terms that sum to the step time, memory per stage, ranges, verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from cost_models.memory import StageMemory
from cost_models.strategy import Codes, Floats, Strategies


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
    """Low end of the 80 % interval."""
    step_time_high_s: Floats
    terms_s: Mapping[str, Floats]
    """One entry per name of `terms.TIME_NAMES`; they sum to step_time_s."""
    tiers: Mapping[str, Codes]
    """`terms.Tier` of each time term."""
    worst_tier: Codes
    """Worst tier among the terms that take time."""
    memory: StageMemory
    host_bytes_per_node: Floats
    verdict: Codes
    """Codes of `Verdict`."""
