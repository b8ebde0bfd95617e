"""The open split of one strategy on pools: what a whole split costs there.

As on one kind of node, with two differences: layers take other times on other pools, so the sum of all stages depends on
the split; and what a stage does once a step depends on its own pool, so the longest of what they do decides. Array suffixes:
C choices of a stage, J layer kinds; (N,) over asked stages has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from cost_models.evaluate import Verdict
from cost_models.job import PooledJob
from cost_models.pools.evaluate import pooled_memory
from cost_models.pools.time import pooled_jitter_fraction, pooled_step_time, tied_s
from cost_models.step.ddp_comm import DdpLinks, ddp_exposed_s, ddp_links_s
from cost_models.step.fsdp_comm import is_fsdp
from cost_models.step.offload import is_offloaded, offload_s
from cost_models.step.optimizer import optimizer_s
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.strategy import Bools, Floats, Ints
from planner.splits.cp_sat import Program
from planner.splits.model import ByChoice, SlowestStage, SplitModel

_STEPS = 1e12
"""Time steps in the longest stage: sums of equal times stay equal, whatever the order of addition."""


@dataclass(frozen=True, slots=True)
class _StageEnds:
    """What the choices of one stage do once a step, shape (C,)."""

    links: DdpLinks
    optimizer_s: Floats
    dense: Floats
    """Parameters held, for what the host updates; `expert` counts those of experts."""
    expert: Floats


@dataclass(frozen=True, eq=False, kw_only=True)
class PooledSplit(SplitModel):
    """The open split of one strategy on pools."""

    pooled: PooledJob
    sends_s: float
    """Exposed seconds of a step's sends."""
    once_least_s: float
    """Once-a-step seconds that no split is below."""
    _beside: dict[object, ByChoice] = field(default_factory=dict, init=False)
    """Once-a-step seconds that are known, by slowest stage."""

    # What the other stages can hide behind the slowest one depends on its pool and its layers, so seconds that are right beside
    # one stage say nothing about a split in which another one is the slowest.
    binds_slowest = True

    @cached_property
    def factor(self) -> float:
        return 1.0 + float(pooled_jitter_fraction(self.pooled, self.row, self.stages_by_pool)[0])

    @property
    def unit_s(self) -> float:
        """The average of all choices."""
        return float(np.mean([choices.time_s.mean() for choices in self.choices]))

    @property
    def pool_per_stage(self) -> tuple[str, ...]:
        return tuple(self.pooled.names[pool] for pool in self.pools)

    @property
    def stages_by_pool(self) -> Ints:
        """Stages on each pool, shape (P, 1)."""
        return np.array([[self.pools.count(pool)] for pool in range(len(self.jobs))])

    @cached_property
    def weights(self) -> Sequence[Ints]:
        """Stage times in whole steps."""
        step_s = max(float(choices.time_s.max()) for choices in self.choices) / _STEPS
        return [np.rint(choices.time_s / step_s).astype(np.int64) for choices in self.choices]

    @property
    def layer_s(self) -> Sequence[float]:
        again = {pool: self.choices[self.pools.index(pool)].recomputed.any() for pool in set(self.pools)}
        numbers = self.numbers
        each_s = {
            pool: float(numbers[pool].layer_JN[0, 0] + (numbers[pool].again_JN[0, 0] if again[pool] else 0.0))
            for pool in again
        }
        return [each_s[pool] for pool in self.pools]

    def sum_s(self, picked: Sequence[int]) -> float:
        times = [choices.time_s[index] for choices, index in zip(self.choices, picked, strict=True)]
        return float(np.array(times).sum())

    def sum_steps(self, steps: Callable[[object], Ints]) -> tuple[int, Sequence[Ints]]:
        return 0, [steps(choices.time_s) for choices in self.choices]

    def levels_beside(self, slowest: SlowestStage) -> tuple[ByChoice, ...]:
        """Once-a-step seconds of every choice, each of which hides behind the slowest stage's passes."""
        pool = self.pools[slowest.stage]
        key = (pool, *slowest.contents_J.tolist(), slowest.time_s)
        if key not in self._beside:
            self._beside[key] = self._stage_ends_s(pool, slowest.contents_J, slowest.time_s)
        return (self._beside[key],)

    def once_s(self, slowest: SlowestStage, levels: Sequence[float]) -> float:
        return self.fixed_s(slowest) + levels[0]

    def fixed_s(self, slowest: SlowestStage) -> float:
        """Seconds of sends, tied embeddings' and norms' all-reduces beside a slowest stage with so many layers."""
        return float(self._fixed_s[slowest.contents_J.sum()])

    def once_floor_s(self, contents_NJ: Ints, slowest_s: Floats, levels: Sequence[float]) -> Floats:  # noqa: ARG002
        """What the bound over all splits of the strategy knows: everything hidden that can be, and average parameters."""
        return np.full(len(slowest_s), self.once_least_s)

    def write_once(self, program: Program, is_slowest: list[Any], times: list[Any]) -> Any:
        """Once-a-step time steps: what every stage does beside each stage that may be the slowest, the longest counts."""
        # Slowest stages of the same pool, time and layers leave the others equally much time to hide, so one flag stands for them.
        classes: dict[tuple[int, ...], Any] = {}
        least_slowest = max(int(time.min()) for time in times)
        beside: list[tuple[Any, list[Any], int]] = []
        for stage, time in enumerate(times):
            for index in np.flatnonzero(time >= least_slowest).tolist():
                slowest = self.slowest(stage, index)
                key = (self.pools[stage], int(time[index]), *slowest.contents_J.tolist())
                if key not in classes:
                    classes[key] = program.sat.new_bool_var(f"class{len(classes)}")
                    (ends,) = self.levels_beside(slowest)
                    fixed = int(program.steps(self.fixed_s(slowest)))
                    beside.append((classes[key], [program.steps(each) for each in ends], fixed))
                # the slowest stage with this choice is of this class
                program.sat.add_bool_or(is_slowest[stage].negated(), program.pick[stage][index].negated(), classes[key])
        program.sat.add_exactly_one(classes.values())
        most = max(fixed + max(int(each.max()) for each in ends) for _, ends, fixed in beside)
        once = program.sat.new_int_var(0, most, "once")
        for flag, ends, fixed in beside:
            for stage, steps in enumerate(ends):
                program.sat.add(once >= fixed + program.sum_of(stage, steps)).only_enforce_if(flag)
        return once

    def priced(self, table: Sequence[Layout]) -> tuple[Floats, Bools]:
        layouts = build_layouts(table, model=self.jobs[0].model, all_stages=True)
        rows = replace(self.row.take(np.zeros(len(table), np.int64)), layout=np.arange(len(table)), layouts=layouts)
        verdict = pooled_memory(self.pooled, rows, headroom_fraction=self.headroom_fraction or 0.0).verdict
        return pooled_step_time(self.pooled, rows).total_s, np.asarray(verdict == Verdict.FITS)

    def alike(self, slowest: SlowestStage) -> object:
        """Of layers of one kind, inner stages of a pool that may hold as many."""
        if self.num_kinds > 1:
            return (slowest.stage, slowest.choice)
        layers = self.choices[slowest.stage].layers
        ends = (slowest.stage == 0, slowest.stage == self.pp - 1)
        return (self.pools[slowest.stage], *ends, *layers[[0, -1, slowest.choice]].tolist())

    @cached_property
    def _fixed_s(self) -> Floats:
        """`fixed_s` where the slowest stage holds 0, 1, ... layers."""
        layers = np.arange(len(self.kind_of_layer) + 1.0)
        rows = self.row.take(np.zeros(len(layers), np.int64))
        stages_PN = np.tile(self.stages_by_pool, len(layers))
        word = np.broadcast_to(self.numbers[0].word, len(layers))
        return np.asarray(self.sends_s + tied_s(self.pooled, rows, stages_PN, word=word, layers=layers)[0])

    @cached_property
    def _ends(self) -> list[_StageEnds]:
        """What every choice of every stage does once a step, by itself."""
        found: dict[int, _StageEnds] = {}
        for pool in dict.fromkeys(self.pools):
            job = self.jobs[pool]
            stages = [stage for stage, its in enumerate(self.pools) if its == pool]
            dense, expert = (
                np.concatenate([getattr(self.choices[stage], name) for stage in stages]) for name in ("dense", "expert")
            )
            # Many choices hold equally many parameters; each distinct number is priced once.
            held, inverse = np.unique(np.stack([dense, expert]), axis=1, return_inverse=True)
            rows = self.row.take(np.zeros(held.shape[1], np.int64))
            links = ddp_links_s(job, rows, dense=held[0], expert=held[1])
            own_s = optimizer_s(job, rows, dense=held[0], expert=held[1])
            edges = np.cumsum([len(self.choices[stage]) for stage in stages])[:-1]
            for stage, part in zip(stages, np.split(inverse.reshape(-1), edges), strict=True):
                found[stage] = _StageEnds(links.take(part), own_s[part], held[0, part], held[1, part])
        return [found[stage] for stage in range(self.pp)]

    def _stage_ends_s(self, pool: int, contents_J: Ints, slowest_s: float) -> list[Floats]:
        numbers = self.numbers[pool]
        forward_s = float(contents_J @ numbers.forward_JN[:, 0])
        waits_s = float(contents_J @ numbers.waits_JN[:, 0])
        passes = {
            "forward_s": np.array([forward_s + waits_s]),
            "backward_s": np.array([max(slowest_s - forward_s, 0.0)]),
        }
        reduces = not is_fsdp(self.jobs[pool], self.row)[0]
        found = []
        for stage, each in enumerate(self._ends):
            seconds = each.optimizer_s
            if reduces:
                seconds = seconds + ddp_exposed_s(self.row, each.links, **passes, num_layers=len(self.kind_of_layer))
            if is_offloaded(self.row)[0]:
                rows = self.row.take(np.zeros(len(seconds), np.int64))
                job = self.jobs[self.pools[stage]]
                seconds = seconds + offload_s(job, rows, dense=each.dense, expert=each.expert, **passes)
            found.append(seconds)
        return found
