"""What "best" means: one number per strategy, of which less is better, and a bound on it from a bound on step time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.job import Job
from cost_models.strategies.strategy import Floats, Strategies
from planner.schemas.plan_request import Objective, Targets

RELATIVE_STEP = 1e-6
"""Relative step to which times are rounded before they are compared (contract), so that the last bits of a sum decide nothing."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The objective of a request."""

    objective: Objective
    slowest_step_s: float
    """The longest step that still reaches the targets; infinite where there are none."""

    def value(self, strategies: Strategies, step_s: Floats) -> Floats:
        """The value that is minimised, shape (N,): seconds, GPU-seconds, or GPUs plus a fraction that grows with the time."""
        return self.value_of_world(strategies.world, step_s)

    def value_of_world(self, world: Floats, step_s: Floats) -> Floats:
        """The same from the number of GPUs in use."""
        # t / (1 + t) stays below 1 and rises with t: among plans on equally many GPUs the fastest wins, and no time outweighs a
        # whole GPU.
        if self.objective == "cost":
            return rounded(step_s * world)
        if self.objective == "fewest_gpus":
            return world + rounded(step_s) / (1.0 + rounded(step_s))
        return rounded(step_s)

    def longest_step_s(self, world: float, value: float) -> float:
        """The longest step on this many GPUs that reaches the targets and whose value is at most `value`."""
        limit_s = value
        if self.objective == "cost":
            limit_s = value / world
        elif self.objective == "fewest_gpus":
            share = value - world  # t / (1 + t)
            limit_s = np.inf if share >= 1.0 else share / (1.0 - share) if share > 0.0 else 0.0
        return float(min(limit_s * (1.0 + RELATIVE_STEP), self.slowest_step_s))

    def reached(self, step_s: Floats) -> NDArray[np.bool_]:
        """Which strategies meet the targets."""
        return np.asarray(step_s <= self.slowest_step_s, np.bool_)


def build_goal(job: Job, objective: Objective, targets: Targets) -> Goal:
    """The goal of a request; a deadline needs `training.total_tokens`."""
    tokens = job.training.tokens_per_step
    limits = [np.inf]
    if targets.min_tokens_per_s is not None:
        limits.append(tokens / targets.min_tokens_per_s)
    if targets.deadline_h is not None and job.training.total_tokens is not None:
        limits.append(targets.deadline_h * 3600.0 * tokens / job.training.total_tokens)
    return Goal(objective=objective, slowest_step_s=float(min(limits)))


def without_targets() -> Goal:
    """The goal of the fastest plan, regardless of a request's targets."""
    return Goal(objective="step_time", slowest_step_s=float(np.inf))


def rounded(seconds: Floats) -> Floats:
    """Seconds rounded to RELATIVE_STEP of their own size."""
    safe = np.maximum(seconds, 1e-300)
    scale = 10.0 ** np.floor(np.log10(safe)) * RELATIVE_STEP
    return np.asarray(np.round(safe / scale) * scale)


# Equal values are common, for instance where a knob has no effect. Ordering them by their degrees makes equal requests give
# equal answers, however the search was cut into blocks.
TIE_BREAK_FIELDS = (
    "tp", "pp", "cp", "dp", "ep", "etp", "vpp", "zero", "zero_shard_size", "zero_param_shard_size",
    "micro_batch_size", "recompute", "recompute_method", "recompute_num_layers", "sequence_parallel", "schedule", "layout",
)  # fmt: skip


def ranked_order(values: Floats, strategies: Strategies, *, last: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Positions from best to worst: by value, then by degrees. Rows marked `last` come after all others."""
    keys = [getattr(strategies, name) for name in reversed(TIE_BREAK_FIELDS)]
    return np.lexsort((*keys, values, last))
