"""What a row leaves open makes its memory range wider: the low end is that of the leanest reading of the unstated facts.

A run whose recomputation or cross entropy is not stated is priced with the framework's default, but it may have run
otherwise; calling it out of memory because of a default would be inventing a fact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cost_models.evaluate import DEFAULT_HEADROOM_FRACTION, Evaluated, Verdict, memory_verdict
from cost_models.job import Job
from cost_models.memory import stage_memory
from cost_models.specs.training import CrossEntropy
from cost_models.strategy import Recompute, RecomputeMethod


def with_open_facts(job: Job, evaluated: Evaluated, assumed: Sequence[Mapping[str, Any]]) -> Evaluated:
    """The evaluation with the low end of each out-of-memory row's range lowered to its leanest reading.

    Args:
        job: of all rows (they may differ in the global batch).
        evaluated: N rows.
        assumed: defaults applied to each row, N mappings.
    """
    open_recompute = np.array(["recompute" in fields for fields in assumed])
    open_loss = "cross_entropy" in job.training.assumed
    rows = np.flatnonzero((evaluated.verdict == Verdict.OOM) & ~evaluated.host_exceeded & (open_recompute | open_loss))
    if not len(rows):
        return evaluated
    strategies = evaluated.strategies.take(rows)
    full = open_recompute[rows]
    leanest = replace(
        strategies,
        recompute=np.where(full, np.int8(Recompute.FULL), strategies.recompute),
        recompute_method=np.where(full, np.int8(RecomputeMethod.EVERY), strategies.recompute_method),
    )
    low = evaluated.memory.device_low.copy()
    for variant in _loss_variants(job) if open_loss else [job]:
        low[rows] = np.minimum(low[rows], stage_memory(variant, leanest).device_low)
    memory = replace(evaluated.memory, device_low=low)
    verdict, host_exceeded = memory_verdict(job, memory, headroom_fraction=DEFAULT_HEADROOM_FRACTION)
    return replace(evaluated, memory=memory, verdict=verdict, host_exceeded=host_exceeded)


def _loss_variants(job: Job) -> list[Job]:
    """The job with each lean cross entropy that its framework's users run."""
    kinds: list[CrossEntropy] = ["fused", "compiled"]
    if job.training.transformer_impl == "transformer-engine":
        kinds.append("te")
    return [replace(job, training=replace(job.training, cross_entropy=kind)) for kind in kinds]
