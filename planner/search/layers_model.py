"""One strategy whose split over the pipeline is open: what each stage may hold, and what a whole split then costs.

Everything is asked of the cost models: seconds and parameters per layer and end, memory of every stage by its own
micro-batches in flight, and the once-a-step costs of the fullest stage. A *choice* is what one stage holds, as layers of
each kind and layers recomputed. Array suffixes: C choices of a stage, J layer kinds, N asked splits.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Protocol

import numpy as np

from cost_models.job import Job
from cost_models.layouts import Layout
from cost_models.stages import micro_batch_costs
from cost_models.step import jitter_fraction, once_a_step
from cost_models.strategy import Bools, Floats, Ints, Schedule, Strategies
from planner.search.lone_stages import chunk_layers, fits_alone
from planner.search.stage_contents import own_counts, products_of, runs_of

PRICED_SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.GPIPE)
"""Schedules whose bubble is the other stages' time over the virtual stages; zero-bubble ones keep the even split."""
MOST_CHOICES = 40_000
"""Choices over all stages above which a model is not built: the bound on stage time prunes far below this."""


@dataclass(frozen=True, eq=False)
class SplitNumbers:
    """What stages of N strategies are made of: shape (J, N) or (N,)."""

    layer_JN: Floats
    """Seconds per micro-batch of one layer, full recomputation left out; likewise again_JN for that alone."""
    again_JN: Floats
    forward_JN: Floats
    waits_JN: Floats
    """Seconds of one layer's passes that wait for the host."""
    dense_JN: Floats
    """Parameters on one rank."""
    expert_JN: Floats
    first: Floats
    """Seconds per micro-batch that only the first stage has."""
    last: Floats
    embedding: Floats
    head: Floats
    word: Floats
    """Of these the vocabulary's share."""

    def take(self, index: Ints) -> SplitNumbers:
        """The numbers of the strategies at these positions."""
        return SplitNumbers(**{field.name: getattr(self, field.name)[..., index] for field in fields(self)})


def split_numbers(job: Job, rows: Strategies) -> SplitNumbers:
    """The numbers of these strategies, from the cost models."""
    per, layers, held = micro_batch_costs(job, rows)
    return SplitNumbers(
        layer_JN=per.layer_JN,
        again_JN=per.again_JN,
        forward_JN=layers.cases.spread(layers.forward_JU),
        waits_JN=per.waits_JN,
        dense_JN=held.dense_JN,
        expert_JN=held.expert_JN,
        first=per.first,
        last=per.last,
        embedding=held.embedding,
        head=held.head,
        word=held.word,
    )


@dataclass(frozen=True, eq=False)
class StageChoices:
    """What one stage may hold within its memory, in rising order of layers."""

    contents_CJ: Ints
    recomputed: Ints
    """Layers fully recomputed: the fewest that fit where every stage may choose, else what the strategy says."""
    time_s: Floats
    """Seconds per micro-batch."""
    dense: Floats
    """Parameters on one rank, routed experts left out."""
    expert: Floats

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def layers(self) -> Ints:
        """Layers of all kinds."""
        return np.asarray(self.contents_CJ.sum(axis=1))

    def take(self, index: Ints | Bools) -> StageChoices:
        """The choices at these positions, or where the mask holds."""
        return StageChoices(
            self.contents_CJ[index], self.recomputed[index], self.time_s[index], self.dense[index], self.expert[index]
        )


class OpenModel(Protocol):
    """What is common to the open splits of one strategy, on one kind of node or on pools."""

    @property
    def pp(self) -> int: ...
    @property
    def vpp(self) -> int: ...
    @property
    def choices(self) -> tuple[StageChoices, ...]: ...
    @property
    def kind_of_layer(self) -> Ints: ...
    @property
    def row(self) -> Strategies: ...
    @property
    def factor(self) -> float: ...
    @property
    def unit_s(self) -> float: ...


