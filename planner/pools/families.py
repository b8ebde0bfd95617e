"""One family: a strategy on a placement whose split is open, and its best split, proven or with a bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cost_models.job import PooledJob
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.strategy import Ints, Strategies
from planner.pools.bounds import Work
from planner.pools.placements import Sites
from planner.pools.program import PooledProgram
from planner.pools.split_model import PooledSplit, build_pooled_split
from planner.pools.thresholds import balance_pools
from planner.splits.cp_sat import Solved, SolverError
from planner.splits.model import SplitNumbers, layers_in_order
from planner.splits.thresholds import Balanced

TOLERANCE = 1e-9
"""Relative difference below which a split reaches its bound."""


@dataclass(frozen=True, eq=False)
class Family:
    """A strategy on a placement, a batch of one."""

    row: Strategies
    pools: tuple[int, ...]
    """Pool of every stage."""
    numbers: tuple[SplitNumbers, ...]
    weight: float
    """What the objective weighs a step with."""
    bound_s: float
    """Step time that no split beats, memory aside."""
    limit_s: float
    """Step time to beat."""
    slowest_s: float
    """Seconds per micro-batch that no stage may exceed to beat it."""
    sends_s: float
    """Exposed seconds of a step's sends."""
    once_floor_s: float
    """Once-a-step seconds that no split is below."""
    most_layers: Ints
    """The most layers of the commonest kind that fit on every stage."""


@dataclass(frozen=True, slots=True)
class BestSplit:
    """What became of one family."""

    layout: Layout | None = None
    """The best split that is known to beat the limit."""
    step_s: float = np.inf
    """Its step time."""
    unproven_s: float = np.inf
    """Seconds of a step below which nothing better is left, where that is not proven to be the best."""
    by_solver: bool = False
    failure: str | None = None
    """Why the solver could not be used."""


def best_split(
    pooled: PooledJob,
    family: Family,
    *,
    headroom_fraction: float,
    solver: Callable[..., Solved],
    should_stop: Callable[[], bool],
) -> BestSplit:
    """The best split of a family: by thresholds, and by CP-SAT where those leave a gap."""
    one_kind = len(pooled.jobs[0].model.distinct_kinds) == 1
    model = build_pooled_split(
        pooled,
        family.row,
        family.pools,
        family.numbers,
        slowest_s=family.slowest_s,
        sends_s=family.sends_s,
        once_floor_s=family.once_floor_s,
        headroom_fraction=headroom_fraction,
        most_layers=family.most_layers if one_kind else None,
    )
    if model is None or not model.is_feasible:
        return BestSplit()
    balanced = balance_pools(model, limit_s=family.limit_s)
    if balanced is None or balanced.bound_s > family.limit_s * (1.0 + TOLERANCE):
        return BestSplit()
    if balanced.bound_s >= min(balanced.step_s, family.limit_s) * (1.0 - TOLERANCE):
        return _known(model, balanced)
    return _closed(model, balanced, limit_s=family.limit_s, solver=solver, should_stop=should_stop)


def _closed(
    model: PooledSplit,
    balanced: Balanced,
    *,
    limit_s: float,
    solver: Callable[..., Solved],
    should_stop: Callable[[], bool],
) -> BestSplit:
    """Asks CP-SAT for what lies between the bound and the best split; where it fails that split stands, unproven."""
    target_s = min(balanced.step_s, limit_s)
    try:
        answer = solver(model, hint=None, limit_s=target_s, should_stop=should_stop, program=PooledProgram)
    except SolverError as error:
        return replace(_known(model, balanced), unproven_s=balanced.bound_s, failure=error.message)
    found = _known(model, balanced)
    if answer.picked is not None:
        found = BestSplit(model.layout(answer.picked), model.step_s(answer.picked))
    unproven_s = np.inf if answer.proven else max(balanced.bound_s, answer.bound_s)
    return replace(found, unproven_s=unproven_s, by_solver=True)


def _known(model: PooledSplit, balanced: Balanced) -> BestSplit:
    """What thresholds found."""
    if balanced.picked is None:
        return BestSplit()
    return BestSplit(model.layout(balanced.picked), balanced.step_s)


def placed(pooled: PooledJob, row: Strategies, layout: Layout) -> Strategies:
    """A strategy with this split on its pools, every stage a slot."""
    layouts = build_layouts([layout], model=pooled.jobs[0].model, all_stages=True)
    return replace(row, layout=np.zeros(1, np.int64), layouts=layouts)


def layers_by_speed(pooled: PooledJob, work: Work, sites: Sites, index: int, *, vpp: int) -> Layout:
    """A split of one strategy on its site whose stages take nearly as long as each other; memory aside."""
    model = pooled.jobs[0].model
    counts_J = np.array([model.layer_kinds.count(kind) for kind in model.distinct_kinds])
    pools = np.array(sites.pools(index))
    pp = len(pools)
    layer_s = (counts_J @ work.layer_PJN[:, :, index].T / model.num_layers)[pools]
    ends_s = np.zeros(pp)
    ends_s[0] += work.first[pools[0], index]
    ends_s[-1] += work.last[pools[-1], index]
    least = np.full(pp, vpp)  # a chunk without layers is one that holds an end of the model
    least[0] -= 1
    least[-1] -= 1
    least = np.maximum(least, 0)
    even_s = (model.num_layers + (ends_s / layer_s).sum()) / (1.0 / layer_s).sum()
    wanted = np.maximum((even_s - ends_s) / layer_s, least)
    totals = np.floor(wanted + 1e-9).astype(np.int64)
    while (missing := model.num_layers - int(totals.sum())) != 0:
        if missing > 0:
            totals[int(np.argmin((totals + 1) * layer_s + ends_s))] += 1
        else:
            slower = np.where(totals > least, totals * layer_s + ends_s, -np.inf)
            totals[int(np.argmax(slower))] -= 1
    return Layout(pp=pp, vpp=vpp, layers=layers_in_order(totals.tolist(), vpp))
