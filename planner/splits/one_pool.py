"""The open split of one strategy on a cluster of one kind of node: what a whole split costs there.

All stages share one kind of GPU, so their time together depends on how many layers are recomputed alone, and what happens
once a step is a function of the fullest stage's parameters. Array suffixes as in `planner.splits.model`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cost_models.evaluate import memory_verdict
from cost_models.job import Job
from cost_models.memory import stage_memory
from cost_models.step.total import jitter_fraction, once_a_step, step_time
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.strategy import Bools, Floats, Ints, Strategies
from planner.splits.builder import with_choices
from planner.splits.cp_sat import Program, SolverError
from planner.splits.lone_stages import Headroom, has_room
from planner.splits.model import ByChoice, SlowestStage, SplitModel, SplitNumbers, slowest_allowed_s, split_numbers

# A table of 8 MiB.
_MOST_ONCE = 1 << 20
"""Cells of the once-a-step table above which a model is refused."""


@dataclass(frozen=True, eq=False)
class OnePoolSplit(SplitModel):
    """The open split of one strategy on one kind of node."""

    @cached_property
    def factor(self) -> float:
        return 1.0 + float(jitter_fraction(self.jobs[0], self.row)[0])

    @property
    def unit_s(self) -> float:
        return self.work_s / self.pp

    @cached_property
    def work_s(self) -> float:
        """Seconds per micro-batch of all stages together, full recomputation left out."""
        numbers = self.numbers[0]
        return float(self._counts @ numbers.layer_JN[:, 0]) + float(numbers.first[0]) + float(numbers.last[0])

    @cached_property
    def again_s(self) -> float:
        """What one recomputed layer adds to it: the pipeline's sum takes the model's average layer."""
        return float(self._counts @ self.numbers[0].again_JN[:, 0]) / len(self.kind_of_layer)

    @property
    def _counts(self) -> Ints:
        return np.bincount(self.kind_of_layer, minlength=self.num_kinds)

    @property
    def weights(self) -> Sequence[Ints]:
        return [choices.recomputed for choices in self.choices]

    def sum_s(self, picked: Sequence[int]) -> float:
        recomputed = sum(int(each[index]) for each, index in zip(self.weights, picked, strict=True))
        return self.work_s + self.again_s * recomputed

    def sum_steps(self, steps: Callable[[object], Ints]) -> tuple[int, Sequence[Ints]]:
        return int(steps(self.work_s)), [int(steps(self.again_s)) * each for each in self.weights]

    @property
    def fixed_levels(self) -> tuple[ByChoice, ...]:
        """Dense parameters and routed experts, each by itself: the cost models take the largest of either."""
        return [choices.dense for choices in self.choices], [choices.expert for choices in self.choices]

    def levels_beside(self, slowest: SlowestStage) -> tuple[ByChoice, ...]:  # noqa: ARG002
        return self.fixed_levels

    def once_s(self, slowest: SlowestStage, levels: Sequence[float]) -> float:
        return float(self.once_floor_s(slowest.contents_J[None], np.array([slowest.time_s]), levels)[0])

    def once_floor_s(self, contents_NJ: Ints, slowest_s: Floats, levels: Sequence[float]) -> Floats:
        """With the least of each level a floor, since more parameters take no less time to reduce, gather and update."""
        dense, expert = (np.full(len(slowest_s), level) for level in levels)
        return self.once_by_parameters_s(contents_NJ, slowest_s, dense=dense, expert=expert)

    def once_by_parameters_s(self, contents_NJ: Ints, slowest_s: Floats, *, dense: Floats, expert: Floats) -> Floats:
        """Seconds of what happens once a step, from the slowest stage's contents and the fullest parameters, shape (N,)."""
        numbers, n = self.numbers[0], len(slowest_s)
        forward_s = contents_NJ @ numbers.forward_JN[:, 0]
        terms, _ = once_a_step(
            self.jobs[0],
            self.row.take(np.zeros(n, np.int64)),
            dense=dense,
            expert=expert,
            forward_s=forward_s + contents_NJ @ numbers.waits_JN[:, 0],
            backward_s=np.maximum(slowest_s - forward_s, 0.0),
            layers=contents_NJ.sum(axis=1).astype(np.float64),
            word=np.broadcast_to(numbers.word, n),
        )
        return np.asarray(np.sum(list(terms.values()), axis=0))

    def write_once(self, program: Program, is_slowest: list[Any], times: list[Any]) -> Any:
        """Once-a-step time, looked up by the slowest stage's contents and the fullest stages' parameters."""
        ranks, levels = zip(
            *(_fullest(program, level) for level in self.fixed_levels), strict=True
        )  # variables over the sorted distinct values
        kinds_of_slowest: dict[tuple[int, ...], int] = {}
        seconds, contents = [], []
        number: list[list[int]] = []
        for choices, time in zip(self.choices, times, strict=True):
            number.append([])
            for index, held in enumerate(choices.contents_CJ.tolist()):
                key = (int(time[index]), *held)
                if key not in kinds_of_slowest:
                    kinds_of_slowest[key] = len(kinds_of_slowest)
                    seconds.append(float(choices.time_s[index]))
                    contents.append(held)
                number[-1].append(kinds_of_slowest[key])
        shape = (len(seconds), len(levels[0]), len(levels[1]))
        if np.prod(shape) > _MOST_ONCE:
            raise SolverError(f"the once-a-step table would have {np.prod(shape)} cells", hint="Fix more degrees.")
        at = np.indices(shape).reshape(3, -1)
        once_s = self.once_by_parameters_s(
            np.array(contents)[at[0]], np.array(seconds)[at[0]], dense=levels[0][at[1]], expert=levels[1][at[2]]
        )
        which = program.sat.new_int_var(0, shape[0] - 1, "slowest_contents")
        for stage, flag in enumerate(is_slowest):
            program.sat.add(which == program.sum_of(stage, number[stage])).only_enforce_if(flag)
        once_steps = program.steps(once_s)
        once = program.sat.new_int_var(int(once_steps.min()), int(once_steps.max()), "once")
        cell = (which * shape[1] + ranks[0]) * shape[2] + ranks[1]
        index = program.sat.new_int_var(0, int(np.prod(shape)) - 1, "cell")
        program.sat.add(index == cell)
        program.sat.add_element(index, once_steps.tolist(), once)
        return once

    def priced(self, table: Sequence[Layout]) -> tuple[Floats, Bools]:
        job = self.jobs[0]
        layouts = build_layouts(table, model=job.model)
        rows = replace(self.row.take(np.zeros(len(table), np.int64)), layout=np.arange(len(table)), layouts=layouts)
        verdict, _ = memory_verdict(job, stage_memory(job, rows), headroom_fraction=self.headroom_fraction or 0.0)
        return step_time(job, rows).total_s, has_room(verdict, self.headroom_fraction)

    def alike(self, slowest: SlowestStage) -> object:
        return tuple(slowest.contents_J.tolist())


