"""One batch of strategies with what every memory formula reads: traits, stage contents, and sizes per distinct
combination.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from cost_models.frameworks import MemoryTraits, memory_traits
from cost_models.job import Job
from cost_models.memory.in_flight import StageContents, stage_contents
from cost_models.memory.layer_table import LayerTable, layer_table
from cost_models.strategies.strategy import Floats, Strategies

NOTHING: Final = np.zeros(())
"""A term that is zero everywhere; sums skip it."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Everything that the stage formulas read."""

    job: Job
    traits: MemoryTraits
    strategies: Strategies
    stages: StageContents
    table: LayerTable

    @cached_property
    def end_words(self) -> tuple[Floats, Floats]:
        """Elements of a rank's part of the vocabulary matrix, shape (K, N) each: where the slot holds the embedding, and
        the head.
        """
        stages, table = self.stages, self.table
        return np.where(stages.first_KN, table.word, 0.0), np.where(stages.head_KN, table.head_word, 0.0)

    @cached_property
    def deferred(self) -> Floats:
        """1 where the gradients of all micro-batches accumulate unsharded before one reduction, else 0, shape (N,). [M-9]"""
        strategies = self.strategies
        pipelined = (strategies.pp > 1) & self.traits.defers_pipeline_reduction
        several = (strategies.zero >= 2) & (strategies.num_micro_batches > 1)
        return (several & (pipelined | ~strategies.grad_sync_each)).astype(np.float64)


def build_batch(job: Job, strategies: Strategies) -> Batch:
    """The batch; costs of layers are computed once per distinct combination of axes."""
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
