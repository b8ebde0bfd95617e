"""The front: strategies that no other strategy beats in step time, memory, GPUs and cost per token at once.

Small spaces are enumerated, which is exact. Larger ones are sampled by NSGA-II. Every sampled point is evaluated exactly, but
nothing proves that it belongs to the front. Only listed splits are considered. Array suffix: D objectives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cost_models.evaluate import Verdict, memory_verdict
from cost_models.job import Job
from cost_models.memory import stage_memory
from cost_models.step.total import step_time
from cost_models.strategies.strategy import Bools, Floats, Ints, Strategies, concatenated
from planner.rules import violations
from planner.search.objective import Goal
from planner.strategies.degrees import DEGREE_AXES
from planner.strategies.parse import strategy_dict
from planner.strategies.space import Space

MOST_ENUMERATED = 3_000_000
"""Most strategies for which the front is enumerated."""
OBJECTIVES = ("step_time_s", "peak_device_bytes", "num_gpus", "cost_per_token")
_BASE_AT_ONCE = 64
_POPULATION, _GENERATIONS = 64, 40
_NEVER = 1e30
"""Objective of a strategy that cannot run; the sampler takes no infinity."""


@dataclass(frozen=True, eq=False)
class Front:
    """The strategies of the front, the fastest first."""

    rows: Strategies | None
    objectives_ND: Floats
    """By OBJECTIVES; the cost is in the currency of the price, or in GPU-seconds where no price is given."""
    method: Literal["exhaustive", "nsga-ii"]


def pareto_front(
    space: Space,
    *,
    goal: Goal,
    headroom_fraction: float,
    seed: int,
    should_stop: Callable[[], bool] | None = None,
    method: Literal["exhaustive", "nsga-ii"] | None = None,
) -> Front:
    """The front of a space; the size of the space decides the `method` unless it is given."""
    chosen = method or ("exhaustive" if int(space.mesh_sizes.sum()) <= MOST_ENUMERATED else "nsga-ii")
    sampler = _Points(space, goal, headroom_fraction)
    if len(space.degrees):
        if chosen == "exhaustive":
            _enumerate(sampler, space.base(), should_stop)
        else:
            _evolve(sampler, seed, should_stop)
    return Front(sampler.rows, sampler.objectives_ND, chosen)


def front_documents(front: Front) -> list[dict[str, Any]]:
    """The contract's `pareto`."""
    if front.rows is None:
        return []
    return [
        {
            "strategy": strategy_dict(front.rows, index),
            **dict(zip(OBJECTIVES, front.objectives_ND[index].tolist(), strict=True)),
            "method": front.method,
        }
        for index in range(len(front.rows))
    ]


def undominated(objectives_ND: Floats) -> Bools:
    """Which points are on the front, shape (N,); of equal points only the first.

    A point is on the front if no other point is at least as good in every objective and better in one.
    """
    # In lexical order a point can only be dominated by one that comes before it, so one pass against the front so far is enough.
    order = np.lexsort(objectives_ND.T[::-1])
    kept = np.zeros(len(order), np.bool_)
    front = np.empty((0, objectives_ND.shape[1]))
    for index in order.tolist():
        if not (front <= objectives_ND[index]).all(axis=1).any():
            kept[index] = True
            front = np.vstack([front, objectives_ND[index]])
    return kept


class _Points:
    """The front of what has been evaluated so far."""

    def __init__(self, space: Space, goal: Goal, headroom_fraction: float) -> None:
        self.space, self.job, self.goal, self.headroom_fraction = space, space.job, goal, headroom_fraction
        self.rows: Strategies | None = None
        self.objectives_ND = np.empty((0, len(OBJECTIVES)))

    def add(self, rows: Strategies) -> None:
        """Merges strategies into the front."""
        objectives_ND = self.evaluated(rows)
        self.keep(rows, objectives_ND)

    def keep(self, rows: Strategies, objectives_ND: Floats) -> None:
        """Merges evaluated strategies."""
        fine = np.flatnonzero(np.isfinite(objectives_ND).all(axis=1))
        rows, objectives_ND = rows.take(fine), objectives_ND[fine]
        if len(self.objectives_ND) and len(objectives_ND):
            no_worse = np.all(self.objectives_ND[None] <= objectives_ND[:, None], axis=2)
            fresh = np.flatnonzero(~np.any(no_worse, axis=1))
            rows, objectives_ND = rows.take(fresh), objectives_ND[fresh]
        if not len(rows):
            return
        if self.rows is not None:
            rows = concatenated([self.rows, rows])
            objectives_ND = np.concatenate([self.objectives_ND, objectives_ND])
        kept = np.flatnonzero(undominated(objectives_ND))
        kept = kept[np.lexsort(objectives_ND[kept].T[::-1])]
        self.rows, self.objectives_ND = rows.take(kept), objectives_ND[kept]

    def evaluated(self, rows: Strategies) -> Floats:
        """The objectives of each strategy; infinite where it is illegal, does not fit or misses the targets."""
        found = np.full((len(rows), len(OBJECTIVES)), np.inf)
        legal = np.flatnonzero(violations(self.job, rows).legal)
        if not len(legal):
            return found
        memory = stage_memory(self.job, rows.take(legal))
        verdict, _ = memory_verdict(self.job, memory, headroom_fraction=self.headroom_fraction)
        fits = np.flatnonzero(verdict == Verdict.FITS)
        some = rows.take(legal[fits])
        if len(some):
            step_s = step_time(self.job, some).total_s
            values = np.column_stack([step_s, memory.device[fits], some.world, step_s * some.world * _price(self.job)])
            found[legal[fits]] = np.where(self.goal.reached(step_s)[:, None], values, np.inf)
        return found


