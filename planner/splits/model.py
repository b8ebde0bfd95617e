"""One strategy whose split over the pipeline is open: what each stage may hold, and what a whole split then costs.

Everything is asked of the cost models: seconds and parameters per layer and end, memory of every stage by its own
micro-batches in flight, and what happens once a step. A *choice* is what one stage holds, as layers of each kind and layers
recomputed. A cluster of one kind of node has one pool; `planner.splits.one_pool` prices its splits, `planner.pools.split_model`
those over several pools. Array suffixes: C choices of a stage, J layer kinds, N asked splits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from cost_models.job import Job
from cost_models.step.stage_costs import micro_batch_costs
from cost_models.strategies.fields import Schedule
from cost_models.strategies.layouts import Layout
from cost_models.strategies.strategy import Bools, Floats, Ints, Strategies
from planner.splits.lone_stages import chunk_layers

# The bubble of these schedules follows from the stages' times alone (EQUATIONS.md P-1). Zero-bubble schedules also reorder
# weight gradients, for which no closed form holds under unequal stages.
PRICED_SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.GPIPE)
"""Schedules whose bubble is the other stages' time over the virtual stages; zero-bubble ones keep the even split."""


@dataclass(frozen=True, eq=False)
class SplitNumbers:
    """What stages of N strategies are made of: shape (J, N) or (N,)."""

    layer_JN: Floats
    """Seconds per micro-batch of one layer without full recomputation; `again_JN` holds the seconds of that alone."""
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
    """What one stage may hold within its memory; of one kind of layer in rising order."""

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
        return StageChoices(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


@dataclass(frozen=True, slots=True)
class SlowestStage:
    """A stage with one of its choices, as the slowest of a split."""

    stage: int
    choice: int
    contents_J: Ints
    time_s: float


ByChoice = Sequence[Floats]
"""A value of every choice of every stage, by stage."""


@dataclass(frozen=True, eq=False)
class SplitModel(ABC):
    """The open split of one strategy.

    A step takes m times its slowest stage, the other stages' time over the virtual stages, and what happens once a step.
    Thresholds and CP-SAT need to know of that last part only *levels*: values that every choice has, of which the largest
    over all stages decides. Bounds by levels rest on once-a-step time not falling where a level rises: more parameters, or a
    longer end of one stage, never make a step end sooner.
    """

    jobs: tuple[Job, ...]
    """What is planned, by pool."""
    row: Strategies
    """The strategy, a batch of one; its own layout only says pp and vpp."""
    pools: tuple[int, ...]
    """Pool of every stage."""
    numbers: tuple[SplitNumbers, ...]
    """By pool."""
    choices: tuple[StageChoices, ...]
    """Of every stage."""
    per_stage_recompute: bool = False
    """Whether every stage recomputes a count of its own."""

    # With one pool, any split under the same limits may be compared with the one that the dynamic program finds. With several,
    # the pool of the slowest stage decides what hides, so the limits hold only for splits that contain that very stage.
    binds_slowest = False
    """Whether the levels beside a slowest stage hold for splits that contain that stage alone."""

    @property
    def pp(self) -> int:
        return len(self.pools)

    @property
    def vpp(self) -> int:
        return int(self.row.vpp[0])

    @cached_property
    def kind_of_layer(self) -> Ints:
        """Kind of every decoder layer, in model order."""
        model = self.jobs[0].model
        kinds = model.distinct_kinds
        return np.array([kinds.index(kind) for kind in model.layer_kinds])

    @property
    def num_kinds(self) -> int:
        return len(self.jobs[0].model.distinct_kinds)

    @property
    def is_feasible(self) -> bool:
        """Whether every stage has something that it can hold."""
        return all(len(choices) for choices in self.choices)

    @cached_property
    def share(self) -> float:
        """What the bubble is multiplied with."""
        return float(virtual_share(self.row)[0])

    @property
    @abstractmethod
    def factor(self) -> float:
        """What straggling multiplies a step with: the same for every split."""

    @property
    @abstractmethod
    def unit_s(self) -> float:
        """Seconds of a typical stage per micro-batch."""

    @property
    @abstractmethod
    def weights(self) -> Sequence[Ints]:
        """By stage, whole numbers of every choice, of which the sum over all stages orders splits as `sum_s` does."""

    @property
    def layer_s(self) -> Sequence[float]:
        """Seconds by which one more layer of a model of one kind makes `sum_s` grow, by stage; their order is what counts."""
        return [0.0] * self.pp

    @abstractmethod
    def sum_s(self, picked: Sequence[int]) -> float:
        """Seconds per micro-batch of all stages together."""

    @abstractmethod
    def sum_steps(self, steps: Callable[[object], Ints]) -> tuple[int, Sequence[Ints]]:
        """`sum_s` in whole time steps: a constant, and what every choice of every stage adds."""

    def pipeline_s(self, slowest_s: Floats | float, sum_s: float) -> Floats:
        """Seconds of the slowest stage over a step and of the bubble, from its time and all stages'. [P-1]"""
        # A bound on the sum may be below the slowest stage itself; the others never take less than nothing.
        others_s = np.maximum(sum_s - slowest_s, 0.0)
        return np.asarray(self.row.num_micro_batches[0] * slowest_s + others_s * self.share)

    @property
    def fixed_levels(self) -> tuple[ByChoice, ...]:
        """Levels that are the same beside every slowest stage."""
        return ()

    @abstractmethod
    def levels_beside(self, slowest: SlowestStage) -> tuple[ByChoice, ...]:
        """The levels that decide on the once-a-step time beside this slowest stage."""

    @abstractmethod
    def once_s(self, slowest: SlowestStage, levels: Sequence[float]) -> float:
        """Seconds of what happens once a step beside this slowest stage, from the largest of each level."""

    @abstractmethod
    def once_floor_s(self, contents_NJ: Ints, slowest_s: Floats, levels: Sequence[float]) -> Floats:
        """Once-a-step seconds that no split with such a slowest stage is below, whose `fixed_levels` are no less than these."""

    @abstractmethod
    def write_once(self, program: Any, is_slowest: list[Any], times: list[Any]) -> Any:
        """The once-a-step time steps of a split as an expression of CP-SAT's, from flags that say which stage is the slowest
        and the time steps of every choice.
        """

    def slowest_at(self, time_s: float) -> list[SlowestStage]:
        """Everything that may be the slowest stage and takes exactly this long; of what prices splits alike, one."""
        found: dict[object, SlowestStage] = {}
        for stage, choices in enumerate(self.choices):
            for index in np.flatnonzero(choices.time_s == time_s).tolist():
                slowest = self.slowest(stage, index)
                found[self.alike(slowest)] = slowest
        return list(found.values())

    def slowest(self, stage: int, choice: int) -> SlowestStage:
        """This choice of this stage as the slowest of a split."""
        choices = self.choices[stage]
        return SlowestStage(stage, choice, choices.contents_CJ[choice], float(choices.time_s[choice]))

    @abstractmethod
    def alike(self, slowest: SlowestStage) -> object:
        """The same for equally slow stages beside which the other stages cost the same."""

    def step_s(self, picked: Sequence[int]) -> float:
        """Seconds of a step with one choice for each stage. [T-1] [T-5]"""
        times = [float(choices.time_s[index]) for choices, index in zip(self.choices, picked, strict=True)]
        stage = times.index(max(times))  # the first of equally slow ones, as in the cost models
        slowest = self.slowest(stage, picked[stage])
        once_s = self.once_s(slowest, largest(self.levels_beside(slowest), picked))
        return float(self.pipeline_s(slowest.time_s, self.sum_s(picked)) + once_s) * self.factor

    @property
    def pool_per_stage(self) -> tuple[str, ...] | None:
        """Names of the stages' pools, where there is more than a cluster of one kind."""
        return None

    def layout(self, picked: Sequence[int]) -> Layout:
        """The layout of one choice for each stage."""
        totals, recomputed = (
            [int(values[index]) for values, index in zip(each, picked, strict=True)]
            for each in ([c.layers for c in self.choices], [c.recomputed for c in self.choices])
        )
        return Layout(
            pp=self.pp,
            vpp=self.vpp,
            layers=layers_in_order(totals, self.vpp),
            recompute_per_stage=tuple(recomputed) if self.per_stage_recompute else None,
            pool_per_stage=self.pool_per_stage,
        )


def largest(levels: Sequence[ByChoice], picked: Sequence[int]) -> list[float]:
    """The largest of each level over the stages of a split."""
    return [float(max(each[index] for each, index in zip(level, picked, strict=True))) for level in levels]


def layers_in_order(totals: list[int], vpp: int) -> tuple[int, ...]:
    """Layers of each virtual stage in model order, from the layers of each stage."""
    pp = len(totals)
    chunks = [chunk_layers(total, vpp, is_last=stage == pp - 1) for stage, total in enumerate(totals)]
    return tuple(chunks[stage][chunk] for chunk in range(vpp) for stage in range(pp))


def virtual_share(rows: Strategies) -> Floats:
    """What the bubble is multiplied with, shape (N,)."""
    return np.where(rows.schedule == Schedule.INTERLEAVED, 1.0 / rows.vpp, 1.0)


def slowest_allowed_s(rows: Strategies, sum_s: Floats, limit_s: Floats) -> Floats:
    """Longest stage with which m times it and the bubble stay within `limit_s`, where all stages together take at least
    `sum_s` per micro-batch; shape (N,).

    m * t + (sum - t) * share <= limit, solved for t; with one micro-batch and no virtual stages t cancels.
    """
    # m * t grows with t and the bubble falls with it, the first faster unless m = share; then the limit says nothing about t.
    share = virtual_share(rows)
    rest = np.maximum(rows.num_micro_batches - share, 1e-12)
    allowed = np.where(rows.num_micro_batches > share, (limit_s - sum_s * share) / rest, limit_s)
    return np.asarray(np.where(np.isfinite(limit_s), allowed, np.inf))
