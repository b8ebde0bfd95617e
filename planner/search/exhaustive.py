"""The exact search: every legal strategy of a space is ranked, or a bound shows that it loses to the k best found.

Cheapest first. Base rows (degrees and micro-batch) that break no rule are ordered by a lower bound on their step time. In that
order they are checked against the least memory that any of their expansions could need, then expanded, memory before time,
until the bound of the next one exceeds the k-th best: what is left cannot be among the top k. Sharding over fewer ranks than
all replicas is looked at where it could save enough of the communication between replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product

import numpy as np
from numpy.typing import NDArray

from cost_models.evaluate import Verdict, memory_verdict
from cost_models.memory import stage_memory
from cost_models.step.total import step_time
from cost_models.strategies.fields import Recompute, Schedule
from cost_models.strategies.strategy import Floats, Ints, Strategies
from planner.rules import Violations, violations
from planner.search.base_rows import Queue, base_codes, least_left_s
from planner.search.bounds import Bounds, build_bounds, floors_s, without_replicas_s
from planner.search.budget import Budget
from planner.search.found import Found
from planner.search.kept import Kept, Nearest
from planner.search.leanest import could_fit, least_of_groups, may_fit_in_groups, some_choice_fits
from planner.search.objective import Goal
from planner.search.progress import Progress, progress_of
from planner.strategies.expansion import Expansion, Pairs
from planner.strategies.parts import Part
from planner.strategies.repetitions import leanest_modes
from planner.strategies.searched_knobs import unasked_codes
from planner.strategies.space import Space

FIRST_CHUNK, LARGEST_CHUNK = 64, 2048
"""Base rows that are expanded at a time: few at first, so that a good k-th best is known early and prunes the rest."""
FIRST_ROWS = 1 << 11
"""Expanded strategies evaluated before anything is known: enough for a good k-th best."""
MAX_ROWS_AT_ONCE = 1 << 14
"""Expanded strategies evaluated at a time: bounds memory, and stays near the cache."""
MAX_PAIRS = 1 << 22
"""Expansions of one chunk: where a base row stands for very many, fewer base rows are expanded at a time."""
MOST_BASE_ROWS = 1 << 17
"""Base rows held at a time, some 50 MiB with their bounds: a search of any size stays within memory, and hears of a stop."""
MOST_KEPT_ROWS = 1 << 20
"""Base rows kept for open splits."""
_HOPELESS = 1e300
"""Value of a strategy that no open choice can bring below the targets."""


class Exhaustive:
    """One search; `run` may be called once."""

    def __init__(
        self,
        space: Space,
        *,
        goal: Goal,
        top_k: int,
        headroom_fraction: float,
        allow_at_risk: bool,
        time_limit_s: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
        opened: Space | None = None,
        started: float | None = None,
        max_pairs: int = MAX_PAIRS,
    ) -> None:
        """`opened` is the space of a search of open splits that follows; the time limit counts from `started`, or from now."""
        self.space, self.goal, self.top_k = space, goal, top_k
        self.headroom_fraction, self.allow_at_risk = headroom_fraction, allow_at_risk
        self.budget = Budget(time_limit_s, should_stop, started)
        self.on_progress = on_progress
        self.found = Found(best=None, rejected=Counter())
        self.kept, self.queue = Kept(top_k), Queue()
        self._floors_s, self._later_s = np.zeros(0), np.inf
        self._nearest = Nearest()
        self.opened, self.max_pairs = opened, max_pairs
        self.legal: list[tuple[Strategies, Bounds]] = []
        """Base rows that break no rule and may win under some split, with their bounds: what open splits start from."""
        self.unkept_s = self.unkept_value = np.inf
        """Lower bounds of such rows that there was no room for: seconds of a step, and values."""
        self._unsearched_s = np.inf
        """Lower bound of what an early stop left out."""
        self._left: list[Ints] = []
        """Meshes that an early stop left out before their bounds were known."""

    def run(self) -> Found:
        """The k best strategies, and how sure that is."""
        worlds = self.space.degrees.worlds
        self.found.total = int(self.space.mesh_sizes.sum())
        if len(worlds):
            self._floors_s = floors_s(self.space)
            # Most often the best plan uses all GPUs (or the fewest, if that is the objective): a good limit prunes the rest.
            promising = worlds == (worlds.min() if self.goal.objective == "fewest_gpus" else worlds.max())
            first, later = np.flatnonzero(promising), np.flatnonzero(~promising)
            self._bound(first, then=later)
            self._bound(later, then=later[:0])
            self._search_queue()
        if self._left:
            meshes = np.concatenate(self._left)
            self._leave_out(least_left_s(self.space, meshes, floors_s=self._floors_s[meshes]))
        self.found.lower_bound_s, self.found.elapsed_s = self._lower_bound(), self.budget.elapsed_s
        self.found.count_unsearched()
        return self.found

    def _bound(self, meshes: Ints, *, then: Ints) -> None:
        """Puts what these meshes stand for into the queue, so many base rows at a time; those of `then` are still to come."""
        blocks = self.space.degrees.blocks(self._may_win(meshes), most_rows=MOST_BASE_ROWS)
        later_s = [self._floors_s[some].min(initial=np.inf) for some in (*blocks, then)]
        for number, block in enumerate(blocks, 1):
            self._later_s = min(later_s[number:])
            wins = self._may_win(block)
            if len(wins) and not self._bound_block(wins):
                self._left.append(wins)
            # The limit of k plans, from a sample of all that comes first, keeps most of the other blocks out of the queue.
            if np.isinf(self.kept.limit) or len(self.queue) > MOST_BASE_ROWS:
                self._search_queue(until_known=len(blocks) > 1 and len(self.queue) <= MOST_BASE_ROWS)
        self._later_s = later_s[-1]

    def _may_win(self, meshes: Ints) -> Ints:
        """Those of the meshes that use enough GPUs: the others' computation alone takes too long."""
        floor = self._floors_s[meshes]
        reached = self.goal.reached(floor)
        worlds = self.space.degrees.worlds[meshes].astype(np.float64)
        wins = reached & (self.goal.value_of_world(worlds, floor) <= self.kept.limit)
        counts = self.space.mesh_sizes[meshes]
        self.found.rejected["misses-target"] += int(counts[~reached].sum())
        self.found.bounded += int(counts[reached & ~wins].sum())
        return meshes[wins]

    def _bound_block(self, meshes: Ints) -> bool:
        """Puts base rows of these meshes into the queue; false where the search was stopped before their bounds were known."""
        if self.must_stop():
            return False
        base = self._legal_base(self.space.base(meshes))
        if len(base) and self.must_stop():
            return False
        bounds = build_bounds(self.space, base)
        under_any_split = base, bounds
        hopeless = ~self.goal.reached(bounds.step_s)
        if hopeless.any():
            self.found.rejected["misses-target"] += int(self.space.multiplicity(base.take(hopeless)).sum())
            base, bounds = base.take(~hopeless), bounds.take(~hopeless)
        self._keep_for_open_splits(*under_any_split)
        loses = self.goal.value(base, bounds.step_s) > self.kept.limit
        self.found.bounded += int(self.space.multiplicity(base.take(loses)).sum())
        self.queue.add(base.take(~loses), bounds.step_s[~loses])
        return True

    def _search_queue(self, *, until_known: bool = False) -> None:
        """Searches what waits, best bound first; if `until_known`, no further than until k plans are known."""
        base = self.queue.take()
        if base is not None:
            bounds = build_bounds(self.space, base)
            self._search_in_order(base, bounds, self.goal.value(base, bounds.step_s), until_known=until_known)

    def _keep_for_open_splits(self, base: Strategies, bounds: Bounds) -> None:
        """Remembers base rows that may still win under another split of their layers."""
        if self.opened is None:
            return
        open_s = bounds.open_split_s(base.pp, vpp=self.opened.splits.most_vpp[base.pp.astype(np.int64)])
        values = self.goal.value(base, open_s)
        wins = (base.pp > 1) & self.goal.reached(open_s) & (values <= self.kept.limit)
        if not wins.any():
            return
        if sum(len(kept) for kept, _ in self.legal) + int(wins.sum()) > MOST_KEPT_ROWS:
            self.unkept_s = min(self.unkept_s, float(open_s[wins].min()))
            self.unkept_value = min(self.unkept_value, float(values[wins].min()))
        else:
            self.legal.append((base.take(wins), bounds.take(wins)))

    def _search_in_order(self, base: Strategies, bounds: Bounds, values: Floats, *, until_known: bool) -> None:
        """Searches base rows in the order of the values that their bounds allow."""
        multiplicity = self.space.multiplicity(base)
        order = np.argsort(values, kind="stable")
        values = values[order]
        start, size = 0, FIRST_CHUNK
        while start < len(base):
            stop = min(start + size, self._first_loser(values))
            if stop <= start:
                break
            stop = start + max(1, int(multiplicity[order[start:stop]].cumsum().searchsorted(self.max_pairs, "right")))
            if self.must_stop():
                self._leave_out(float(bounds.step_s[order[start:]].min()))
                return
            if until_known and np.isfinite(self.kept.limit):
                self.queue.add(base.take(order[start:]), bounds.step_s[order[start:]])
                return
            chosen = order[start:stop]
            chosen = chosen[self._enough_memory(base.take(chosen), multiplicity[chosen])]
            self._expand(base.take(chosen), bounds.take(chosen))
            start, size = stop, min(4 * size, LARGEST_CHUNK)
            self._report(float(bounds.step_s[order[start:]].min(initial=np.inf)))
        self.found.bounded += int(multiplicity[order[start:]].sum())

    def _leave_out(self, bound_s: float) -> None:
        """Notes that strategies of this bound were not looked at."""
        self.found.optimal, self._unsearched_s = False, min(self._unsearched_s, bound_s)

    def _first_loser(self, values: Floats) -> int:
        """Position in these ascending values from which on even the bound is worse than the k-th best."""
        return int(np.searchsorted(values, self.kept.limit, side="right"))

    def _legal_base(self, base: Strategies) -> Strategies:
        """Base rows that break no rule that concerns base fields alone."""
        found = violations(self.space.job, base).only(base_codes(self.space.job))
        if found.legal.all():
            return base
        self._count_rejected(found, weights=self.space.multiplicity(base))
        return base.take(found.legal)

    def _enough_memory(self, base: Strategies, multiplicity: Ints) -> NDArray[np.bool_]:
        """Base rows of which some expansion could fit: the leanest choices decide, every ZeRO stage and split tried."""
        if not self.space.leanest_is_known or Part.MEMORY_SCREEN in self.space.without:
            return np.ones(len(base), np.bool_)  # something else may need less than the choices below
        possible = some_choice_fits(self.space, base, lambda rows: could_fit(self.space.job, rows))
        self._count_impossible(base.take(~possible), multiplicity[~possible])
        if self.found.best is None and not possible.all():
            modes = leanest_modes(self.space)
            lean = self.space.leanest(base.take(~possible), zero=max(self.space.zeros), modes=modes)
            lean = lean.take(violations(self.space.job, lean).legal)
            if len(lean):
                self._keep_nearest(lean, stage_memory(self.space.job, lean).device_high)
        return possible

    def _count_impossible(self, base: Strategies, multiplicity: Ints) -> None:
        """Counts base rows of which nothing fits; where a knob breaks a rule with every choice of the others, that is the reason."""
        legal = np.full(len(base), not self.space.asks_knobs)
        for mode, zero in product(leanest_modes(self.space), self.space.zeros) if self.space.asks_knobs else ():
            lean = self.space.leanest(base, zero=zero, modes=[mode])
            found = violations(self.space.job, lean).without(unasked_codes(self.space))
            legal |= found.legal
        if not legal.all():
            self._count_rejected(found.take(~legal), weights=multiplicity[~legal])
        self.found.rejected["out-of-memory"] += int(multiplicity[legal].sum())

    def _expand(self, base: Strategies, bounds: Bounds) -> None:
        """Evaluates what these base rows stand for in the order of its own bounds, while they may still win."""
        if not len(base):
            return
        pairs = self.space.distinct_pairs(base)
        world = self.goal.value_of_world(base.world[pairs.origin], bounds.paired_s(self.space, pairs))
        may_win = np.flatnonzero(world <= self.kept.limit)
        weights = 1 + self.space.num_groups(base, pairs)
        self.found.bounded += int(self.space.multiplicity(base).sum() - weights[may_win].sum())
        order = may_win[np.argsort(world[may_win], kind="stable")]
        values = world[order]
        start, most = 0, FIRST_ROWS if self.found.best is None else MAX_ROWS_AT_ONCE
        while start < len(order):
            stop = min(start + most, self._first_loser(values))
            if stop <= start:
                break
            self._evaluate(base, pairs.take(np.sort(order[start:stop])), bounds)
            start, most = stop, MAX_ROWS_AT_ONCE
        self.found.bounded += int(weights[order[start:]].sum())

    def _evaluate(self, base: Strategies, pairs: Pairs, bounds: Bounds) -> None:
        """Judges and prices these pairs, and those of their groups of fewer ranks that may still win.

        Fewer ranks that share the state hold more of it each, and gain nothing but communication between replicas: what
        a pair takes without that is a bound for all its groups, and what is illegal or does not fit stays so.
        """
        open_values = self._priced(base, pairs, bounds)
        if Part.GROUP_BOUNDS in self.space.without:
            open_values[np.isfinite(open_values)] = 0.0
        # The groups of what is rejected have been counted, and no limit is known before there are k plans.
        rest = np.flatnonzero(np.isfinite(open_values) & (open_values <= self.kept.limit))
        groups = self.space.num_groups(base, pairs)
        self.found.bounded += int(groups[np.isfinite(open_values)].sum() - groups[rest].sum())
        rest = rest[groups[rest] > 0]
        ends = np.flatnonzero(np.diff(np.cumsum(groups[rest]) // MAX_ROWS_AT_ONCE)) + 1
        for part in np.split(rest, ends) if len(rest) else ():
            if self.must_stop():
                self._leave_out(float(bounds.step_s[pairs.origin[part]].min()))
                continue
            may_win = part[open_values[part] <= self.kept.limit]
            self.found.bounded += int(groups[part].sum() - groups[may_win].sum())
            self._priced(base, self.space.grouped(base, pairs.take(may_win)), bounds)

    def _priced(self, base: Strategies, pairs: Pairs, bounds: Bounds) -> Floats:
        """Judges and prices these pairs. Returns a value that none of a pair's groups of fewer ranks is below, infinite where
        they are all illegal or too large, shape of `pairs`; the groups of what is rejected count as rejected too.
        """
        job, open_values = self.space.job, np.full(len(pairs.origin), np.inf)
        if not len(pairs.origin):
            return open_values
        expansion = self.space.expand(base, pairs)
        weights = 1 + np.where(pairs.in_groups, 0, self.space.num_groups(base, pairs))
        found = violations(job, expansion.rows)
        asked = found.only(unasked_codes(self.space)).legal
        self._count_rejected(found, weights=weights * asked)
        self.found.bounded += int(weights[~asked].sum())  # nobody asked for these, so they are no rejections
        legal = np.flatnonzero(found.legal)
        expansion, weights = expansion.take(legal), weights[legal]
        if not len(legal):
            return open_values
        memory = stage_memory(job, expansion.rows)
        verdict, _ = memory_verdict(job, memory, headroom_fraction=self.headroom_fraction)
        kept = verdict != Verdict.OOM if self.allow_at_risk else verdict == Verdict.FITS
        near = ~kept & may_fit_in_groups(
            job, least_of_groups(job, memory), self.headroom_fraction, allow_at_risk=self.allow_at_risk
        )
        self._note_memory(expansion.rows, memory.device_high, verdict, weights=np.where(kept | near, 1, weights))
        open_values[legal[near]] = self._bound_values(bounds, expansion.take(near))
        if kept.any():
            timed = self._time_families(expansion.take(kept), bounds, at_risk=verdict[kept] == Verdict.AT_RISK)
            open_values[legal[kept]] = timed
        return open_values

    def _bound_values(self, bounds: Bounds, expansion: Expansion) -> Floats:
        """Values that these rows are not below."""
        return self.goal.value_of_world(expansion.rows.world, bounds.paired_s(self.space, expansion.pairs))

    def _time_families(self, expansion: Expansion, bounds: Bounds, *, at_risk: NDArray[np.bool_]) -> Floats:
        """Times the least recomputation of each family, then the rest of the families that may still win; what `_priced`
        returns of these rows.
        """
        rows, family = expansion.rows, expansion.family
        full = np.flatnonzero(rows.recompute == Recompute.FULL)  # within a family in the order of rising work
        least = full[np.unique(family[full], return_index=True)[1]]
        first = np.ones(len(rows), np.bool_)
        first[full] = Part.RISING_WORK in self.space.without
        first[least] = True
        first[rows.offload_activation_layers > 0] = True  # recomputing more leaves less to send: it may be faster
        first[(rows.schedule >= Schedule.ZB_H1) & (rows.num_micro_batches < rows.pp)] = True  # or shorten the bubble
        values, open_s = self._time(expansion, bounds, first, at_risk)
        family_value, family_open_s = (np.full(int(family.max()) + 1, -np.inf) for _ in range(2))
        family_value[family[least]], family_open_s[family[least]] = values[least], open_s[least]
        rest = ~first & (family_value[family] <= self.kept.limit)  # recomputing more is never faster
        self.found.bounded += int((~first & ~rest).sum())
        _, rest_open_s = self._time(expansion, bounds, rest, at_risk)
        open_s = np.where(first, open_s, np.where(rest, rest_open_s, family_open_s[family]))
        open_s = np.maximum(open_s, bounds.paired_s(self.space, expansion.pairs))
        return np.where(self.goal.reached(open_s), self.goal.value_of_world(rows.world, open_s), _HOPELESS)

    def _time(
        self, expansion: Expansion, bounds: Bounds, which: NDArray[np.bool_], at_risk: NDArray[np.bool_]
    ) -> tuple[Floats, Floats]:
        """Times some of the rows and keeps the best. Returns a value of each that more recomputation is not below, and the seconds
        of each that its groups of fewer ranks cannot save; infinite where not timed.
        """
        values, open_s = np.full(len(expansion.rows), np.inf), np.full(len(expansion.rows), np.inf)
        if not which.any():
            return values, open_s
        job, chosen, pairs = self.space.job, expansion.rows.take(which), expansion.pairs.take(which)
        time = step_time(job, chosen, tables=bounds.paired_tables(self.space, pairs))
        self.found.evaluated += len(chosen)
        own = self.goal.value(chosen, time.total_s)
        # Work that hides communication may cost less than it hides once both are corrected, so that only the uncorrected step rises.
        least_s = time.modelled.total_s * job.corrections.least_time_factor
        values[which] = own if time.uncorrected is None else self.goal.value(chosen, least_s)
        open_s[which] = without_replicas_s(job, chosen, time)
        reached = self.goal.reached(time.total_s)
        self.found.feasible += int(reached.sum())
        self.found.rejected["misses-target"] += int((~reached).sum())
        self.kept.merge(chosen.take(reached), own[reached], time.total_s[reached], at_risk[which][reached])
        self.found.best = self.kept.rows
        return values, open_s

    def _note_memory(self, rows: Strategies, device_high: Floats, verdict: NDArray[np.int8], *, weights: Ints) -> None:
        """Counts what does not fit, so many strategies each, and keeps the nearest."""
        oom, risky = verdict == Verdict.OOM, verdict == Verdict.AT_RISK
        self.found.rejected["out-of-memory"] += int(weights[oom].sum())
        if not self.allow_at_risk:
            self.found.rejected["at-risk-of-memory"] += int(weights[risky].sum())
        missed = np.flatnonzero(oom if self.allow_at_risk else oom | risky)
        if len(missed):
            self._keep_nearest(rows.take(missed), device_high[missed])

    def _keep_nearest(self, rows: Strategies, needed: Floats) -> None:
        self._nearest.merge(rows, needed)
        self.found.nearest = self._nearest.rows

    def _count_rejected(self, found: Violations, *, weights: NDArray[np.int64] | None) -> None:
        for code, count in found.counts(weights).items():
            self.found.rejected[code] += count

    def must_stop(self) -> bool:
        """Whether the caller or the time limit ends the search here."""
        stops = self.budget.must_stop()
        self.found.stopped = self.budget.stopped
        return stops

    def _lower_bound(self) -> float | None:
        """Least step time that any plan worth ranking can have, as far as it is known."""
        best_s = np.inf if self.found.best is None else float(self.kept.step_s.min())
        bound_s = min(self._unsearched_s, best_s)
        return bound_s if np.isfinite(bound_s) else None

    def _report(self, bound_s: float) -> None:
        if self.on_progress is not None:
            best_s = None if self.found.best is None else float(self.kept.step_s[0])
            rest_s = min(bound_s, self._later_s)
            self.on_progress(progress_of(self.found.evaluated, best_s=best_s, rest_s=rest_s))
