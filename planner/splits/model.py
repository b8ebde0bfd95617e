"""One strategy whose split over the pipeline is open: what each stage may hold, and what a whole split then costs.

Everything is asked of the cost models: seconds and parameters per layer and end, memory of every stage by its own
micro-batches in flight, and the once-a-step costs of the fullest stage. A *choice* is what one stage holds, as layers of
each kind and layers recomputed. Array suffixes: C choices of a stage, J layer kinds, N asked splits.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from cost_models.job import Job
from cost_models.step.stage_costs import micro_batch_costs
from cost_models.step.total import jitter_fraction, once_a_step
from cost_models.strategies.fields import Schedule
from cost_models.strategies.layouts import Layout
from cost_models.strategies.strategy import Bools, Floats, Ints, Strategies
from planner.splits.lone_stages import chunk_layers

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
    head_expert: Floats
    """Routed experts that only the last stage has."""
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
        head_expert=held.head_expert,
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


def slowest_allowed_s(rows: Strategies, work_s: Floats, limit_s: Floats) -> Floats:
    """Longest stage time with which the slowest stage and the bubble alone stay below a step time, shape (N,)."""
    share = np.where(rows.schedule == Schedule.INTERLEAVED, 1.0 / rows.vpp, 1.0)
    rest = np.maximum(rows.num_micro_batches - share, 1e-12)
    allowed = np.where(rows.num_micro_batches > share, (limit_s - work_s * share) / rest, limit_s)
    return np.asarray(np.where(np.isfinite(limit_s), allowed, np.inf))
