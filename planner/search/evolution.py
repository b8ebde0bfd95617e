"""A sample of the front by NSGA-II, for spaces that are too large to be searched exactly.

Every point is priced exactly, but nothing proves that it belongs to the front.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cost_models.strategies.strategy import Floats, Ints, Strategies, concatenated
from planner.strategies.degrees import DEGREE_AXES
from planner.strategies.space import Space

_POPULATION, _GENERATIONS = 64, 40
_NEVER = 1e30
"""Objective of a strategy that cannot run; the sampler takes no infinity."""


def evolve(
    space: Space,
    *,
    price: Callable[[Strategies], Floats],
    num_objectives: int,
    seed: int,
    must_stop: Callable[[], bool],
    at_random: bool = False,
) -> None:
    """Runs NSGA-II over positions on every axis.

    Args:
        space: where the strategies come from.
        price: objectives of strategies, shape (N, num_objectives); infinite where one cannot run. It keeps what it is shown.
        num_objectives: how many there are, each to be minimised.
        seed: the same seed repeats the same trials.
        must_stop: asked before each generation.
        at_random: whether positions are drawn at random instead, to see what evolution is worth.
    """
    # Most combinations of positions are no strategy: degrees must multiply to whole nodes. The nearest base row that exists is
    # priced in their place, so that the sampler sees no holes.
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    nearest = _Nearest(space)
    evolves = optuna.samplers.NSGAIISampler(population_size=_POPULATION, seed=seed)
    sampler = optuna.samplers.RandomSampler(seed) if at_random else evolves
    study = optuna.create_study(directions=["minimize"] * num_objectives, sampler=sampler)
    for _ in range(_GENERATIONS):
        if must_stop():
            return
        trials = [study.ask() for _ in range(_POPULATION)]
        wanted = [{n: t.suggest_int(n, 0, most) for n, most in nearest.most.items()} for t in trials]
        share = np.array([trial.suggest_float("option", 0.0, 1.0) for trial in trials])
        rows = concatenated([nearest.row(target) for target in wanted])
        size = space.multiplicity(rows)
        chosen, origin = _one_of_each(space, rows, np.minimum((share * size).astype(np.int64), size - 1))
        objectives_ND = np.empty((len(rows), num_objectives))
        objectives_ND[origin] = price(chosen)
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


def _one_of_each(space: Space, base: Strategies, option: Ints) -> tuple[Strategies, Ints]:
    """One strategy of each base row, by its position among those that the row stands for, and the base row of each."""
    every = space.every_pair(base)
    by_base = np.argsort(every.origin, kind="stable")
    start = np.searchsorted(every.origin[by_base], np.arange(len(base)))
    expansion = space.expand(base, every.take(by_base[start + option]))
    return expansion.rows, expansion.origin
