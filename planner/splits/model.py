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
from planner.splits.chunks import chunk_layers, most_even
from planner.splits.lone_stages import Headroom, Weights, chunk_blocks, fits_alone

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
    fsdp_JN: Floats
    """Seconds of one layer's passes that wait for its parameters and gradients."""
    dense_JN: Floats
    """Parameters on one rank."""
    expert_JN: Floats
    first: Floats
    """Seconds per micro-batch that only the first stage has."""
    last: Floats
    mtp_again: Floats
    """The part of `last` that recomputes multi-token prediction."""
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
        fsdp_JN=per.fsdp_JN,
        dense_JN=held.dense_JN,
        expert_JN=held.expert_JN,
        first=per.first,
        last=per.last,
        mtp_again=per.mtp_again,
        embedding=held.embedding if held.tower is None else held.embedding + held.tower,
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
    headroom_fraction: Headroom = 0.0
    """Share of capacity that stays free; None where plans may be at risk."""

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

    @cached_property
    def block(self) -> int:
        """Layers that every chunk recomputes at most, where the strategy counts them by chunk and stages have several; else 0."""
        return 0 if self.per_stage_recompute else int(chunk_blocks(self.row)[0])

    @property
    def is_ordered(self) -> bool:
        """Whether what the stages hold says by itself which layers these are, however they lie on the chunks."""
        return self.num_kinds == 1 or self.vpp == 1

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

    @cached_property
    def rounds(self) -> float:
        """How often the slowest stage's time counts: once a micro-batch, and for the gaps of rounds that these don't fill. [P-1]"""
        m, pp = float(self.row.num_micro_batches[0]), float(self.pp)
        return m + max(pp - m, 0.0) * (1.0 - self.share)

    def pipeline_s(self, slowest_s: Floats | float, sum_s: float) -> Floats:
        """Seconds of the slowest stage over a step and of the bubble, from its time and all stages'. [P-1]"""
        return self.closed_form_s(np.asarray(slowest_s), np.asarray(sum_s))

    def closed_form_s(self, slowest_s: Floats, sum_s: Floats) -> Floats:
        """The same for many splits; what unequal virtual stages take is no less."""
        # A bound on the sum may be below the slowest stage itself; the others never take less than nothing.
        return np.asarray(self.rounds * slowest_s + np.maximum(sum_s - slowest_s, 0.0) * self.share)

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

    @abstractmethod
    def priced(self, table: Sequence[Layout]) -> tuple[Floats, Bools]:
        """Seconds of a step of these layouts by the cost models, and whether they fit, shape (N,) each."""

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

    def counts(self, picked: Sequence[int]) -> tuple[int, ...] | None:
        """Layers that every stage recomputes, where each has a count of its own."""
        recomputed = tuple(int(each.recomputed[index]) for each, index in zip(self.choices, picked, strict=True))
        return recomputed if self.per_stage_recompute else None

    def layout(self, picked: Sequence[int], layers: tuple[int, ...] | None = None) -> Layout:
        """The layout of one choice for each stage; `layers` says what every virtual stage holds where the choices do not."""
        return self.layout_of(self.spread(picked) if layers is None else layers, self.counts(picked))

    def layout_of(self, layers: tuple[int, ...], counts: Sequence[int] | None = None) -> Layout:
        """The layout of these layers of every virtual stage."""
        again = None if counts is None else tuple(counts)
        return Layout(self.pp, self.vpp, layers, recompute_per_stage=again, pool_per_stage=self.pool_per_stage)

    def spread(self, picked: Sequence[int]) -> tuple[int, ...]:
        """Layers of every virtual stage in model order: of the chunks in which each stage fits, the most even."""
        totals = [int(choices.layers[index]) for choices, index in zip(self.choices, picked, strict=True)]
        if self.vpp == 1:
            return tuple(totals)
        graded = []
        for stage, (choices, index) in enumerate(zip(self.choices, picked, strict=True)):
            recomputed = int(choices.recomputed[index])
            graded.append(
                most_even(
                    totals[stage], self.vpp, is_last=stage == self.pp - 1, block=self.block, recomputed=recomputed
                )
            )
        stages = np.repeat(np.arange(self.pp), [len(each) for each in graded])
        fits = self.fits(stages, np.array(picked)[stages], [chunks for each in graded for chunks in each])
        # The last, leanest way is what was asked when the choices were made.
        best = [
            each[min(int(np.argmax(fits[stages == stage])), len(each) - 1)] if fits[stages == stage].any() else each[-1]
            for stage, each in enumerate(graded)
        ]
        return tuple(best[stage][chunk] for chunk in range(self.vpp) for stage in range(self.pp))

    def fits(self, stages: Ints, choices: Ints, chunks: Sequence[Weights]) -> Bools:
        """Whether these choices of these stages fit with their layers on these chunks, shape (N,)."""
        found = np.zeros(len(stages), np.bool_)
        pools = np.array(self.pools)[stages]
        held, again = (
            np.array(
                [getattr(self.choices[stage], name)[choice] for stage, choice in zip(stages, choices, strict=True)]
            )
            for name in ("contents_CJ", "recomputed")
        )
        for pool in np.unique(pools).tolist():
            here = np.flatnonzero(pools == pool)
            found[here] = fits_alone(
                self.jobs[pool],
                self.row.take(np.zeros(len(here), np.int64)),
                stage=stages[here],
                contents_NJ=held[here],
                recomputed=again[here] if self.per_stage_recompute or self.block else None,
                headroom_fraction=self.headroom_fraction,
                chunks=[chunks[index] for index in here.tolist()],
            )
        return found

    def picked_by(self, layers: tuple[int, ...]) -> tuple[int, ...] | None:
        """The choices that these layers of every virtual stage are, None where some stage then does not fit."""
        stage_of_layer = np.repeat(np.arange(len(layers)) % self.pp, layers)
        chunks = [layers[stage :: self.pp] for stage in range(self.pp)]
        picked: list[int] = []
        for stage, choices in enumerate(self.choices):
            held = np.bincount(self.kind_of_layer[stage_of_layer == stage], minlength=choices.contents_CJ.shape[1])
            same = (choices.contents_CJ == held).all(axis=1)
            if self.block:
                same &= choices.recomputed == sum(min(each, self.block) for each in chunks[stage])
            if not same.any():
                return None
            picked.append(int(np.flatnonzero(same)[0]))
        return tuple(picked) if self.fits(np.arange(self.pp), np.array(picked), chunks).all() else None


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
