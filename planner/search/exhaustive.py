"""Exact search: every legal strategy of a space is ranked, or shown by a bound to lose to the k best found.

Cheapest first. Base rows (degrees and micro-batch) that break no rule are ordered by a lower bound on their step time. In that
order they are checked against the least memory that any of their expansions could need, then expanded, memory before time,
until the bound of the next one exceeds the k-th best: what is left cannot be among the top k.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from cost_models.evaluate import Verdict, memory_verdict
from cost_models.memory import stage_memory
from cost_models.stages import Tables
from cost_models.step import step_time
from cost_models.strategy import Floats, Ints, Recompute, Strategies, concatenated
from planner.rules import Violations, violations
from planner.search.bounds import Bounds, build_bounds, floor_s
from planner.search.found import Found, Progress
from planner.search.objective import Goal, ranked_order
from planner.space import Expansion, Space

FIRST_CHUNK, LARGEST_CHUNK = 64, 8192
"""Base rows expanded at a time: few at first, so that a good k-th best prunes early."""
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
BOUND_SLACK = 1e-9
"""Relative allowance for rounding when a bound is compared with the k-th best."""
BASE_CODES = frozenset({
    "world-exceeds-gpus", "batch-not-divisible", "heads-not-divisible", "kv-heads-not-divisible", "mlp-not-divisible",
    "sequence-not-divisible", "sequence-parallel-needs-tp", "sequence-parallel-unsupported",
    "tensor-parallel-unsupported", "pipeline-unsupported", "context-parallel-unsupported",
    "context-parallel-needs-flash", "experts-missing", "experts-not-divisible", "expert-mlp-not-divisible",
    "expert-tensor-parallel-unsupported", "moe-needs-sequence-parallel", "precision-unsupported-by-framework",
    "attention-unsupported-by-gpu", "optimizer-unsupported",
})  # fmt: skip
"""Rules that read base fields alone, so that a base row that breaks one loses all its expansions; a test holds this."""
NEAREST_KEPT = 32
"""Candidates kept for `nearest_infeasible`."""


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
        keep_legal: bool = False,
        started: float | None = None,
    ) -> None:
        """`keep_legal` is for a search of open splits that follows; the time limit counts from `started`, or from now."""
        self.space, self.goal, self.top_k = space, goal, top_k
        self.headroom_fraction, self.allow_at_risk = headroom_fraction, allow_at_risk
        self.time_limit_s = time_limit_s
        self.on_progress, self.should_stop = on_progress, should_stop
        self.found = Found(best=None, rejected=Counter())
        self._values = np.zeros(0)
        self._step_s = np.zeros(0)
        self._at_risk = np.zeros(0, np.bool_)
        self._needed = np.zeros(0)
        self.keep_legal = keep_legal
        self.legal: list[tuple[Strategies, Bounds]] = []
        """Base rows that break no rule and may win under some split, with their bounds: what open splits start from."""
        self.unkept_s = np.inf
        """Lower bound of such rows that there was no room for."""
        self._unsearched_s: float | None = None
        """Lower bound of what an early stop left out."""
        self.started = perf_counter() if started is None else started

    def run(self) -> Found:
        """The k best strategies, and how sure that is."""
        worlds = self.space.degrees.worlds
        if len(worlds):
            promising = worlds == (worlds.min() if self.goal.objective == "fewest_gpus" else worlds.max())
            self._search(np.flatnonzero(promising))
            self._search(np.flatnonzero(~promising))
        self.found.lower_bound_s = self._lower_bound()
        self.found.elapsed_s = perf_counter() - self.started
        return self.found

    def _search(self, meshes: Ints) -> None:
        """Searches what these meshes stand for, so many base rows at a time."""
        for block in self.space.degrees.blocks(self._may_win(meshes), most_rows=MOST_BASE_ROWS):
            wins = self._may_win(block)
            if len(wins) and not self._search_block(wins):
                self._leave_out(float(self._floor_s(wins).min()))

    def _floor_s(self, meshes: Ints) -> Floats:
        return floor_s(self.space, self.space.degrees.worlds[meshes].astype(np.float64))

    def _may_win(self, meshes: Ints) -> Ints:
        """Those of the meshes that use enough GPUs: the others' matmuls alone take too long."""
        floor = self._floor_s(meshes)
        reached = self.goal.reached(floor)
        worlds = self.space.degrees.worlds[meshes].astype(np.float64)
        wins = reached & (self.goal.value_of_world(worlds, floor) <= self._limit())
        counts = self.space.mesh_sizes[meshes]
        self.found.rejected["misses-target"] += int(counts[~reached].sum())
        self.found.bounded += int(counts[reached & ~wins].sum())
        return meshes[wins]

    def _search_block(self, meshes: Ints) -> bool:
        """Searches all base rows of these meshes; false where the search was stopped before their bounds were known."""
        if self.must_stop():
            return False
        base = self._legal_base(self.space.base(meshes))
        if self.must_stop():
            return False
        bounds = build_bounds(self.space, base)
        hopeless = ~self.goal.reached(bounds.step_s)
        if hopeless.any():
            self.found.rejected["misses-target"] += int(self.space.multiplicity(base.pp[hopeless]).sum())
            base, bounds = base.take(~hopeless), bounds.take(~hopeless)
        self._search_in_order(base, bounds, values=self.goal.value(base, bounds.step_s))
        self._keep_for_open_splits(base, bounds)
        return True

    def _keep_for_open_splits(self, base: Strategies, bounds: Bounds) -> None:
        """Remembers base rows that may still win under another split of their layers."""
        if not self.keep_legal:
            return
        open_s = bounds.open_split_s(base.pp)
        wins = (base.pp > 1) & (self.goal.value(base, open_s) <= self._limit())
        if not wins.any():
            return
        if sum(len(kept) for kept, _ in self.legal) + int(wins.sum()) > MOST_KEPT_ROWS:
            self.unkept_s = min(self.unkept_s, float(open_s[wins].min()))
        else:
            self.legal.append((base.take(wins), bounds.take(wins)))

    def _search_in_order(self, base: Strategies, bounds: Bounds, *, values: Floats) -> None:
        """Searches base rows in the order of the values that their bounds allow."""
        multiplicity = self.space.multiplicity(base.pp)
        order = np.argsort(values, kind="stable")
        values = values[order]
        start, size = 0, FIRST_CHUNK
        while start < len(base):
            stop = min(start + size, self._first_loser(values))
            if stop <= start:
                break
            stop = start + max(1, int(np.searchsorted(np.cumsum(multiplicity[order[start:stop]]), MAX_PAIRS, "right")))
            if self.must_stop():
                self._leave_out(float(bounds.step_s[order[start:]].min()))
                return
            chosen = order[start:stop]
            chosen = chosen[self._enough_memory(base.take(chosen), multiplicity[chosen])]
            self._expand(base.take(chosen), bounds.take(chosen))
            start, size = stop, min(4 * size, LARGEST_CHUNK)
            self._report(bounds.step_s[order[start]] if start < len(base) else None)
        self.found.bounded += int(multiplicity[order[start:]].sum())

    def _leave_out(self, bound_s: float) -> None:
        """Notes that strategies of this bound were not looked at."""
        self.found.optimal = False
        self._unsearched_s = bound_s if self._unsearched_s is None else min(self._unsearched_s, bound_s)

    def _first_loser(self, values: Floats) -> int:
        """Position in these ascending values from which on even the bound is worse than the k-th best."""
        return int(np.searchsorted(values, self._limit(), side="right"))

    def _legal_base(self, base: Strategies) -> Strategies:
        """Base rows that break no rule that concerns base fields alone."""
        found = violations(self.space.job, base).only(BASE_CODES)
        if found.legal.all():
            return base
        self._count_rejected(found, weights=self.space.multiplicity(base.pp))
        return base.take(found.legal)

    def _enough_memory(self, base: Strategies, multiplicity: Ints) -> NDArray[np.bool_]:
        """Base rows of which some expansion could fit: the leanest choices decide, every ZeRO stage and split tried."""
        if any(len(values) > 1 for values in self.space.knobs.values()):
            return np.ones(len(base), np.bool_)  # a knob may save memory that the leanest choices below don't
        possible = np.zeros(len(base), np.bool_)
        modes = sorted({Recompute(mode) for mode in self.space.recompute_modes}, reverse=True)
        leanest, num_splits = modes[0], self.space.num_splits(base.pp)
        for others, recompute, zero in product((False, True), modes, sorted(self.space.zeros, reverse=True)):
            rest = np.flatnonzero(~possible & ((num_splits > 1) | (not others)))
            if not len(rest):
                continue
            # The first split of each is asked alone, since it mostly fits where any does; then all others at once.
            each = num_splits[rest] - 1 if others else np.ones(len(rest), np.int64)
            row = np.repeat(rest, each)
            split = np.arange(len(row)) - np.repeat(np.cumsum(each) - each, each) + others
            fits = self._could_fit(self.space.leanest(base.take(row), zero=zero, recompute=recompute, split=split))
            possible[row[fits]] = True
        self._count_impossible(base.take(~possible), multiplicity[~possible])
        if self.found.best is None and not possible.all():
            lean = self.space.leanest(base.take(~possible), zero=max(self.space.zeros), recompute=leanest)
            lean = lean.take(violations(self.space.job, lean).legal)
            if len(lean):
                self._keep_nearest(lean, stage_memory(self.space.job, lean).device_high)
        return possible

    def _count_impossible(self, base: Strategies, multiplicity: Ints) -> None:
        """Counts base rows of which nothing fits; where a knob that the request fixes breaks a rule with every choice of the
        others, the rule is the reason.
        """
        legal = np.full(len(base), not self.space.knobs)
        for recompute, zero in product(self.space.recompute_modes, self.space.zeros) if self.space.knobs else ():
            lean = self.space.leanest(base, zero=zero, recompute=Recompute(recompute))
            found = violations(self.space.job, lean)
            legal |= found.legal
        if not legal.all():
            broken = Violations(found.flags[~legal], found.active)
            self._count_rejected(broken, weights=multiplicity[~legal])
        self.found.rejected["out-of-memory"] += int(multiplicity[legal].sum())

    def _could_fit(self, rows: Strategies) -> NDArray[np.bool_]:
        memory = stage_memory(self.space.job, rows)
        verdict, _ = memory_verdict(self.space.job, memory, headroom_fraction=self.headroom_fraction)
        return np.asarray(verdict != Verdict.OOM)

    def _expand(self, base: Strategies, bounds: Bounds) -> None:
        """Evaluates what these base rows stand for in the order of its own bounds, while they may still win."""
        if not len(base):
            return
        pairs = self.space.pairs(base)
        world = self.goal.value_of_world(base.world[pairs.origin], bounds.paired_s(self.space, pairs))
        may_win = np.flatnonzero(world <= self._limit())
        self.found.bounded += len(world) - len(may_win)
        order = may_win[np.argsort(world[may_win], kind="stable")]
        values = world[order]
        start, most = 0, FIRST_ROWS if self.found.best is None else MAX_ROWS_AT_ONCE
        while start < len(order):
            stop = min(start + most, self._first_loser(values))
            if stop <= start:
                break
            self._evaluate(self.space.expand(base, pairs.take(np.sort(order[start:stop]))), bounds.tables)
            start, most = stop, MAX_ROWS_AT_ONCE
        self.found.bounded += len(order) - start

    def _evaluate(self, expansion: Expansion, tables: Tables | None) -> None:
        job = self.space.job
        found = violations(job, expansion.rows)
        self._count_rejected(found, weights=None)
        expansion = expansion.take(found.legal)
        if not len(expansion.rows):
            return
        memory = stage_memory(job, expansion.rows)
        verdict, _ = memory_verdict(job, memory, headroom_fraction=self.headroom_fraction)
        self._note_memory(expansion.rows, memory.device_high, verdict)
        self.found.feasible += int((verdict == Verdict.FITS).sum())
        kept = verdict != Verdict.OOM if self.allow_at_risk else verdict == Verdict.FITS
        if kept.any():
            self._time_families(expansion.take(kept), tables, at_risk=verdict[kept] == Verdict.AT_RISK)

    def _time_families(self, expansion: Expansion, tables: Tables | None, *, at_risk: NDArray[np.bool_]) -> None:
        """Times the least recomputation of each family, then the rest of the families that may still win."""
        rows, family = expansion.rows, expansion.family
        full = np.flatnonzero(rows.recompute == Recompute.FULL)  # within a family in the order of rising work
        least = full[np.unique(family[full], return_index=True)[1]]
        first = np.ones(len(rows), np.bool_)
        first[full] = False
        first[least] = True
        first[rows.offload_activation_layers > 0] = True  # recomputing more leaves less to send: it may be faster
        value = self._time(expansion, tables, first, at_risk)
        family_value = np.full(int(family.max()) + 1, -np.inf)
        family_value[family[least]] = value[least]
        rest = ~first & (family_value[family] <= self._limit())  # recomputing more is never faster
        self.found.bounded += int((~first & ~rest).sum())
        self._time(expansion, tables, rest, at_risk)

    def _time(
        self, expansion: Expansion, tables: Tables | None, which: NDArray[np.bool_], at_risk: NDArray[np.bool_]
    ) -> Floats:
        """Times some of the rows, keeps the best, and returns the value of each; infinite where not timed."""
        values = np.full(len(expansion.rows), np.inf)
        if not which.any():
            return values
        chosen = expansion.rows.take(which)
        known = None if tables is None else tables.at(expansion.origin[which])
        step_s = step_time(self.space.job, chosen, tables=known).total_s
        self.found.evaluated += len(chosen)
        values[which] = self.goal.value(chosen, step_s)
        reached = self.goal.reached(step_s)
        self.found.rejected["misses-target"] += int((~reached).sum())
        self._merge(chosen.take(reached), values[which][reached], step_s[reached], at_risk[which][reached])
        return values

    def _note_memory(self, rows: Strategies, device_high: Floats, verdict: NDArray[np.int8]) -> None:
        oom, risky = verdict == Verdict.OOM, verdict == Verdict.AT_RISK
        self.found.rejected["out-of-memory"] += int(oom.sum())
        self.found.at_risk += int(risky.sum())
        if not self.allow_at_risk:
            self.found.rejected["at-risk-of-memory"] += int(risky.sum())
        missed = np.flatnonzero(oom if self.allow_at_risk else oom | risky)
        if len(missed):
            self._keep_nearest(rows.take(missed), device_high[missed])

    def _keep_nearest(self, rows: Strategies, needed: Floats) -> None:
        """Keeps the candidates that need the least memory of those that need too much."""
        if len(rows) > NEAREST_KEPT:
            few = np.flatnonzero(needed <= np.partition(needed, NEAREST_KEPT)[NEAREST_KEPT])
            rows, needed = rows.take(few), needed[few]
        if self.found.nearest is not None:
            rows = concatenated([self.found.nearest, rows])
            needed = np.concatenate([self._needed, needed])
        order = ranked_order(needed, rows, last=np.zeros(len(rows), np.bool_))[:NEAREST_KEPT]
        self.found.nearest, self._needed = rows.take(order), needed[order]

    def _merge(self, rows: Strategies, values: Floats, step_s: Floats, at_risk: NDArray[np.bool_]) -> None:
        """Keeps the k best of what was kept before and these."""
        promising = np.flatnonzero(values <= self._kth_value())
        if not len(promising):
            return
        rows, values, step_s, at_risk = rows.take(promising), values[promising], step_s[promising], at_risk[promising]
        if self.found.best is not None:
            rows = concatenated([self.found.best, rows])
            values, step_s = np.concatenate([self._values, values]), np.concatenate([self._step_s, step_s])
            at_risk = np.concatenate([self._at_risk, at_risk])
        order = ranked_order(values, rows, last=at_risk)[: self.top_k]
        self.found.best, self._values = rows.take(order), values[order]
        self._step_s, self._at_risk = step_s[order], at_risk[order]

    @property
    def at_risk(self) -> NDArray[np.bool_]:
        """Which of the best strategies may exceed memory."""
        return self._at_risk

    @property
    def safe_values(self) -> Floats:
        """Values of the best strategies that surely fit, best first."""
        return self._values[~self._at_risk]

    def _limit(self) -> float:
        """Value above which a bound has lost."""
        return self._kth_value() * (1.0 + BOUND_SLACK)

    def _kth_value(self) -> float:
        """Value that a strategy must beat; infinite until k safe ones are known."""
        safe = self.safe_values
        return float(safe[-1]) if len(safe) >= self.top_k else np.inf

    def _count_rejected(self, found: Violations, *, weights: NDArray[np.int64] | None) -> None:
        for code, count in found.counts(weights).items():
            self.found.rejected[code] += count

    def must_stop(self) -> bool:
        """Whether the caller or the time limit ends the search here."""
        if self.should_stop is not None and self.should_stop():
            self.found.stopped = "cancelled"
        elif self.time_limit_s is not None and perf_counter() - self.started > self.time_limit_s:
            self.found.stopped = "time"
        return self.found.stopped is not None

    def _lower_bound(self) -> float | None:
        """Least step time that any plan worth ranking can have, as far as it is known."""
        known = [] if self._unsearched_s is None else [self._unsearched_s]
        if self.found.best is not None:
            known.append(float(self._step_s.min()))
        return min(known, default=None)

    def _report(self, bound_s: float | None) -> None:
        if self.on_progress is None:
            return
        best = None if self.found.best is None else float(self._step_s[0])
        self.on_progress(
            Progress(evaluated=self.found.evaluated, best_s=best, bound_s=best if bound_s is None else bound_s)
        )
