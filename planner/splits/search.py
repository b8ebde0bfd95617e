"""Splits of layers over stages beyond the listed ones, and recomputation stage by stage: the best of every family.

A *family* is a strategy whose split is open: degrees, ZeRO, sharding, virtual stages, recomputation. Families are taken in
the order of a bound that holds for every split; each is solved by thresholds, and by CP-SAT where those leave a gap, while
its bound is below the k-th best known. What the framework cannot be told is kept apart as the inexpressible best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cost_models.step.fsdp_comm import is_fsdp
from cost_models.step.total import step_time
from cost_models.strategies.fields import Recompute, RecomputeMethod
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.strategy import Floats, Strategies, concatenated
from planner.rules import violations
from planner.rules.expressible import SPLIT_CODES, splits_freely
from planner.search.bounds import Bounds, open_split_s
from planner.search.budget import best_first
from planner.search.objective import Goal, ranked_order
from planner.splits.bounds import split_bound_s
from planner.splits.cp_sat import Solved, solve
from planner.splits.gaps import TOLERANCE, close_gap, has_gap
from planner.splits.memory_screen import could_hold
from planner.splits.model import PRICED_SCHEDULES, SplitNumbers, split_numbers
from planner.splits.one_pool import OnePoolSplit, build_one_pool_split
from planner.splits.thresholds import balance
from planner.strategies.expansion import Pairs
from planner.strategies.space import Space

# Larger parts would bound many families that the limit excludes a moment later.
CHUNK = 8192
"""Base rows whose families are bounded at a time."""
PART = 16_384
"""Families whose memory is screened at a time."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The best split of one family."""

    row: Strategies
    """A batch of one."""
    layout: Layout
    step_s: float
    value: float


@dataclass(eq=False)
class OpenSplitsFound:
    """What the open splits added."""

    ranked: list[Candidate] = field(default_factory=list)
    inexpressible: Candidate | None = None
    families: int = 0
    """Families whose split was solved."""
    solved: int = 0
    """Of these, by CP-SAT."""
    unproven_s: float = np.inf
    """Least bound of a family that was left unproven."""
    failures: list[str] = field(default_factory=list)
    """Why the solver could not be used."""
    stopped: bool = False


