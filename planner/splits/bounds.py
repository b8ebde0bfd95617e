"""A step time that no split of a strategy's layers over its stages beats, for many strategies at once.

Array suffixes: J layer kinds, N strategies.
"""

from __future__ import annotations

import numpy as np

from cost_models.constants import BACKWARD_USABLE
from cost_models.job import Job
from cost_models.step.offload import is_offloaded
from cost_models.step.total import jitter_fraction, once_a_step
from cost_models.strategies.fields import Schedule
from cost_models.strategies.strategy import Floats, Strategies
from planner.splits.model import SplitNumbers

# Longer than any communication: passes of this length hide everything that can hide.
_HIDES_ALL_S = 1e30
# With equal layers the slowest stage holds the average and at most a few more, which make room for the ends of the model.
_MORE_LAYERS = 5
"""Layers above the average that are tried for the slowest stage."""


def split_bound_s(job: Job, rows: Strategies, numbers: SplitNumbers) -> Floats:
    """Seconds of a step that no split of these strategies beats, memory aside; full recomputation costs nothing here.

    The slowest stage takes at least the average, and at least what whole layers come to; the fullest one holds at least the
    average; the passes hide as much of the reduction as the slowest stage could.
    """
    kinds = job.model.distinct_kinds
    counts_J = np.array([float(job.model.layer_kinds.count(kind)) for kind in kinds])
    work_s = counts_J @ numbers.layer_JN + numbers.first + numbers.last
    slowest_s = np.maximum(work_s / rows.pp, np.maximum(numbers.first, numbers.last))
    if len(kinds) == 1:
        slowest_s = np.maximum(
            slowest_s, whole_layers_s(numbers.layer_JN[0], rows.pp, numbers.first, numbers.last, counts_J[0])
        )
    m, share = rows.num_micro_batches, np.where(rows.schedule == Schedule.INTERLEAVED, rows.vpp, 1.0)
    # A second more of the slowest stage takes m - 1/v of them, and hides up to BACKWARD_USABLE of its backward for each
    # reduction and of its forward for the gather, of a wait for the host in both: where that could be more, everything
    # counts as hidden.
    reductions = np.where(rows.grad_sync_each, m, 1.0)
    hides = BACKWARD_USABLE.value * (reductions + (numbers.waits_JN > 0).any(axis=0))
    enough = (m - 1.0 / share >= hides) & ~is_offloaded(rows)  # offloaded traffic hides in every pass
    passes_s = np.where(enough, slowest_s, _HIDES_ALL_S)
    ends = numbers.embedding + numbers.head
    terms, _ = once_a_step(
        job,
        rows,
        dense=(counts_J @ numbers.dense_JN + ends) / rows.pp,
        expert=counts_J @ numbers.expert_JN / rows.pp,
        forward_s=passes_s,
        backward_s=passes_s,
        layers=np.full(len(rows), counts_J.sum()),
        word=numbers.word,
    )
    terms.pop("tied_embedding_comm")  # part of it grows with the slowest stage's layers
    total_s = m * slowest_s + (work_s - slowest_s) / share + np.sum(list(terms.values()), axis=0)
    return np.asarray(total_s * (1.0 + jitter_fraction(job, rows)))


def whole_layers_s(layer_s: Floats, pp: Floats, first_s: Floats, last_s: Floats, num_layers: float) -> Floats:
    """Least slowest stage that holds whole layers of one kind: the smallest time under which they all find a place."""
    least = np.full(len(layer_s), np.inf)
    average = np.floor((num_layers * layer_s + first_s + last_s) / pp / layer_s)
    for end_s in (np.zeros(len(layer_s)), first_s, last_s):
        start = np.maximum(average - np.ceil(end_s / layer_s), 0.0)  # fewer layers would be below the average
        of_end = (start + _MORE_LAYERS) * layer_s + end_s  # no less than that where none of those tried is enough
        for more in reversed(range(_MORE_LAYERS)):
            tried = (start + more) * layer_s + end_s
            room = np.floor((tried - first_s) / layer_s + 1e-9) + np.floor((tried - last_s) / layer_s + 1e-9)
            room = room + (pp - 2.0) * np.floor(tried / layer_s + 1e-9)
            fits = (room >= num_layers) & (tried >= np.maximum(first_s, last_s) * (1.0 - 1e-12))
            of_end = np.where(fits, tried, of_end)
        least = np.minimum(least, of_end)
    return least
