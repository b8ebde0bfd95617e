"""One strategy on one placement whose split over the stages is open: what each stage may hold, and what a split costs.

As `planner.splits.model` for one kind of node, with two differences: layers take other times on other pools, so the
sum of all stages depends on the split; and what a stage does once a step depends on its own pool. Array suffixes: C choices
of a stage, J layer kinds; (N,) over asked stages has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from cost_models.job import Job, PooledJob
from cost_models.pools.time import pooled_jitter_fraction, tied_s
from cost_models.step.ddp import DdpLinks, ddp_exposed_s, ddp_links_s
from cost_models.step.fsdp import is_fsdp
from cost_models.step.offload import is_offloaded, offload_s
from cost_models.step.optimizer import optimizer_s
from cost_models.strategies.layouts import Layout
from cost_models.strategies.strategy import Bools, Floats, Ints, Strategies
from planner.pools.bounds import virtual_share
from planner.splits.lone_stages import fits_alone
from planner.splits.model import (
    MOST_CHOICES,
    SplitNumbers,
    StageChoices,
    layers_in_order,
)
from planner.splits.stage_contents import own_counts, runs_of


@dataclass(frozen=True, slots=True)
class _StageEnds:
    """What the choices of one stage do once a step, shape (C,)."""

    links: DdpLinks
    optimizer_s: Floats
    dense: Floats
    """Parameters held, for what the host updates; likewise expert."""
    expert: Floats


@dataclass(frozen=True, eq=False)
class PooledSplit:
    """The open split of one strategy on pools; an `OpenModel`."""

    pooled: PooledJob
    row: Strategies
    """The strategy, a batch of one; its own layout only says pp and vpp."""
    pools: tuple[int, ...]
    """Pool of every stage."""
    numbers: tuple[SplitNumbers, ...]
    """By pool."""
    choices: tuple[StageChoices, ...]
    kind_of_layer: Ints
    factor: float
    """What straggling multiplies a step with: the same for every split."""
    sends_s: float
    """Exposed seconds of a step's sends."""
    once_floor_s: float
    """Once-a-step seconds that no split is below."""
    beside: dict[tuple[float, ...], list[Floats]] = field(default_factory=dict)
    """Once-a-step seconds that are known, by slowest stage."""

    @property
    def pp(self) -> int:
        return len(self.choices)

    @property
    def vpp(self) -> int:
        return int(self.row.vpp[0])

    @property
    def share(self) -> float:
        """What the bubble is multiplied with."""
        return float(virtual_share(self.row)[0])

    @property
    def is_feasible(self) -> bool:
        """Whether every stage has something that it can hold."""
        return all(len(choices) for choices in self.choices)

    @property
    def unit_s(self) -> float:
        """Seconds of a typical stage per micro-batch: the average of all choices."""
        return float(np.mean([choices.time_s.mean() for choices in self.choices]))

    @property
    def stages_by_pool(self) -> Ints:
        """Stages on each pool, shape (P, 1)."""
        return np.array([[self.pools.count(pool)] for pool in range(len(self.pooled.jobs))])

    def pipeline_s(self, slowest_s: float, sum_s: float) -> float:
        """Seconds of the slowest stage over a step and of the bubble, from its time and all stages'. [P-1]"""
        return float(self.row.num_micro_batches[0]) * slowest_s + (sum_s - slowest_s) * self.share

    @cached_property
    def fixed_s(self) -> Floats:
        """Seconds of sends, tied embeddings' and norms' all-reduces where the slowest stage holds 0, 1, ... layers."""
        layers = np.arange(len(self.kind_of_layer) + 1.0)
        rows = self.row.take(np.zeros(len(layers), np.int64))
        stages_PN = np.tile(self.stages_by_pool, len(layers))
        word = np.broadcast_to(self.numbers[0].word, len(layers))
        return np.asarray(self.sends_s + tied_s(self.pooled, rows, stages_PN, word=word, layers=layers)[0])

    @cached_property
    def _ends(self) -> list[_StageEnds]:
        """What every choice of every stage does once a step, by itself."""
        found: list[_StageEnds | None] = [None] * self.pp
        for pool in dict.fromkeys(self.pools):
            job = self.pooled.jobs[pool]
            stages = [stage for stage, its in enumerate(self.pools) if its == pool]
            dense, expert = (
                np.concatenate([getattr(self.choices[stage], name) for stage in stages]) for name in ("dense", "expert")
            )
            held, inverse = np.unique(np.stack([dense, expert]), axis=1, return_inverse=True)
            rows = self.row.take(np.zeros(held.shape[1], np.int64))
            links = ddp_links_s(job, rows, dense=held[0], expert=held[1])
            own_s = optimizer_s(job, rows, dense=held[0], expert=held[1])
            at = inverse.reshape(-1)
            edges = np.cumsum([len(self.choices[stage]) for stage in stages])[:-1]
            for stage, part in zip(stages, np.split(at, edges), strict=True):
                found[stage] = _StageEnds(links.take(part), own_s[part], held[0, part], held[1, part])
        return [each for each in found if each is not None]

    def stage_ends_s(self, pool: int, contents_J: Ints, slowest_s: float) -> list[Floats]:
        """Seconds of what every choice of every stage does once a step, beside a slowest stage of this pool, contents and
        time.
        """
        key = (pool, *contents_J.tolist(), slowest_s)
        if key in self.beside:
            return self.beside[key]
        numbers = self.numbers[pool]
        forward_s = float(contents_J @ numbers.forward_JN[:, 0])
        waits_s = float(contents_J @ numbers.waits_JN[:, 0])
        passes = {
            "forward_s": np.array([forward_s + waits_s]),
            "backward_s": np.array([max(slowest_s - forward_s, 0.0)]),
        }
        sharded = is_fsdp(self.pooled.jobs[pool], self.row)[0]
        found = []
        for stage, each in enumerate(self._ends):
            seconds = each.optimizer_s
            if not sharded:
                seconds = seconds + ddp_exposed_s(self.row, each.links, **passes, num_layers=len(self.kind_of_layer))
            if is_offloaded(self.row)[0]:
                rows = self.row.take(np.zeros(len(seconds), np.int64))
                job = self.pooled.jobs[self.pools[stage]]
                seconds = seconds + offload_s(job, rows, dense=each.dense, expert=each.expert, **passes)
            found.append(seconds)
        return self.beside.setdefault(key, found)

    def step_s(self, picked: Sequence[int]) -> float:
        """Seconds of a step with one choice for each stage. [T-5]"""
        times = np.array([choices.time_s[index] for choices, index in zip(self.choices, picked, strict=True)])
        slow = int(times.argmax())
        contents_J = self.choices[slow].contents_CJ[picked[slow]]
        ends = self.stage_ends_s(self.pools[slow], contents_J, float(times[slow]))
        once_s = float(self.fixed_s[contents_J.sum()])
        once_s += max(float(each[index]) for each, index in zip(ends, picked, strict=True))
        return (self.pipeline_s(float(times[slow]), float(times.sum())) + once_s) * self.factor

    def layout(self, picked: Sequence[int]) -> Layout:
        """The layout of one choice for each stage."""
        totals = [int(choices.layers[index]) for choices, index in zip(self.choices, picked, strict=True)]
        return Layout(
            pp=self.pp,
            vpp=self.vpp,
            layers=layers_in_order(totals, self.vpp),
            pool_per_stage=tuple(self.pooled.names[pool] for pool in self.pools),
        )