class OpenSplits:
    """One search over open splits; `run` takes base rows in as many parts as they come, `close` ends it."""

    def __init__(
        self,
        space: Space,
        *,
        goal: Goal,
        top_k: int,
        headroom_fraction: float,
        known: Floats,
        should_stop: Callable[[], bool],
        on_family: Callable[[float], None] | None = None,
        solver: Callable[..., Solved] = solve,
    ) -> None:
        """`known` are the values of the safe plans that are known, best first."""
        self.space, self.job, self.goal, self.top_k = space, space.job, goal, top_k
        self.headroom_fraction = headroom_fraction
        self.values = sorted(known.tolist())[:top_k]
        self.should_stop, self.on_family = should_stop, on_family
        self.freely = splits_freely(space.job)
        self.counts_given = "recompute_num_layers" in space.chosen or "recompute_method" in space.chosen
        self.solver = solver
        self.found = OpenSplitsFound()
        self._gaps: list[_Gap] = []

    def run(self, base: Strategies, bounds: Bounds) -> OpenSplitsFound:
        """Solves every family that may still win; `base` are the legal base rows."""
        least_s = bounds.open_split_s(base.pp)
        values = self.goal.value(base, least_s)
        if self.found.stopped:
            self._leave(least_s)
            return self.found
        open_base = np.flatnonzero(base.pp > 1)
        for part, rest in best_first(values[open_base], limit=lambda: self._limit, most=CHUNK):
            chunk = open_base[part]
            if not self._families(base.take(chunk), bounds.take(chunk)):
                self._leave(least_s[open_base[rest]])
                break
        return self.found

    def _families(self, base: Strategies, bounds: Bounds) -> bool:
        """Solves the families of these base rows, best bound first; false where the search was stopped."""
        rows = self._rows(base, bounds)
        if not len(rows):
            return True
        numbers = split_numbers(self.job, rows)
        bound_s = split_bound_s(self.job, rows, numbers)
        # Best bound first: the sooner good splits are known, the more families lose by their bound alone.
        values = self.goal.value(rows, bound_s)
        for part, rest in best_first(values, limit=lambda: self._limit, most=PART):
            limits_s = [self.goal.longest_step_s(world, self._limit) for world in rows.world[part].tolist()]
            some, its = rows.take(part), numbers.take(part)
            holding = could_hold(
                self.job, some, its, limit_s=np.array(limits_s), headroom_fraction=self.headroom_fraction
            )
            for index in part[holding].tolist():
                if values[index] > self._limit:
                    break
                if self.should_stop():
                    self._leave(bound_s[rest])
                    return False
                at = np.array([index])
                self._solve(rows.take(at), numbers.take(at))
                if self.on_family is not None:
                    self.on_family(float(bound_s[index]))
        return True

    def _leave(self, bounds_s: Floats) -> None:
        self.found.stopped = True
        self.found.unproven_s = min(self.found.unproven_s, float(bounds_s.min()))

    def _rows(self, base: Strategies, bounds: Bounds) -> Strategies:
        """One legal row for each family that may win: `full` stands for every count of recomputed layers."""
        options = self.space.options
        full = options["recompute"] == Recompute.FULL
        last = np.append(np.diff(options["family"]) != 0, True)
        pairs = self.space.useful_pairs(base)
        pairs = pairs.take(~full[pairs.option] | last[pairs.option])
        least_s = _pair_bound_s(base, bounds, pairs, options["vpp"][pairs.option])
        world = base.world[pairs.origin]
        pairs = pairs.take(self.goal.value_of_world(world, least_s) <= self._limit)
        if not len(pairs.origin):
            return base.take(np.zeros(0, np.int64))
        rows = self.space.expand(base, pairs.followed_by(self.space.grouped(base, pairs))).rows
        # How much of its activations a stage sends to the host depends on how many layers it holds: not priced here.
        rows = rows.take(np.isin(rows.schedule, PRICED_SCHEDULES) & (rows.offload_activation_layers == 0))
        if not len(rows):
            return rows
        # A family is searched although the framework cannot be told its split: the best of these is reported as inexpressible.
        broken = violations(self.job, rows)
        forgiven = sum(1 << bit for bit, rule in enumerate(broken.active) if rule.code in SPLIT_CODES)
        return rows.take((broken.flags & ~forgiven) == 0)

    def _solve(self, row: Strategies, numbers: SplitNumbers) -> None:
        """The best split of one family; under full recomputation with counts of each stage's own, and with every count."""
        if row.recompute[0] != Recompute.FULL:
            self._best_of(row, numbers)
            return
        ways = [way[1:] for way in self.space.recomputes(int(row.layout[0])) if way[0] == Recompute.FULL]
        whole = _recomputing(row, RecomputeMethod.EVERY, 0)
        if is_fsdp(self.job, row)[0]:  # what is hidden there depends on how much all stages recompute
            ways = [way for way in ways if way[0] == RecomputeMethod.EVERY]
        elif not self._best_of(whole, numbers, per_stage=True) and (RecomputeMethod.UNIFORM not in dict(ways)):
            return  # no counts at all fit and win, so none that all stages share do; units of several layers hold less
        for way in ways:
            if not self._best_of(_recomputing(row, *way), numbers) and RecomputeMethod.UNIFORM not in dict(ways):
                break  # too slow whatever fits, and larger counts are slower

    def _best_of(self, row: Strategies, numbers: SplitNumbers, *, per_stage: bool = False) -> bool:
        """Solves one model and keeps its best split; false where nothing in it is fast enough.

        With counts of each stage's own, also false where nothing fits.
        """
        limit_s = self.goal.longest_step_s(float(row.world[0]), self._limit)
        model = build_one_pool_split(
            self.job,
            row,
            headroom_fraction=self.headroom_fraction,
            limit_s=limit_s,
            per_stage_recompute=per_stage,
            numbers=numbers,
        )
        self.found.families += 1
        if model is None:
            return False
        balanced_s = limit_s
        if per_stage:  # ranked by nobody: worth telling apart only where it may be the inexpressible best
            balanced_s = self.goal.longest_step_s(float(row.world[0]), min(self._limit, self._best_value))
        balanced = balance(model, limit_s=balanced_s) if model.is_feasible else None
        if balanced is None or balanced.bound_s > limit_s:
            return not per_stage
        best = Best(model, balanced.picked, balanced.step_s)
        kept = self._keep(best, row) if best.picked is not None and best.step_s <= balanced_s else None
        if has_gap(balanced, limit_s=balanced_s):
            self._gaps.append(_Gap(best, row, balanced.bound_s, kept))
        return True

    def close(self) -> OpenSplitsFound:
        """Closes what gaps may still hide a winner, least bound first; called once, after the last `run`.

        Only now, since every family's balanced split is known: most gaps lie above the k-th best of them.
        """
        for gap in sorted(self._gaps, key=lambda gap: gap.bound_s):
            best, row = gap.best, gap.row
            value = float(self.goal.value(row, np.array([gap.bound_s]))[0])
            own = best.model.per_stage_recompute
            if value > (min(self._limit, self._best_value) if own else self._limit):
                continue
            if self.found.stopped or self.should_stop():
                self._unproven(best.model, gap.bound_s)
                self.found.stopped = True
                continue
            limit_s = self.goal.longest_step_s(
                float(row.world[0]), min(self._limit, self._best_value) if own else self._limit
            )
            closed = self._close(best, bound_s=gap.bound_s, limit_s=limit_s)
            if closed is not best and closed.picked is not None and closed.step_s <= limit_s:
                if gap.kept is not None:
                    self._forget(gap.kept)
                self._keep(closed, row)
        self._gaps.clear()
        return self.found

    def _forget(self, candidate: Candidate) -> None:
        """Takes a split that a better one of its family replaces out of the ranking."""
        self.found.ranked = [other for other in self.found.ranked if other is not candidate]
        if candidate.value in self.values:
            self.values.remove(candidate.value)

    def _close(self, best: Best, *, bound_s: float, limit_s: float) -> Best:
        """Asks CP-SAT for what lies between the bound and the best split; where it fails the closed form stands."""
        target_s = min(best.step_s, limit_s)
        # The model is built again under the limit that is known by now, which leaves fewer choices and a smaller program.
        tight = build_one_pool_split(
            self.job,
            best.model.row,
            headroom_fraction=self.headroom_fraction,
            limit_s=target_s,
            per_stage_recompute=best.model.per_stage_recompute,
        )
        if tight is None or not tight.is_feasible:
            return best
        closed = close_gap(tight, bound_s=bound_s, target_s=target_s, solver=self.solver, should_stop=self.should_stop)
        self.found.solved += closed.solved
        self._unproven(best.model, closed.unproven_s)
        if closed.failure is not None and closed.failure not in self.found.failures:
            self.found.failures.append(closed.failure)
        return best if closed.picked is None else Best(tight, closed.picked, closed.step_s)

    def _unproven(self, model: OnePoolSplit, bound_s: float) -> None:
        if not model.per_stage_recompute:  # the ranking's proof is about plans that can be launched
            self.found.unproven_s = min(self.found.unproven_s, bound_s)

    def _keep(self, best: Best, row: Strategies) -> Candidate | None:
        """Ranks a split, or keeps it apart where the framework cannot be told; what was ranked."""
        assert best.picked is not None
        layout = best.model.layout(best.picked)
        if layout == row.layouts.table[int(row.layout[0])]:
            return None  # a listed split: ranked already
        strategies = replace(row, layout=np.zeros(1, np.int64), layouts=build_layouts([layout], model=self.job.model))
        step_s = step_time(self.job, strategies).total_s
        value = float(self.goal.value(strategies, step_s)[0])
        candidate = Candidate(strategies, layout, float(step_s[0]), value)
        if not self.goal.reached(step_s)[0]:
            return None
        if not best.model.per_stage_recompute and violations(self.job, strategies).legal[0]:
            self.found.ranked.append(candidate)
            self.values = sorted([*self.values, value])[: self.top_k]
            return candidate
        if not (best.model.per_stage_recompute and self.counts_given):
            known = self.found.inexpressible
            if known is None or value < known.value:
                self.found.inexpressible = candidate
        return None

    @property
    def _limit(self) -> float:
        """Value above which nothing counts: the k-th best where splits can be told, else the best."""
        if self.freely:
            return self.values[-1] * (1.0 + TOLERANCE) if len(self.values) == self.top_k else np.inf
        return self._best_value * (1.0 + TOLERANCE)

    @property
    def _best_value(self) -> float:
        """The best value of all, launchable or not."""
        best = self.values[:1] + ([self.found.inexpressible.value] if self.found.inexpressible else [])
        return min(best, default=np.inf)


