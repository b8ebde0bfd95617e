"""From one strategy to the model of its open split: which choices each stage has, what each takes, and which fit.

Array suffixes as in `planner.splits.model`: C choices of a stage, J layer kinds, N asked splits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cost_models.job import Job
from cost_models.strategies.strategy import Bools, Ints, Strategies
from planner.splits.lone_stages import fits_alone
from planner.splits.model import (
    MOST_CHOICES,
    SplitModel,
    SplitNumbers,
    StageChoices,
    slowest_allowed_s,
    split_numbers,
)
from planner.splits.stage_contents import own_counts, products_of, runs_of


def build_split_model(
    job: Job,
    row: Strategies,
    *,
    headroom_fraction: float,
    limit_s: float,
    per_stage_recompute: bool = False,
    numbers: SplitNumbers | None = None,
) -> SplitModel | None:
    """The model of one strategy, None where no split of it takes less than `limit_s` seconds a step, memory aside.

    Args:
        job: what is planned.
        row: one strategy; with `per_stage_recompute` its recomputation is `full`, and each stage takes the fewest layers.
        headroom_fraction: share of capacity that stays free.
        limit_s: step time to beat; infinite where nothing is known.
        per_stage_recompute: whether stages recompute counts of their own.
        numbers: of this strategy, where they are known.
    """
    builder = _Builder(
        job, row, numbers or split_numbers(job, row), headroom_fraction, per_stage_recompute=per_stage_recompute
    )
    return builder.model(limit_s)


class _Builder:
    """Numbers of one strategy on the way to a model."""

    def __init__(
        self, job: Job, row: Strategies, numbers: SplitNumbers, headroom_fraction: float, *, per_stage_recompute: bool
    ) -> None:
        assert len(row) == 1
        self.job, self.row, self.headroom_fraction = job, row, headroom_fraction
        self.own_counts = per_stage_recompute
        self.pp, self.vpp = int(row.pp[0]), int(row.vpp[0])
        self.numbers = numbers
        self.layer_J, self.again_J = numbers.layer_JN[:, 0], numbers.again_JN[:, 0]
        self.first_s, self.last_s = float(numbers.first[0]), float(numbers.last[0])
        kinds = job.model.distinct_kinds
        self.kind_of_layer = np.array([kinds.index(kind) for kind in job.model.layer_kinds])
        self.counts_J = np.bincount(self.kind_of_layer, minlength=len(kinds))

    def model(self, limit_s: float) -> SplitModel | None:
        """The model under a step time to beat."""
        num_layers = len(self.kind_of_layer)
        self.work_s = float(self.counts_J @ self.layer_J) + self.first_s + self.last_s
        bare = SplitModel(
            job=self.job,
            row=self.row,
            choices=(),
            kind_of_layer=self.kind_of_layer,
            per_stage_recompute=self.own_counts,
            work_s=self.work_s,
            again_s=float(self.counts_J @ self.again_J) / num_layers,
            forward_J=self.numbers.forward_JN[:, 0],
            waits_J=self.numbers.waits_JN[:, 0],
            word=self.numbers.word,
        )
        cap_s = self._slowest_allowed_s(limit_s / bare.factor)
        contents = [self._contents(stage, cap_s) for stage in range(self.pp)]
        if any(not len(found) for found in contents):
            return None
        contents = self._within_reach(contents, num_layers)
        if any(not len(found) for found in contents) or sum(map(len, contents)) > MOST_CHOICES:
            return None
        choices = tuple(choice.take(choice.time_s <= cap_s) for choice in self._fitting(contents))
        return replace(bare, choices=choices)

    def _slowest_allowed_s(self, limit_s: float) -> float:
        return float(slowest_allowed_s(self.row, np.array([self.work_s]), np.array([limit_s]))[0])

    def _end_s(self, stage: int) -> float:
        return self.first_s * (stage == 0) + self.last_s * (stage == self.pp - 1)

    def _contents(self, stage: int, cap_s: float) -> Ints:
        """Layers of each kind that a stage can hold within this time, shape (C, J)."""
        ends = (stage == 0) + (stage == self.pp - 1)
        least = max(self.vpp - ends, 0)  # a chunk without layers is one that holds an end of the model
        found = self._windows() if self.vpp == 1 else self._products()
        totals = found.sum(axis=1)
        counts = self._own_counts(totals)
        seconds = found @ self.layer_J + counts / np.maximum(totals, 1) * (found @ self.again_J) + self._end_s(stage)
        return np.asarray(found[(totals >= least) & (seconds <= cap_s * (1.0 + 1e-12))])

    def _windows(self) -> Ints:
        """Contents of every run of consecutive layers."""
        return runs_of(tuple(self.kind_of_layer.tolist()))

    def _products(self) -> Ints:
        return products_of(self.counts_J)

    @staticmethod
    def _within_reach(contents: list[Ints], num_layers: int) -> list[Ints]:
        """Contents with which the other stages can hold the rest."""
        totals = [found.sum(axis=1) for found in contents]
        most, least = sum(int(total.max()) for total in totals), sum(int(total.min()) for total in totals)
        return [
            found[(total >= num_layers - (most - total.max())) & (total <= num_layers - (least - total.min()))]
            for found, total in zip(contents, totals, strict=True)
        ]

    def _fitting(self, contents: list[Ints]) -> list[StageChoices]:
        """The choices of every stage that fit its memory, all asked of the memory model at once."""
        stage = np.repeat(np.arange(self.pp), [len(found) for found in contents])
        held = np.concatenate(contents)
        count = self._least_that_fits(stage, held)
        fits = count >= 0
        stage, held, count = stage[fits], held[fits], count[fits]
        totals = np.maximum(held.sum(axis=1), 1)
        ends = self.first_s * (stage == 0) + self.last_s * (stage == self.pp - 1)
        seconds = held @ self.layer_J + count / totals * (held @ self.again_J) + ends
        numbers = self.numbers
        dense = held @ numbers.dense_JN[:, 0] + numbers.embedding * (stage == 0) + numbers.head * (stage == self.pp - 1)
        expert = held @ numbers.expert_JN[:, 0] + numbers.head_expert * (stage == self.pp - 1)
        everything = StageChoices(held, count, seconds, dense, expert)
        return [everything.take(np.flatnonzero(stage == number)) for number in range(self.pp)]

    def _least_that_fits(self, stage: Ints, held: Ints) -> Ints:
        """Recomputed layers of each: the strategy's own, or the fewest that fit; -1 where it does not fit."""
        totals = held.sum(axis=1)
        if not self.own_counts:
            return np.where(self._fits(stage, held, None), self._own_counts(totals), -1)
        found = np.full(len(totals), -1)
        # Where layers differ, the last one's recomputation may make anew more than it frees, so both are asked.
        for most in (totals, np.maximum(totals - 1, 0))[: len(self.counts_J)]:
            rest = np.flatnonzero(found < 0)
            fits = self._fits(stage[rest], held[rest], most[rest])
            found[rest[fits]] = most[rest[fits]]
        low = np.zeros(len(totals), np.int64)
        while (rest := np.flatnonzero(low < found)).size:
            middle = (low[rest] + found[rest]) // 2
            fits = self._fits(stage[rest], held[rest], middle)
            found[rest[fits]] = middle[fits]
            low[rest[~fits]] = middle[~fits] + 1
        return found

    def _fits(self, stage: Ints, held: Ints, recomputed: Ints | None) -> Bools:
        return fits_alone(
            self.job,
            self.row.take(np.zeros(len(stage), np.int64)),
            stage=stage,
            contents_NJ=held,
            recomputed=recomputed,
            headroom_fraction=self.headroom_fraction,
        )

    def _own_counts(self, totals: Ints) -> Ints:
        """Layers that the strategy itself recomputes on stages with so many; none where each stage may choose."""
        return np.zeros_like(totals) if self.own_counts else own_counts(self.row, totals)