def build_pooled_split(
    pooled: PooledJob,
    row: Strategies,
    pools: Sequence[int],
    numbers: Sequence[SplitNumbers],
    *,
    slowest_s: float,
    sends_s: float,
    once_floor_s: float,
    headroom_fraction: float,
    most_layers: Ints | None = None,
) -> PooledSplit | None:
    """The model of one strategy, None where no split has a slowest stage below `slowest_s`, memory aside.

    Args:
        pooled: the pools.
        row: one strategy.
        pools: pool of every stage.
        numbers: of this strategy, by pool.
        slowest_s: seconds per micro-batch that no stage may exceed; infinite where nothing is known.
        sends_s: exposed seconds of a step's sends.
        once_floor_s: once-a-step seconds that no split is below.
        headroom_fraction: share of capacity that stays free.
        most_layers: the most layers that fit on each stage, where there is one kind of layer and they are known.
    """
    model = pooled.jobs[0].model
    kinds = model.distinct_kinds
    kind_of_layer = np.array([kinds.index(kind) for kind in model.layer_kinds])
    stages_PN = np.array([[pools.count(pool)] for pool in range(len(pooled.jobs))])
    bare = PooledSplit(
        pooled=pooled,
        row=row,
        pools=tuple(pools),
        numbers=tuple(numbers),
        choices=(),
        kind_of_layer=kind_of_layer,
        sends_s=sends_s,
        once_floor_s=once_floor_s,
        factor=1.0 + float(pooled_jitter_fraction(pooled, row, stages_PN)[0]),
    )
    choices = []
    known: dict[tuple[int, bool, bool], StageChoices] = {}
    for stage, pool in enumerate(pools):
        kind = (pool, stage == 0, stage == len(pools) - 1)
        found = known.get(kind) or known.setdefault(kind, _stage_choices(bare, stage))
        kept = found.time_s <= slowest_s * (1.0 + 1e-12)
        choices.append(found.take(kept if most_layers is None else kept & (found.layers <= most_layers[stage])))
    choices = _within_reach(choices, len(kind_of_layer))
    if any(not len(found) for found in choices) or sum(map(len, choices)) > MOST_CHOICES:
        return None
    if most_layers is not None:
        return replace(bare, choices=tuple(choices), beside={})
    return replace(bare, choices=tuple(_fitting(bare, choices, headroom_fraction=headroom_fraction)), beside={})


