"""Bytes that the towers save for their backward on the first stage. [M-28]

Layers of a trained tower save what layers of its sizes save, or their inputs alone where they are recomputed; a frozen tower saves
nothing. The products around the layers save their inputs where they are trained, and what lies between two of them.
"""

from __future__ import annotations

import numpy as np

from cost_models.frameworks import MemoryTraits
from cost_models.job import Job
from cost_models.layers.tower_parameters import passes_of_ends, recomputes, split_by_tensor, tower_rows
from cost_models.memory.layer_table import layer_table
from cost_models.specs.tower import TowerUse
from cost_models.strategies.strategy import Floats, Strategies


def tower_saved_bytes(job: Job, traits: MemoryTraits, strategies: Strategies) -> Floats:
    """Bytes that all towers save for one micro-batch on a rank of the first stage, shape (N,). [M-28]"""
    return np.sum(saved_by_each_tower(job, traits, strategies), axis=0)  # type: ignore[no-any-return]


def saved_by_each_tower(job: Job, traits: MemoryTraits, strategies: Strategies) -> list[Floats]:
    """The same of each tower."""
    found = []
    for use, own in zip(job.training.tower_uses, job.tower_jobs, strict=True):
        saved = _ends(job, use, strategies) + _pixels(traits, use, strategies)
        found.append(saved + _layers(job, own, use, traits, strategies) if use.trained else saved)
    return found


def _layers(job: Job, own: Job, use: TowerUse, traits: MemoryTraits, strategies: Strategies) -> Floats:
    """Bytes that the layers of a trained tower save."""
    table = layer_table(own, traits, tower_rows(job, use, strategies))
    kinds = own.model.distinct_kinds
    every, largest = np.zeros(len(strategies)), np.zeros(len(strategies))
    for kind, kept, whole in zip(kinds, table.kept_J, table.whole_J, strict=True):
        every = every + own.model.layer_kinds.count(kind) * kept
        largest = np.maximum(largest, whole)
    # While one layer is made again, the inputs of all are held.
    inputs = own.model.num_layers * table.hidden
    # Counted at the start of the text model's backward, when no layer of the tower is made again yet: an upper bound there, and right
    # at the end of the backward, when the text model has freed what it saved.
    return np.where(recomputes(job, strategies), inputs + largest, every)


def _pixels(traits: MemoryTraits, use: TowerUse, strategies: Strategies) -> Floats:
    """Bytes of the images themselves, which a training loop of Hugging Face's holds in fp32 while the step runs."""
    if use.tower.sense != "vision" or not traits.huggingface_modules:
        return np.zeros(len(strategies))
    patches = use.tower.stem[0]
    return np.asarray(4.0 * strategies.micro_batch_size * use.rows * patches.per_row * patches.inputs)


def _ends(job: Job, use: TowerUse, strategies: Strategies) -> Floats:
    """Bytes that the products in front of a tower's layers and of its projector save."""
    towers, w = job.training.towers, job.training.compute_bytes
    assert towers is not None
    rows = strategies.micro_batch_size * use.rows
    split = strategies.tp if split_by_tensor(job, use) else np.ones(len(strategies))
    stem, projector = passes_of_ends(towers, use)
    saved = np.zeros(len(strategies))
    for matrix, (_, weight) in zip(use.tower.stem, stem, strict=True):
        saved = saved + w * rows * matrix.per_row * matrix.inputs * weight
    last = len(projector) - 1
    for number, (matrix, (data, weight)) in enumerate(zip(use.tower.projector, projector, strict=True)):
        each = matrix.inputs * weight * np.ones(len(strategies))
        # The activation function between two products keeps its input.
        if number < last and (data or weight):
            each = each + matrix.outputs / split
        saved = saved + w * rows * matrix.per_row * each
    return saved
