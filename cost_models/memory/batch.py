"""One batch of strategies with what every memory formula reads: traits, stage contents, per-combination sizes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from cost_models.frameworks.memory_traits import MemoryTraits, memory_traits
from cost_models.job import Job
from cost_models.memory.in_flight import StageContents, stage_contents
from cost_models.memory.layer_table import LayerTable, layer_table
from cost_models.strategies.strategy import Floats, Strategies

NOTHING: Final = np.zeros(())
"""A term that is zero everywhere; sums skip it."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs of the stage formulas."""

    job: Job
    traits: MemoryTraits
    strategies: Strategies
    stages: StageContents
    table: LayerTable

    @cached_property
    def end_words(self) -> tuple[Floats, Floats]:
        """Elements of the vocabulary's share where a slot holds the embedding, and where the head; (K, N) each."""
        stages, word = self.stages, self.table.word
        return np.where(stages.first_KN, word, 0.0), np.where(stages.head_KN, word, 0.0)

    @cached_property
    def deferred(self) -> Floats:
        """1 where gradients of all micro-batches accumulate unsharded before one reduction, shape (N,)."""
        strategies = self.strategies
        pipelined = (strategies.pp > 1) & self.traits.defers_pipeline_reduction
        several = (strategies.zero >= 2) & (strategies.num_micro_batches > 1)
        return (several & (pipelined | ~strategies.grad_sync_each)).astype(np.float64)


def build_batch(job: Job, strategies: Strategies) -> Batch:
    """The batch, its layer costs computed once per distinct combination."""
    traits = memory_traits(job.training)
    return Batch(
        job=job,
        traits=traits,
        strategies=strategies,
        stages=stage_contents(
            strategies,
            mtp_layers=job.mtp_num_layers,
            mtp_kind=job.model.distinct_kinds.index(job.model.layer_kinds[-1]),
        ),
        table=layer_table(job, traits, strategies),
    )
