"""What replicas would save if they did not wait for each other at every step: a what-if by simulation, since no framework here does so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.constants import GPU_SPREAD
from cost_models.replicas.staleness import stale_step_ratio
from planner.answer.comparison import RUN_TO_RUN

STALENESSES: tuple[int | None, ...] = (1, 3, None)
"""Steps that a replica may be ahead of the slowest; None means that nobody ever waits."""
_STEPS = 400
MOST_WORKERS = 1024
"""Replicas that are simulated at most; the slowest of more is hardly slower."""


def asynchrony(plan: Mapping[str, Any], *, seed: int) -> list[dict[str, Any]]:
    """The contract's `asynchrony` of a ranked plan: its step under each staleness. [T-10]

    Args:
        plan: a ranked plan with its evaluation.
        seed: of the simulation.
    """
    workers = min(int(plan["strategy"]["dp"]), MOST_WORKERS)
    step_s = float(plan["evaluation"]["step_time_s"])

    def ratio(staleness: int) -> float:
        # GPUs of one kind differ for good by their spread; two runs of one plan differ by as much as noise leaves.
        return stale_step_ratio(
            workers, staleness, noise=RUN_TO_RUN, spread=GPU_SPREAD.value, steps=_STEPS, runs=3, seed=seed
        )

    if workers < 2:
        return []
    waits = ratio(0)
    found = []
    for staleness in STALENESSES:
        share = ratio(_STEPS if staleness is None else staleness) / waits
        found.append(
            {
                "staleness": staleness,
                "num_workers": workers,
                "step_time_s": step_s * share,
                "saved_fraction": 1.0 - share,
                "noise_fraction": RUN_TO_RUN,
                "spread_fraction": GPU_SPREAD.value,
            }
        )
    return found