def _fullest(program: Program, level: ByChoice) -> tuple[Any, Floats]:
    """The rank of the largest of a level among all values that occur, and these values, sorted."""
    values = np.unique(np.concatenate(level))
    rank = program.sat.new_int_var(0, len(values) - 1, "")
    each = [program.sum_of(stage, np.searchsorted(values, its)) for stage, its in enumerate(level)]
    program.sat.add_max_equality(rank, each)
    return rank, values


def build_one_pool_split(
    job: Job,
    row: Strategies,
    *,
    headroom_fraction: Headroom,
    limit_s: float,
    per_stage_recompute: bool = False,
    numbers: SplitNumbers | None = None,
) -> OnePoolSplit | None:
    """The model of one strategy, None where no split of it takes less than `limit_s` seconds a step, memory aside.

    Args:
        job: what is planned.
        row: one strategy; with `per_stage_recompute` its recomputation is `full`, and each stage takes the fewest layers.
        headroom_fraction: share of capacity that stays free; None where plans may be at risk.
        limit_s: step time to beat; infinite where nothing is known.
        per_stage_recompute: whether stages recompute counts of their own.
        numbers: of this strategy, where they are known.
    """
    bare = OnePoolSplit(
        jobs=(job,),
        row=row,
        pools=(0,) * int(row.pp[0]),
        numbers=(numbers or split_numbers(job, row),),
        choices=(),
        per_stage_recompute=per_stage_recompute,
    )
    slowest_s = slowest_allowed_s(row, np.array([bare.work_s]), np.array([limit_s / bare.factor]))
    return with_choices(bare, slowest_s=float(slowest_s[0]), headroom_fraction=headroom_fraction)
