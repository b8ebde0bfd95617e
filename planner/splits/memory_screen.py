"""Which open splits can hold the model at all, for many strategies at once, before any of them is built.

A stage holds no more layers than a later one that holds no end of the model, since it has more micro-batches in flight. So
the most layers that a few stages can hold, in time and in memory, bound what all of them can. Of several kinds of layer only
the commonest is placed, as if the others took neither time nor room. Array suffixes: J layer kinds, N strategies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.job import Job
from cost_models.step.total import jitter_fraction
from cost_models.strategies.fields import Recompute
from cost_models.strategies.strategy import Bools, Floats, Ints, Strategies
from planner.splits.lone_stages import fits_alone
from planner.splits.model import SplitNumbers, slowest_allowed_s

SCREENED = (0, 2, 5, 12, 30)
"""Stages that are asked beside the last two: the first ones hold the most micro-batches."""


def could_hold(
    job: Job, rows: Strategies, numbers: SplitNumbers, *, limit_s: Floats, headroom_fraction: float
) -> Bools:
    """Where the stages can hold all layers in less than `limit_s` a step, as far as this bound tells; shape (N,)."""
    counts_J = np.array([job.model.layer_kinds.count(kind) for kind in job.model.distinct_kinds])
    kind = int(counts_J.argmax())
    total = int(counts_J[kind])
    work_s = counts_J @ numbers.layer_JN + numbers.first + numbers.last
    allowed_s = slowest_allowed_s(rows, work_s, limit_s / (1.0 + jitter_fraction(job, rows))) * (1.0 + 1e-9)
    each_s, again_s = numbers.layer_JN[kind], numbers.again_JN[kind]
    most, first, last = (
        np.minimum(np.floor((allowed_s - end_s) / each_s), float(total))
        for end_s in (np.zeros(len(rows)), numbers.first, numbers.last)
    )
    possible = (first >= 0) & (last >= 0)
    room = np.where(possible, first + last + (rows.pp - 2.0) * most, -1.0)
    possible &= room >= total
    before = np.full(len(rows), -1.0)
    for stage in (*(np.full(len(rows), float(number)) for number in SCREENED), rows.pp - 2.0, rows.pp - 1.0):
        is_last = stage == rows.pp - 1
        here = np.flatnonzero(possible & (stage > before) & (is_last | (stage < rows.pp - 1)))
        here = here if is_last.all() else here[~is_last[here]]
        if not len(here):
            continue
        end_s = numbers.first * (stage == 0) + numbers.last * is_last
        in_time = np.where(is_last, last, np.where(stage == 0, first, most))[here]
        screen = _Screen(
            job,
            rows.take(here),
            stage[here].astype(np.int64),
            kind,
            allowed_s=(allowed_s - end_s)[here],
            each_s=each_s[here],
            again_s=again_s[here],
            headroom_fraction=headroom_fraction,
        )
        covered = np.where(is_last, 1.0, stage - before)[here]  # the stages since the last one asked hold no more
        least = np.maximum(in_time - np.floor((room[here] - total) / covered), 0.0)
        held = screen.most_layers(least, in_time)
        room[here] -= covered * (in_time - held)
        possible[here] = (held >= least) & (room[here] >= total)
        before[here] = stage[here]
    return np.asarray(possible)


@dataclass(frozen=True, eq=False)
class _Screen:
    """One stage of each of many strategies, shape (N,) each."""

    job: Job
    rows: Strategies
    stage: Ints
    kind: int
    """Kind of the layers that are placed."""
    allowed_s: Floats
    """Seconds per micro-batch for its layers; likewise each_s of the fastest layer, again_s to recompute one."""
    each_s: Floats
    again_s: Floats
    headroom_fraction: float

    def most_layers(self, least: Floats, most: Floats) -> Floats:
        """The most layers between these that fit, -1 where not even the least do."""
        low, high = least.astype(np.int64) - 1, most.astype(np.int64)
        while (low < high).any():
            rows = np.flatnonzero(low < high)
            middle = (low[rows] + high[rows] + 1) // 2
            fits = self._fits(rows, middle)
            low[rows[fits]] = middle[fits]
            high[rows[~fits]] = middle[~fits] - 1
        return np.where(low < least, -1.0, low)

    def _fits(self, rows: Ints, layers: Ints) -> Bools:
        """Whether so many layers fit; under full recomputation with as many recomputed as there is time for."""
        asked = self.rows.take(rows)
        time = np.maximum(self.allowed_s[rows] - layers * self.each_s[rows], 0.0)
        again = np.floor(time / np.maximum(self.again_s[rows], 1e-30) + 1e-9)
        recomputed = np.where(asked.recompute == Recompute.FULL, np.minimum(again, layers), -1).astype(np.int64)
        contents = np.zeros((len(rows), len(self.job.model.distinct_kinds)), np.int64)
        contents[:, self.kind] = layers
        return fits_alone(
            self.job,
            asked,
            stage=self.stage[rows],
            contents_NJ=contents,
            recomputed=recomputed,
            headroom_fraction=self.headroom_fraction,
        )
