"""What an answer says of the moving average of the weights: where it lies, who shares a copy, and what it takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from cost_models.job import Job
from cost_models.memory.averages import averaged_bytes, is_sharded, lies_on_host
from cost_models.step.averages import average_s
from cost_models.step.stage_parameters import dense_by_slot, expert_by_slot, trained_rank_parameters
from cost_models.strategies.strategy import Strategies
from cost_models.units import GIB


def average_parts(job: Job, strategies: Strategies, index: int) -> dict[str, Any]:
    """The key `ema` of strategy `index`; nothing where no average is kept."""
    if job.training.ema is None:
        return {}
    row = strategies.take(np.array([index]))
    held = trained_rank_parameters(job, row)
    parts = {"dense": dense_by_slot(held, row).max(axis=0), "expert": expert_by_slot(held, row).max(axis=0)}
    return {
        "ema": {
            "device": "cpu" if lies_on_host(job, row)[0] else "gpu",
            "dtype": job.training.param_dtype,
            "sharded": bool(is_sharded(job, row)[0]),
            "gib_per_rank": float(averaged_bytes(job, row, **parts)[0]) / GIB,
            "step_s": float(average_s(job, row, **parts)[0]),
        }
    }
