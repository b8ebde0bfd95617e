"""Splits of layers over stages beyond the listed ones, and recomputation stage by stage: the best of every family.

A *family* is a strategy whose split is open: degrees, ZeRO, sharding, virtual stages, recomputation. Families are taken in
the order of a bound that holds for every split; each is solved by thresholds, and by CP-SAT where those leave a gap, while
its bound is below the k-th best known. What the framework cannot be told is kept apart as the inexpressible best.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from cost_models.step.fsdp_comm import is_fsdp
from cost_models.step.total import jitter_fraction, step_time
from cost_models.strategies.fields import Recompute, RecomputeMethod
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.strategy import Floats, Strategies
from planner.rules import violations
from planner.rules.expressible import SPLIT_CODES, splits_freely
from planner.search.bounds import Bounds, open_split_s
from planner.search.budget import best_first
from planner.search.objective import Goal
from planner.splits.bounds import split_bound_s
from planner.splits.builder import TooManyChoicesError
from planner.splits.cp_sat import Program, Solved, solve
from planner.splits.descent import settle, start_of
from planner.splits.found import Best, Candidate, Gap, OpenSplitsFound
from planner.splits.gaps import TOLERANCE, close_gap, has_gap
from planner.splits.lone_stages import Headroom
from planner.splits.memory_screen import could_hold
from planner.splits.model import PRICED_SCHEDULES, SplitModel, SplitNumbers, slowest_allowed_s, split_numbers
from planner.splits.one_pool import OnePoolSplit, build_one_pool_split
from planner.splits.paths import Paths, close_by_paths
from planner.splits.thresholds import Balanced, balance
from planner.splits.virtual_stages import is_played
from planner.strategies.expansion import Pairs
from planner.strategies.repetitions import full_recomputes
from planner.strategies.space import Space

# Larger parts would bound many families that the limit excludes a moment later.
CHUNK = 8192
"""Base rows whose families are bounded at a time."""
_NEAR = 1.08
"""Times the best, within which a split over unequal virtual stages is made better at once."""
PART = 16_384
"""Families whose memory is screened at a time."""
MOST_VIRTUAL = 2_500
"""Families with virtual stages that are solved, best bound first; what the others could gain is said by the gap."""


class OpenSplits:
    """One search over open splits; `run` takes base rows in as many parts as they come, `close` ends it."""

    def __init__(
        self,
        space: Space,
        *,
        goal: Goal,
        top_k: int,
        headroom_fraction: Headroom,
        known: Floats,
        should_stop: Callable[[], bool],
        on_family: Callable[[float], None] | None = None,
        listed: Collection[Layout] = (),
        solver: Callable[..., Solved] = solve,
        program: Callable[[SplitModel], Program] = Program,
        most_virtual: int = MOST_VIRTUAL,
    ) -> None:
        """`known` are the values of the plans that are known, best first; `listed` the splits that these were taken from; with the
        headroom None it is enough that a split may fit.
        """
        self.listed = frozenset(listed)
        self.paths = Paths()
        self.space, self.job, self.goal, self.top_k = space, space.job, goal, top_k
        self.headroom_fraction = headroom_fraction
        self.values = sorted(known.tolist())[:top_k]
        self.should_stop, self.on_family = should_stop, on_family
        self.freely = splits_freely(space.job)
        self.counts_given = counts_are_given(space)
        self.solver, self.program, self.most_virtual = solver, program, most_virtual
        self.found = OpenSplitsFound()
        self._gaps: list[Gap] = []
        self._virtual: bool | None = None
        self._solved_virtual = 0

    def run(self, base: Strategies, bounds: Bounds, *, virtual: bool | None = None) -> OpenSplitsFound:
        """Solves every family that may still win; `base` are the legal base rows.

        `virtual` asks for those with virtual stages alone, or for those without: the splits of the latter are soon known.
        """
        self._virtual = virtual
        least_s = bounds.open_split_s(base.pp, vpp=self.space.splits.most_vpp[base.pp.astype(np.int64)])
        values = self.goal.value(base, least_s)
        if self._ends():
            self.found.left.add(least_s, values)
            return self.found
        open_base = np.flatnonzero(base.pp > 1)
        for part, rest in best_first(values[open_base], limit=lambda: self._limit, most=CHUNK):
            chunk = open_base[part]
            if not self._families(base.take(chunk), bounds.take(chunk)):
                later = open_base[rest[len(part) :]]
                self.found.left.add(least_s[later], values[later])
                break
        return self.found

    def _ends(self) -> bool:
        """Whether the search ends here: it was stopped, or enough families with virtual stages are solved."""
        self.found.stopped = self.found.stopped or self.should_stop()
        return self.found.stopped or (self._virtual is True and self._solved_virtual >= self.most_virtual)

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
                if self._ends():
                    later = rest[np.flatnonzero(rest == index)[0] :]
                    self.found.left.add(bound_s[later], values[later])
                    return False
                self._solved_virtual += self._virtual is True
                at = np.array([index])
                self._solve(rows.take(at), numbers.take(at))
                if self.on_family is not None:
                    self.on_family(float(bound_s[index]))
        return True

    def _rows(self, base: Strategies, bounds: Bounds) -> Strategies:
        """One legal row for each family that may win: `full` stands for every count of recomputed layers."""
        options = self.space.options
        full = options["recompute"] == Recompute.FULL
        last = np.append(np.diff(options["family"]) != 0, True)
        pairs = self.space.distinct_pairs(base)
        pairs = pairs.take(~full[pairs.option] | last[pairs.option])
        if self._virtual is not None:
            pairs = pairs.take((options["vpp"][pairs.option] > 1) == self._virtual)
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
        return rows.take(violations(self.job, rows).without(SPLIT_CODES).legal)

    def _solve(self, row: Strategies, numbers: SplitNumbers) -> None:
        """The best split of one family; under full recomputation with counts of each stage's own, and with every count."""
        if row.recompute[0] != Recompute.FULL:
            self._best_of(row, numbers)
            return
        ways = full_recomputes(self.space, self._longest_chunk(row, numbers))
        whole = _recomputing(row, RecomputeMethod.EVERY, 0)
        if is_fsdp(self.job, row)[0]:  # what is hidden there depends on how much all stages recompute
            ways = [way for way in ways if way[0] == RecomputeMethod.EVERY]
        elif not self._best_of(whole, numbers, per_stage=True) and (RecomputeMethod.UNIFORM not in dict(ways)):
            return  # no counts at all fit and win, so none that all stages share do; units of several layers hold less
        for way in ways:
            if not self._best_of(_recomputing(row, *way), numbers) and RecomputeMethod.UNIFORM not in dict(ways):
                break  # too slow whatever fits, and larger counts are slower

    def _longest_chunk(self, row: Strategies, numbers: SplitNumbers) -> int:
        """Layers of the longest chunk that a split may have which is fast enough: no larger count differs from all of them."""
        longest = self.job.model.num_layers
        limit_s = self.goal.longest_step_s(float(row.world[0]), self._limit)
        if np.isfinite(limit_s):
            counts_J = np.array([self.job.model.layer_kinds.count(kind) for kind in self.job.model.distinct_kinds])
            work_s = counts_J @ numbers.layer_JN + numbers.first + numbers.last
            allowed_s = slowest_allowed_s(row, work_s, limit_s / (1.0 + jitter_fraction(self.job, row)))
            longest = min(longest, int(np.floor(float(allowed_s[0]) / float(numbers.layer_JN.min()) + 1e-6)))
        return max(longest, 1)

    def _best_of(self, row: Strategies, numbers: SplitNumbers, *, per_stage: bool = False) -> bool:
        """Solves one model and keeps its best split; false where nothing in it is fast enough.

        With counts of each stage's own, also false where nothing fits.
        """
        limit_s = self.goal.longest_step_s(float(row.world[0]), self._limit)
        self.found.families += 1
        try:
            model = build_one_pool_split(
                self.job,
                row,
                headroom_fraction=self.headroom_fraction,
                limit_s=limit_s,
                per_stage_recompute=per_stage,
                numbers=numbers,
            )
        except TooManyChoicesError as error:
            self._failed(error.message)
            self._unproven(row, split_bound_s(self.job, row, numbers), per_stage=per_stage)
            return True
        if model is None:
            return False
        balanced_s = limit_s
        if per_stage:  # ranked by nobody: worth telling apart only where it may be the inexpressible best
            balanced_s = self.goal.longest_step_s(float(row.world[0]), min(self._limit, self._best_value))
        balanced = balance(model, limit_s=balanced_s) if model.is_feasible else None
        if balanced is None or balanced.bound_s > limit_s:
            return not per_stage
        best = self._realised(model, balanced, limit_s=balanced_s)
        kept = self._keep(best, row) if best.layout is not None and best.step_s <= balanced_s else None
        if has_gap(balanced.bound_s, min(best.step_s, balanced_s)):
            gap = Gap(best, row, balanced.bound_s, kept)
            self._gaps.append(gap)
            # What may become plan 1 is made better at once: the sooner its time is known, the more families lose.
            best_s = self.goal.longest_step_s(float(row.world[0]), self._best_value)
            if is_played(model) and best.layout is not None and gap.bound_s < best_s and best.step_s < _NEAR * best_s:
                self._improve(gap, self._descended(gap))
        return True

    def _realised(self, model: OnePoolSplit, balanced: Balanced, *, limit_s: float) -> Best:
        """What thresholds found, with the layers of every virtual stage and the step time that these take."""
        # Events only make it slower, so what has lost already is not priced.
        if balanced.picked is None or balanced.step_s > limit_s * (1.0 + TOLERANCE):
            return Best(model, None, np.inf)
        if not is_played(model):
            return Best(model, model.layout(balanced.picked, balanced.layers), balanced.step_s)
        settled = start_of(model, balanced.picked, balanced.layers)
        return Best(model, model.layout_of(settled.layers, model.counts(balanced.picked)), settled.step_s)

    def close(self) -> OpenSplitsFound:
        """Closes what gaps may still hide a winner, least bound first; called once, after the last `run`.

        Only now, since every family's balanced split is known: most gaps lie above the k-th best of them.
        """
        gaps = sorted(self._gaps, key=lambda gap: gap.bound_s)
        for gap in gaps:  # mostly a descent reaches the bound, and the limit then excludes most others
            limit_s = self._limit_of(gap)
            if is_played(gap.best.model) and gap.best.layout is not None and gap.bound_s <= limit_s:
                self._improve(gap, self._descended(gap))
        for gap in gaps:
            limit_s = self._limit_of(gap)
            if gap.bound_s > limit_s or not has_gap(gap.bound_s, min(gap.best.step_s, limit_s)):
                continue
            if self.found.stopped or self.should_stop():
                self._unproven(gap.row, np.array([gap.bound_s]), per_stage=gap.best.model.per_stage_recompute)
                self.found.stopped = True
                continue
            first = gap.bound_s < self.goal.longest_step_s(float(gap.row.world[0]), self._best_value)
            self._improve(gap, self._close(gap.best, bound_s=gap.bound_s, limit_s=limit_s, may_be_first=first))
        self._gaps.clear()
        return self.found

    def _limit_of(self, gap: Gap) -> float:
        """Step time above which nothing of this family counts."""
        own = gap.best.model.per_stage_recompute
        limit = min(self._limit, self._best_value) if own else self._limit
        return self.goal.longest_step_s(float(gap.row.world[0]), limit)

    def _improve(self, gap: Gap, better: Best) -> None:
        """Puts a better split of a family into the place of the one that was known."""
        if better.step_s >= gap.best.step_s * (1.0 - TOLERANCE) or better.step_s > self._limit_of(gap):
            return
        if gap.kept is not None:
            self._forget(gap.kept)
        gap.best, gap.kept = better, self._keep(better, gap.row)

    def _descended(self, gap: Gap) -> Best:
        """The end of a descent from the split that is known."""
        model, layout = gap.best.model, gap.best.layout
        assert layout is not None
        counts = layout.recompute_per_stage
        settled = settle(model, layout.layers, counts=counts, bound_s=gap.bound_s, should_stop=self.should_stop)
        return Best(model, model.layout_of(settled.layers, counts), settled.step_s)

    def _forget(self, candidate: Candidate) -> None:
        """Takes a split that a better one of its family replaces out of the ranking."""
        self.found.ranked = [other for other in self.found.ranked if other is not candidate]
        if candidate.value in self.values:
            self.values.remove(candidate.value)

    def _close(self, best: Best, *, bound_s: float, limit_s: float, may_be_first: bool) -> Best:
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
        if is_played(tight):
            closed = close_by_paths(
                tight,
                bound_s=bound_s,
                target_s=target_s,
                may_be_first=may_be_first,
                paths=self.paths,
                should_stop=self.should_stop,
                program=self.program,
            )
        else:
            closed = close_gap(
                tight, bound_s=bound_s, target_s=target_s, solver=self.solver, should_stop=self.should_stop
            )
        self.found.solved += closed.solved
        unproven_s = np.array([closed.unproven_s])
        self._unproven(best.model.row, unproven_s, per_stage=best.model.per_stage_recompute)
        if closed.failure is not None:
            self._failed(closed.failure)
        if closed.layout is not None:
            return Best(tight, closed.layout, closed.step_s)
        if closed.picked is None:
            return best
        return Best(tight, tight.layout(closed.picked, closed.layers), closed.step_s)

    def _failed(self, message: str) -> None:
        if message not in self.found.failures:
            self.found.failures.append(message)

    def _unproven(self, row: Strategies, bound_s: Floats, *, per_stage: bool) -> None:
        if not per_stage and np.isfinite(bound_s).all():  # the ranking's proof is about plans that can be launched
            self.found.left.add(bound_s, self.goal.value(row, bound_s))

    def _keep(self, best: Best, row: Strategies) -> Candidate | None:
        """Ranks a split, or keeps it apart where the framework cannot be told; what was ranked."""
        layout = best.layout
        assert layout is not None
        if layout in self.listed:
            return None  # ranked already
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


def counts_are_given(space: Space) -> bool:
    """Whether the request says how many layers are recomputed, or by which method."""
    return "recompute_num_layers" in space.chosen or "recompute_method" in space.chosen


def _recomputing(row: Strategies, method: int, count: int) -> Strategies:
    """The strategy with this full recomputation."""
    return replace(row, recompute_method=np.array([method], np.int8), recompute_num_layers=np.array([float(count)]))


def _pair_bound_s(base: Strategies, bounds: Bounds, pairs: Pairs, vpp: Floats) -> Floats:
    work_s = (bounds.once + bounds.others)[pairs.origin]
    return open_split_s(bounds.micro_batches[pairs.origin], work_s, base.pp[pairs.origin], vpp)