def _price(job: Job) -> float:
    """What one GPU-second costs per token of the step."""
    tokens = float(job.training.seq_length) * job.training.global_batch_size
    each_hour = job.cluster.price_per_gpu_hour
    return (each_hour / 3600.0 if each_hour is not None else 1.0) / tokens


def _enumerate(points: _Points, base: Strategies, should_stop: Callable[[], bool] | None) -> None:
    for start in range(0, len(base), _BASE_AT_ONCE):
        if should_stop is not None and should_stop():
            return
        rows = points.space.expand(base.take(np.arange(start, min(start + _BASE_AT_ONCE, len(base))))).rows
        points.add(rows)


def _evolve(points: _Points, seed: int, should_stop: Callable[[], bool] | None) -> None:
    """NSGA-II over positions on every axis."""
    # Most combinations of positions are no strategy: degrees must multiply to whole nodes. The nearest base row that exists is
    # priced in their place, so that the sampler sees no holes.
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    nearest = _Nearest(points.space)
    sampler = optuna.samplers.NSGAIISampler(population_size=_POPULATION, seed=seed)
    study = optuna.create_study(directions=["minimize"] * len(OBJECTIVES), sampler=sampler)
    for _ in range(_GENERATIONS):
        if should_stop is not None and should_stop():
            return
        trials = [study.ask() for _ in range(_POPULATION)]
        wanted = [{n: t.suggest_int(n, 0, most) for n, most in nearest.most.items()} for t in trials]
        share = np.array([trial.suggest_float("option", 0.0, 1.0) for trial in trials])
        rows = concatenated([nearest.row(target) for target in wanted])
        size = points.space.multiplicity(rows)
        option = np.minimum((share * size).astype(np.int64), size - 1)
        objectives_ND = _priced(points, rows, option)
        for trial, values in zip(trials, objectives_ND.tolist(), strict=True):
            study.tell(trial, [min(value, _NEVER) for value in values])


class _Nearest:
    """Base rows by their positions on the axes: first the nearest mesh that exists, then the nearest of its rows."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.levels = {name: np.array(space.degrees.values(name)) for name in DEGREE_AXES}
        self.most = {name: len(levels) - 1 for name, levels in self.levels.items()}
        self.meshes = self._places(space.degrees.mesh)

    def _places(self, columns: Mapping[str, Any]) -> Ints:
        """The positions of these values on their axes, shape (N, axes)."""
        return np.stack([np.searchsorted(self.levels[name], column) for name, column in columns.items()], axis=1)

    def row(self, target: Mapping[str, int]) -> Strategies:
        """The base row that is nearest to these positions, a batch of one."""
        degrees = self.space.degrees
        mesh = int(np.abs(self.meshes - [target[name] for name in degrees.mesh]).sum(axis=1).argmin())
        rows = self.space.base(np.array([mesh]))
        places = self._places({name: getattr(rows, name) for name in degrees.inner})
        at = np.abs(places - [target[name] for name in degrees.inner]).sum(axis=1).argmin()
        return rows.take(np.array([at]))


def _priced(points: _Points, base: Strategies, option: Ints) -> Floats:
    """The objectives of one strategy of each base row; the strategies join the front."""
    every = points.space.every_pair(base)
    by_base = np.argsort(every.origin, kind="stable")
    start = np.searchsorted(every.origin[by_base], np.arange(len(base)))
    expansion = points.space.expand(base, every.take(by_base[start + option]))
    found = np.full((len(base), len(OBJECTIVES)), np.inf)
    values = points.evaluated(expansion.rows)
    points.keep(expansion.rows, values)
    found[expansion.origin] = values
    return found
