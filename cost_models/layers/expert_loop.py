"""Experts that run one after another in a Python loop rather than in one grouped kernel: small products, many launches.

Hugging Face's modules picked the tokens of each expert on the host until transformers 5.0; DeepSpeed's own layer loops over
chunks of equal size. The number of tokens per expert is taken as balanced.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.constants import EXPERT_LOOP_OPS, HOST_SYNC_S
from cost_models.job import Job
from cost_models.strategies.strategy import Bools, Floats

GROUPED_EXPERTS_SINCE = "2026-02"
"""transformers 5.0.0 (2026-01-26; integrations/moe.py) runs experts as `grouped_mm` by default where PyTorch is 2.9
or later."""


@dataclass(frozen=True, slots=True)
class LoopLaunches:
    """Host seconds that the loop adds to a layer, shape of `ep`."""

    forward: Floats
    backward: Floats


def has_looped_modules(job: Job) -> bool:
    """Whether the model is made of Hugging Face's modules from before they had grouped experts.

    They are at work only where DeepSpeed does not replace them by its own layer.
    """
    modules = job.training.model_impl in ("transformers", "liger")
    return job.model.moe is not None and modules and job.training.software_date < GROUPED_EXPERTS_SINCE


def loops_over_experts(job: Job, ep: Floats) -> Bools:
    """Whether a rank's experts run one after another, shape of `ep`. [F-1] [F-4]

    Source: transformers 4.57 and 5.0 (models/qwen3_moe, deepseek_v3, integrations/moe.py); DeepSpeed's moe/experts.py, and from
    0.19.2 on its moe/ep_experts.py.
    """
    alone = np.asarray(ep == 1.0) & has_looped_modules(job)
    return np.asarray(alone | (job.framework.loops_experts & (ep > 1.0)))


def loop_launches_s(job: Job, ep: Floats, *, op_s: float) -> LoopLaunches:
    """Host seconds of the loop's operators and synchronizations, shape of `ep`; 0 where there is no loop. [F-4]

    Args:
        job: model and software.
        ep: expert-parallel ranks, shape (U,).
        op_s: host seconds of one operator.
    """
    moe = job.model.moe
    looped = loops_over_experts(job, ep)
    if moe is None or not looped.any():
        none = np.zeros_like(ep)
        return LoopLaunches(none, none)
    experts = np.where(looped, moe.num_experts / ep, 0.0)
    picks = has_looped_modules(job) & (ep == 1.0)
    ops = {
        name: np.where(picks, EXPERT_LOOP_OPS["picked", name].value, EXPERT_LOOP_OPS["chunked", name].value)
        for name in ("forward", "backward")
    }
    # Picking an expert's tokens needs their number on the host, so that each expert stops the host from running
    # ahead.
    syncs = np.where(picks, EXPERT_LOOP_OPS["picked", "syncs"].value * HOST_SYNC_S.value, 0.0)
    return LoopLaunches(experts * (ops["forward"] * op_s + syncs), experts * ops["backward"] * op_s)