@dataclass(frozen=True, eq=False)
class SplitModel:
    """The open split of one strategy."""

    job: Job
    row: Strategies
    """The strategy, a batch of one; its own layout only says pp and vpp."""
    choices: tuple[StageChoices, ...]
    kind_of_layer: Ints
    """Kind of every decoder layer, in model order."""
    per_stage_recompute: bool
    work_s: float
    """Seconds per micro-batch of all stages together, full recomputation left out."""
    again_s: float
    """What one recomputed layer adds to it: the pipeline's sum takes the model's average layer."""
    forward_J: Floats
    waits_J: Floats
    word: Floats
    """The vocabulary's share of parameters on one rank, shape (1,)."""

    @property
    def pp(self) -> int:
        return len(self.choices)

    @property
    def vpp(self) -> int:
        return int(self.row.vpp[0])

    @property
    def unit_s(self) -> float:
        """Seconds of an average stage per micro-batch."""
        return self.work_s / self.pp

    @property
    def is_feasible(self) -> bool:
        """Whether every stage has something that it can hold."""
        return all(len(choices) for choices in self.choices)

    def pipeline_s(self, slowest_s: Floats, recomputed: Floats) -> Floats:
        """Seconds of the slowest stage over a step and of the bubble, from its time and all recomputed layers. [P-1]"""
        others = np.maximum(self.work_s + self.again_s * recomputed - slowest_s, 0.0)
        bubble = others / self.vpp if self.row.schedule[0] == Schedule.INTERLEAVED else others
        return np.asarray(self.row.num_micro_batches[0] * slowest_s + bubble)

    def once_s(self, *, contents_NJ: Ints, slowest_s: Floats, dense: Floats, expert: Floats) -> Floats:
        """Seconds of what happens once a step, from the slowest stage's contents and the fullest parameters, shape (N,)."""
        n = len(slowest_s)
        rows = self.row.take(np.zeros(n, np.int64))
        forward_s = contents_NJ @ self.forward_J
        terms, _ = once_a_step(
            self.job,
            rows,
            dense=np.broadcast_to(dense, n).astype(np.float64),
            expert=np.broadcast_to(expert, n).astype(np.float64),
            forward_s=forward_s + contents_NJ @ self.waits_J,
            backward_s=np.maximum(slowest_s - forward_s, 0.0),
            layers=contents_NJ.sum(axis=1).astype(np.float64),
            word=np.broadcast_to(self.word, n),
        )
        return np.asarray(np.sum(list(terms.values()), axis=0))

    def step_s(self, picked: list[int]) -> float:
        """Seconds of a step with one choice for each stage. [T-1]"""
        chosen = [choices.take(np.array([index])) for choices, index in zip(self.choices, picked, strict=True)]
        times = np.array([choice.time_s[0] for choice in chosen])
        slowest = chosen[int(times.argmax())]
        once_s = self.once_s(
            contents_NJ=slowest.contents_CJ,
            slowest_s=slowest.time_s,
            dense=np.array([max(choice.dense[0] for choice in chosen)]),
            expert=np.array([max(choice.expert[0] for choice in chosen)]),
        )
        recomputed = np.array([sum(choice.recomputed[0] for choice in chosen)])
        return float((self.pipeline_s(slowest.time_s, recomputed) + once_s)[0]) * self.factor

    @property
    def factor(self) -> float:
        """What straggling multiplies a step with: the same for every split."""
        return 1.0 + float(jitter_fraction(self.job, self.row)[0])

    def layout(self, picked: list[int]) -> Layout:
        """The layout of one choice for each stage."""
        totals = [int(choices.layers[index]) for choices, index in zip(self.choices, picked, strict=True)]
        recomputed = [int(choices.recomputed[index]) for choices, index in zip(self.choices, picked, strict=True)]
        return Layout(
            pp=self.pp,
            vpp=self.vpp,
            layers=layers_in_order(totals, self.vpp),
            recompute_per_stage=tuple(recomputed) if self.per_stage_recompute else None,
        )


def layers_in_order(totals: list[int], vpp: int) -> tuple[int, ...]:
    """Layers of each virtual stage in model order, from the layers of each stage."""
    pp = len(totals)
    chunks = [chunk_layers(total, vpp, is_last=stage == pp - 1) for stage, total in enumerate(totals)]
    return tuple(chunks[stage][chunk] for chunk in range(vpp) for stage in range(pp))


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


def slowest_allowed_s(rows: Strategies, work_s: Floats, limit_s: Floats) -> Floats:
    """Longest stage time with which the slowest stage and the bubble alone stay below a step time, shape (N,)."""
    share = np.where(rows.schedule == Schedule.INTERLEAVED, 1.0 / rows.vpp, 1.0)
    rest = np.maximum(rows.num_micro_batches - share, 1e-12)
    allowed = np.where(rows.num_micro_batches > share, (limit_s - work_s * share) / rest, limit_s)
    return np.asarray(np.where(np.isfinite(limit_s), allowed, np.inf))


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
        everything = StageChoices(held, count, seconds, dense, held @ numbers.expert_JN[:, 0])
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