def _recomputing(row: Strategies, method: int, count: int) -> Strategies:
    """The strategy with this full recomputation."""
    return replace(row, recompute_method=np.array([method], np.int8), recompute_num_layers=np.array([float(count)]))


@dataclass(frozen=True, slots=True)
class Best:
    """The best split of one model so far."""

    model: OnePoolSplit
    picked: tuple[int, ...] | None
    step_s: float


@dataclass(frozen=True, slots=True)
class _Gap:
    """A family whose balanced split lies above its bound."""

    best: Best
    row: Strategies
    bound_s: float
    kept: Candidate | None
    """What of it is ranked."""


def _pair_bound_s(base: Strategies, bounds: Bounds, pairs: Pairs, vpp: Floats) -> Floats:
    work_s = (bounds.once + bounds.others)[pairs.origin]
    return open_split_s(bounds.micro_batches[pairs.origin], work_s, base.pp[pairs.origin], vpp)


def merged(
    space: Space,
    best: Strategies | None,
    candidates: list[Candidate],
    *,
    goal: Goal,
    top_k: int,
    at_risk: NDArray[np.bool_],
) -> Strategies | None:
    """The k best of the ranked plans and the new splits, over one table of layouts; `at_risk` ones stay last."""
    if not candidates:
        return best
    table = list(space.layouts.table) + [candidate.layout for candidate in candidates]
    layouts = build_layouts(table, model=space.job.model)
    known = [] if best is None else [replace(best, layouts=layouts)]
    new = [
        replace(candidate.row, layouts=layouts, layout=np.array([len(space.layouts.table) + number]))
        for number, candidate in enumerate(candidates)
    ]
    rows = concatenated([*known, *new])
    values = goal.value(rows, step_time(space.job, rows).total_s)
    last = np.concatenate([at_risk, np.zeros(len(new), np.bool_)])
    return rows.take(ranked_order(values, rows, last=last)[:top_k])
