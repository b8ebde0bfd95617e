"""One family: a strategy on a placement whose split is open, and its best split, proven or with a bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from cost_models.job import PooledJob
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.strategy import Floats, Ints, Strategies
from planner.pools.bounds import RowBound, Work
from planner.pools.gaps import Gap
from planner.pools.placements import Sites
from planner.splits.builder import TooManyChoicesError, with_choices
from planner.splits.cp_sat import Solved
from planner.splits.descent import start_of
from planner.splits.gaps import TOLERANCE, Closed, close_gap, has_gap
from planner.splits.memory_screen import Questions
from planner.splits.model import SplitNumbers, layers_in_order
from planner.splits.several_pools import PooledSplit
from planner.splits.thresholds import Balanced, balance
from planner.splits.virtual_stages import is_played


@dataclass(frozen=True, eq=False)
class Family:
    """A strategy on a placement."""

    split: PooledSplit
    """Without the choices of its stages."""
    weight: float
    """What the objective weighs a step with."""
    bound_s: float
    """Step time that no split beats, memory aside."""
    limit_s: float
    """Step time to beat."""
    slowest_s: float
    """Seconds per micro-batch that no stage may exceed to beat it."""
    most_layers: Ints
    """The most layers of the commonest kind that fit on every stage."""


@dataclass(frozen=True, slots=True)
class BestSplit:
    """What became of one family."""

    layout: Layout | None = None
    """The best split that is known to beat the limit."""
    step_s: float = np.inf
    """Its step time."""
    closed: Closed = field(default_factory=Closed)
    """What CP-SAT made of the gap that thresholds left, if there was one."""
    gap: Gap | None = None
    """What is left to be closed once all families are known."""


def families_of(
    pooled: PooledJob,
    rows: Strategies,
    sites: Sites,
    numbers: tuple[SplitNumbers, ...],
    bound: RowBound,
    *,
    weight: Floats,
    limit_s: Floats,
    slowest_s: Floats,
    most_layers: list[Ints],
    which: Ints,
) -> list[Family]:
    """The families at the positions `which` of these strategies, of which all else has shape (N,) or one entry each."""
    return [
        Family(
            split=PooledSplit(
                jobs=pooled.jobs,
                row=rows.take(np.array([index])),
                pools=sites.pools(index),
                numbers=tuple(each.take(np.array([index])) for each in numbers),
                choices=(),
                pooled=pooled,
                sends_s=float(bound.sends_s[index]),
                once_least_s=float(bound.once_s[index]),
            ),
            weight=float(weight[index]),
            bound_s=float(bound.step_s[index]),
            limit_s=float(limit_s[index]),
            slowest_s=float(slowest_s[index]),
            most_layers=most_layers[index],
        )
        for index in which.tolist()
    ]


def stage_questions(rows: Strategies, sites: Sites, work: Work, *, kind: int, slowest_s: Floats) -> Questions:
    """How many layers of one kind each stage of these strategies can hold with none slower than `slowest_s`.

    Each strategy's first stage is asked first, then the first one on every other pool: they hold the most micro-batches.
    """
    pools = [sites.pools(index) for index in range(len(sites))]
    row = np.repeat(np.arange(len(rows)), [len(each) for each in pools])
    stage = np.concatenate([np.arange(len(each)) for each in pools])
    pool = np.array([pool for each in pools for pool in each], np.int64)
    starts = np.ones(len(row), np.bool_)
    starts[1:] = (row[1:] != row[:-1]) | (pool[1:] != pool[:-1])
    ends_s = work.first[pool, row] * (stage == 0) + work.last[pool, row] * (stage == rows.pp[row] - 1)
    return Questions(
        row=row,
        stage=stage,
        pool=pool,
        time_s=slowest_s[row] - ends_s,
        layer_s=work.layer_PJN[pool, kind, row],
        stands_for=np.ones(len(row), np.int64),
        order=np.where(starts, np.where(stage > 0, 1, 0), 2),
        early_only_rule_out=True,
    )


def best_split(
    family: Family,
    *,
    headroom_fraction: float,
    solver: Callable[..., Solved],
    should_stop: Callable[[], bool],
) -> BestSplit:
    """The best split of a family: by thresholds, and by CP-SAT where those leave a gap."""
    try:
        model = with_choices(
            family.split,
            slowest_s=family.slowest_s,
            headroom_fraction=headroom_fraction,
            # Of what counts recomputed layers by chunk the screen asked for any count.
            most_layers=family.most_layers if family.split.num_kinds == 1 and not family.split.block else None,
        )
    except TooManyChoicesError as error:
        return BestSplit(closed=Closed(unproven_s=family.bound_s, failure=error.message))
    balanced = balance(model, limit_s=family.limit_s) if model is not None and model.is_feasible else None
    if model is None or balanced is None or balanced.bound_s > family.limit_s * (1.0 + TOLERANCE):
        return BestSplit()
    if is_played(model):
        return _best_played(model, balanced, family)
    closed, picked, layers, step_s = Closed(), balanced.picked, balanced.layers, balanced.step_s
    if has_gap(balanced.bound_s, min(balanced.step_s, family.limit_s)):
        target_s = min(balanced.step_s, family.limit_s)
        closed = close_gap(model, bound_s=balanced.bound_s, target_s=target_s, solver=solver, should_stop=should_stop)
    if closed.picked is not None:
        picked, layers, step_s = closed.picked, closed.layers, closed.step_s
    if picked is None:
        return BestSplit(closed=closed)
    return BestSplit(model.layout(picked, layers), step_s, closed)


def _best_played(model: PooledSplit, balanced: Balanced, family: Family) -> BestSplit:
    """The best split over unequal virtual stages that thresholds know; these take what their events come to."""
    layout, step_s = None, np.inf
    # Events only make what thresholds found slower, so what has lost already is not priced.
    if balanced.picked is not None and balanced.step_s <= family.limit_s * (1.0 + TOLERANCE):
        start = start_of(model, balanced.picked, balanced.layers)
        if np.isfinite(start.step_s):
            layout, step_s = model.layout_of(start.layers), start.step_s
    gap = None
    if has_gap(balanced.bound_s, min(step_s, family.limit_s)):
        gap = Gap(model, family.weight, balanced.bound_s, layout, step_s)
    return BestSplit(layout, step_s, gap=gap)


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
    even_s = (model.num_layers + (ends_s / layer_s).sum()) / (1.0 / layer_s).sum()
    wanted = np.maximum((even_s - ends_s) / layer_s, 0.0)
    totals = np.floor(wanted + 1e-9).astype(np.int64)
    while (missing := model.num_layers - int(totals.sum())) != 0:
        if missing > 0:
            totals[int(np.argmin((totals + 1) * layer_s + ends_s))] += 1
        else:
            slower = np.where(totals > 0, totals * layer_s + ends_s, -np.inf)
            totals[int(np.argmax(slower))] -= 1
    return Layout(pp=pp, vpp=vpp, layers=layers_in_order(totals.tolist(), vpp))