def _stage_choices(bare: PooledSplit, stage: int) -> StageChoices:
    """Everything that a stage could hold, memory aside."""
    pp, vpp, numbers = len(bare.pools), bare.vpp, bare.numbers[bare.pools[stage]]
    contents = runs_of(tuple(bare.kind_of_layer.tolist()))
    least = max(
        vpp - (stage == 0) - (stage == pp - 1), 0
    )  # a chunk without layers is one that holds an end of the model
    contents = contents[contents.sum(axis=1) >= least]
    contents = contents[np.argsort(contents.sum(axis=1), kind="stable")]
    totals = contents.sum(axis=1)
    counts = own_counts(bare.row, totals)
    ends_s = float(numbers.first[0]) * (stage == 0) + float(numbers.last[0]) * (stage == pp - 1)
    ends = float(numbers.embedding[0]) * (stage == 0) + float(numbers.head[0]) * (stage == pp - 1)
    seconds = contents @ numbers.layer_JN[:, 0]
    seconds = seconds + counts / np.maximum(totals, 1) * (contents @ numbers.again_JN[:, 0]) + ends_s
    return StageChoices(
        contents_CJ=contents,
        recomputed=counts,
        time_s=seconds,
        dense=contents @ numbers.dense_JN[:, 0] + ends,
        expert=contents @ numbers.expert_JN[:, 0] + float(numbers.head_expert[0]) * (stage == pp - 1),
    )


def _within_reach(choices: list[StageChoices], num_layers: int) -> list[StageChoices]:
    """Choices with which the other stages can hold the rest."""
    if any(not len(found) for found in choices):
        return choices
    most, least = (sum(int(edge(found.layers)) for found in choices) for edge in (np.max, np.min))
    return [
        found.take(
            (found.layers >= num_layers - (most - found.layers.max()))
            & (found.layers <= num_layers - (least - found.layers.min()))
        )
        for found in choices
    ]


def _fitting(bare: PooledSplit, choices: list[StageChoices], *, headroom_fraction: float) -> list[StageChoices]:
    """The choices that fit their own pool's GPU; every pool's are asked of the memory model at once."""
    found = list(choices)
    for pool in dict.fromkeys(bare.pools):
        stages = [stage for stage, its in enumerate(bare.pools) if its == pool]
        stage = np.repeat(stages, [len(choices[stage]) for stage in stages])
        held = np.concatenate([choices[stage].contents_CJ for stage in stages])
        fits = stage_fits(bare.pooled.jobs[pool], bare.row, stage, held, headroom_fraction=headroom_fraction)
        for number in stages:
            found[number] = choices[number].take(fits[stage == number])
    return found


def stage_fits(job: Job, row: Strategies, stage: Ints, contents_NJ: Ints, *, headroom_fraction: float) -> Bools:
    """Whether stages of one strategy fit with these contents, shape (N,). [M]"""
    return fits_alone(
        job,
        row.take(np.zeros(len(stage), np.int64)),
        stage=stage,
        contents_NJ=contents_NJ,
        recomputed=None,
        headroom_fraction=headroom_fraction,
    )
