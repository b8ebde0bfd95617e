"""Exact search on pools: every legal strategy on every placement, with the best split of its layers, or a bound that it loses.

Sites (base rows on placements) are taken in the order of a bound that holds for all their expansions and splits. Each expands
into families (ZeRO, sharding, virtual stages, recomputation) with bounds of their own; families whose stages cannot hold the
model are left out, the others solved while their bound is below the k-th best known. Zero-bubble schedules are not searched,
nor are recomputation counts of each stage's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from cost_models.evaluate import Verdict
from cost_models.job import PooledJob
from cost_models.pools.evaluate import pooled_memory
from cost_models.pools.time import pooled_step_time
from cost_models.step.fsdp_comm import is_fsdp
from cost_models.strategies.fields import Recompute, RecomputeMethod
from cost_models.strategies.layouts import Layout, build_layouts
from cost_models.strategies.strategy import Bools, Codes, Floats, Ints, Strategies
from planner.pools.bounds import RowBound, base_work, row_bound, row_numbers, row_work, site_bounds_s
from planner.pools.counts import names_of, on_sites, stands_for_counts, with_counts
from planner.pools.families import BestSplit, Family, best_split, families_of, layers_by_speed, placed, stage_questions
from planner.pools.found import PoolsFound
from planner.pools.gaps import Gap, close_gaps
from planner.pools.placements import NodeLimits, Sites, build_sites, price_weight
from planner.pools.ranking import Ranking
from planner.rules import violations
from planner.rules.expressible import SPLIT_CODES, splits_freely
from planner.search.base_rows import base_codes
from planner.search.budget import Budget, best_first
from planner.search.objective import Goal
from planner.search.progress import Progress, progress_of
from planner.splits.cp_sat import Solved, solve
from planner.splits.gaps import TOLERANCE, Closed
from planner.splits.memory_screen import commonest_kind, most_layers
from planner.splits.model import PRICED_SCHEDULES, SplitNumbers
from planner.splits.search import counts_are_given
from planner.strategies.expansion import MOST_COUNTED_LAYERS
from planner.strategies.space import Space

CHUNK = 256
"""Sites whose families are bounded at a time."""
SEEDS = 128
"""Base rows that are tried before the search."""
FIRST_STAGES, LATER_STAGES = 1 << 12, 1 << 16
"""Stages whose memory is screened at a time: few while there is no time to beat, which screens best."""
_NEAR = 1.08
"""Times the best, within which a split over unequal virtual stages is made better at once."""
MOST_VIRTUAL = 12_000
"""Stages times layers of the families with virtual stages that are solved, best bound first: some seconds of work. What the others
could gain is said by the gap."""
GPU_COUNT_CODES = frozenset({"world-exceeds-gpus"})  # placements keep to what every pool has


class PoolSearch:
    """One search; `run` may be called once."""

    def __init__(
        self,
        pooled: PooledJob,
        space: Space,
        *,
        goal: Goal,
        limits: NodeLimits,
        top_k: int,
        headroom_fraction: float,
        pools: Sequence[str] | None = None,
        listed_alone: bool = False,
        time_limit_s: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
        solver: Callable[..., Solved] = solve,
        most_virtual: int = MOST_VIRTUAL,
    ) -> None:
        """`pools` are the pool of every stage where the request says it; with `listed_alone` the splits of the space, too."""
        self.pooled, self.space, self.goal, self.limits = pooled, space, goal, limits
        self.headroom_fraction = headroom_fraction
        self.pools, self.listed_alone = pools, listed_alone
        self.budget, self.on_progress = Budget(time_limit_s, should_stop), on_progress
        self.solver, self.most_virtual = solver, most_virtual
        self._gaps, self._solved_virtual = list[Gap](), 0
        self.freely = splits_freely(pooled.jobs[0])
        searched = pooled.jobs[0].framework.strategy.recompute_counts and not counts_are_given(space)
        few = pooled.jobs[0].model.num_layers <= MOST_COUNTED_LAYERS
        # Every number of recomputed layers, or only those below the longest chunk of an even split.
        self.counts = few and searched and self.freely and not listed_alone
        self.found = PoolsFound()
        self.ranking = Ranking(pooled, self.found, goal=goal, top_k=top_k, one_each=not listed_alone)

    def run(self) -> PoolsFound:
        """The k best plans, and how sure that is."""
        found = self.found
        if len(self.space.degrees):
            self._run()
        found.rejected = Counter({code: count for code, count in found.rejected.items() if count})
        found.elapsed_s = self.budget.elapsed_s
        return found

    def _run(self) -> None:
        found, base = self.found, self.space.base()
        base = base.take(self._legal(base, only=base_codes(self.space.job), weights=self.space.multiplicity(base)))
        sites, homeless = build_sites(self.pooled, base, limits=self.limits, fixed=self.pools)
        sizes = self.space.multiplicity(base)
        found.rejected["unequal-data-parallel-shares"] += int(sizes[homeless].sum())
        found.total = found.rejected.total() + int(sizes[sites.base].sum())
        found.unplaced = bool(len(base)) and not len(sites)
        if len(sites):
            self._search(base, sites)
            close_gaps(
                self._gaps,
                limit_s=lambda gap: self.goal.longest_step_s(gap.weight, self.ranking.limit),
                best_s=lambda gap: self.goal.longest_step_s(gap.weight, self.ranking.best_value),
                take=self._close_gap,
                must_stop=self._must_stop,
            )

    def _search(self, base: Strategies, sites: Sites) -> None:
        """Searches the sites in the order of the values that their bounds allow."""
        work = base_work(self.pooled, self.space, base)
        # Two passes: bounds with fractions of layers are cheap and exclude most sites; whole layers then tighten what is left.
        bound_s = site_bounds_s(self.pooled, self.space, base, work, sites, layers="fractions")
        values = self.goal.value_of_world(self._weight(base.take(sites.base), sites), bound_s)
        if self.freely and not self.listed_alone and len(sites) > CHUNK and not self._must_stop():
            self._seed(base, sites, np.argsort(values, kind="stable"))
        reached, sizes = self.goal.reached(bound_s), self.space.multiplicity(base)
        self.found.rejected["misses-target"] += int(sizes[sites.base[~reached]].sum())
        sites = sites.take(np.flatnonzero(reached & (values <= self.ranking.limit)))
        bound_s = site_bounds_s(self.pooled, self.space, base, work, sites, layers="whole")
        values = self.goal.value_of_world(self._weight(base.take(sites.base), sites), bound_s)
        for part, rest in best_first(values, limit=lambda: self.ranking.limit, most=CHUNK):
            before = self._must_stop()
            if before or not self._families(base, sites.take(part)):
                later = rest if before else rest[len(part) :]
                self.found.left.add(bound_s[later], values[later])
                self.found.unsearched += int(sizes[sites.base[later]].sum())
                break
            if self.on_progress is not None:
                known = self.found.best[0].step_s if self.found.best else None
                rest_s = float(bound_s[part[-1]])
                self.on_progress(progress_of(self.found.families, best_s=known, rest_s=rest_s))

    def _weight(self, rows: Strategies, sites: Sites) -> Floats:
        """What the objective weighs a step with: GPUs, or their price for `cost`."""
        if self.goal.objective != "cost":
            return rows.world
        return price_weight(self.pooled, sites.stages_PN, rows.world / rows.pp)

    def _families(self, base: Strategies, sites: Sites) -> bool:
        """Solves the families of these sites, best bound first; false where the search was stopped."""
        rows, sites = self._rows(base, sites)
        if not len(rows):
            return True
        numbers = row_numbers(self.pooled, rows)
        any_count = stands_for_counts(self.pooled, rows, counts=self.counts)
        bound = row_bound(self.pooled, numbers, rows, sites, any_count=any_count)
        values = self.goal.value_of_world(self._weight(rows, sites), bound.step_s)
        wins = np.flatnonzero(any_count & (values <= self.ranking.limit))
        # One row has stood for all counts; from here on each is a strategy of its own.
        self.found.total += int(any_count.sum()) * (self.pooled.jobs[0].model.num_layers - 1)
        rows, sites, numbers, bound = with_counts(self.pooled, rows, sites, numbers, bound, wins=wins)
        weight = self._weight(rows, sites)
        values = self.goal.value_of_world(weight, bound.step_s)
        order = np.argsort(values, kind="stable")
        order = order[values[order] <= self.ranking.limit]
        if self.listed_alone or not self.freely:
            self._rank_listed(rows.take(order), sites.take(order), weight[order])
            if self.listed_alone:
                return True
        most = LATER_STAGES if np.isfinite(self.ranking.limit) else FIRST_STAGES
        stages = rows.pp[order].astype(np.int64)
        for part, rest in best_first(values[order], limit=lambda: self.ranking.limit, most=most, sizes=stages):
            holding = self._holding(rows, sites, numbers, bound, weight, order[part])
            for position, (index, family) in enumerate(holding):
                if values[index] > self.ranking.limit:
                    break
                if self._must_stop():
                    later = order[rest[np.flatnonzero(order[rest] == index)[0] :]]
                    self.found.left.add(bound.step_s[later], values[later])
                    # Where splits cannot be told, the listed ones have been priced, and nothing else counts.
                    self.found.unsearched += self.freely * (len(rest) - len(part) + len(holding) - position)
                    return False
                self._solve(family)
        return True

    def _holding(
        self,
        rows: Strategies,
        sites: Sites,
        numbers: tuple[SplitNumbers, ...],
        bound: RowBound,
        weight: Floats,
        part: Ints,
    ) -> list[tuple[int, Family]]:
        """Those of the families whose stages could hold the model in time."""
        some, where, its = rows.take(part), sites.take(part), tuple(each.take(part) for each in numbers)
        limits_s = np.array([self.goal.longest_step_s(each, self.ranking.limit) for each in weight[part].tolist()])
        work = row_work(its, some, num_layers=self.pooled.jobs[0].model.num_layers)
        own = bound.take(part)
        slowest_s = own.slowest_allowed_s(some, limits_s)
        kind, _ = commonest_kind(self.pooled.jobs[0].model)
        asked = stage_questions(some, where, work, kind=kind, slowest_s=slowest_s)
        holding, held = most_layers(self.pooled.jobs, some, asked, headroom_fraction=self.headroom_fraction)
        by_stage = np.split(held, np.cumsum(some.pp.astype(np.int64))[:-1])
        if not self.found.best:
            self.found.rejected["out-of-memory"] += self.freely * int((~holding).sum())  # else the listed splits count
            if self.found.nearest is None and not holding.all():
                first = int(np.argmin(holding))
                row = some.take(np.array([first]))
                layout = replace(
                    row.layouts.table[int(row.layout[0])], pool_per_stage=names_of(self.pooled, where.pools(first))
                )
                self.found.nearest = placed(self.pooled, row, layout)
        families = families_of(
            self.pooled,
            some,
            where,
            its,
            own,
            weight=weight[part],
            limit_s=limits_s,
            slowest_s=slowest_s,
            most_layers=by_stage,
            which=np.flatnonzero(holding),
        )
        return list(zip(part[holding].tolist(), families, strict=True))

    def _rows(self, base: Strategies, sites: Sites, *, options: Bools | None = None) -> tuple[Strategies, Sites]:
        """The families of these sites, legal on every pool; of some options where these are given."""
        used, inverse = np.unique(sites.base, return_inverse=True)
        chosen = base.take(used)
        pairs = self.space.distinct_pairs(chosen)
        grouped = self.space.grouped(chosen, pairs)
        pairs = pairs.followed_by(grouped) if options is None else pairs.take(options[pairs.option])
        expansion = self.space.expand(chosen, pairs)
        rows, origin = expansion.rows, expansion.origin
        # Splits under other schedules have no price here; requests that ask for them are refused before.
        kept = np.isin(rows.schedule, PRICED_SCHEDULES)
        block = (rows.recompute == Recompute.FULL) & (rows.recompute_method == RecomputeMethod.BLOCK)
        # What is hidden where parameters are sharded depends on all stages' counts; else recomputing all stands for any count.
        kept &= ~block if self.counts else ~(block & is_fsdp(self.pooled.jobs[0], rows))
        times = np.bincount(inverse)
        self.found.total -= int(times[origin[~kept]].sum())
        rows, origin = rows.take(kept), origin[kept]
        legal = self._legal(rows, weights=times[origin])
        rows, origin = rows.take(legal), origin[legal]
        which, where = on_sites(origin, inverse, count=len(used))
        return rows.take(which), sites.take(where)

    def _legal(self, rows: Strategies, *, weights: Ints, only: frozenset[str] | None = None) -> Bools:
        """Which rows break no rule on any pool (none of these codes), how their layers are split and how many GPUs there are
        left aside; the others are counted, each as many times as its weight says.
        """
        # A row that one pool refuses is counted under the first rule of the first such pool.
        legal = np.ones(len(rows), np.bool_)
        for job in self.pooled.whole:
            broken = violations(job, rows)
            codes = frozenset(rule.code for rule in broken.active) if only is None else only
            broken = broken.only(codes - SPLIT_CODES - GPU_COUNT_CODES)
            self.found.rejected.update(broken.where(legal).counts(weights))
            legal &= broken.legal
        return legal

    def _solve(self, family: Family) -> None:
        """The best split of one family."""
        found = self.found
        if family.split.vpp > 1:
            self._solved_virtual += family.split.pp * len(family.split.kind_of_layer)
        if family.split.vpp > 1 and self._solved_virtual > self.most_virtual:
            # Its bound stays in the proof, so that the limit costs certainty and never truth.
            found.unsearched += self.freely
            self._leave(family.bound_s, family.weight)
            return
        found.families += 1
        if not self.freely:  # only the best of all is worth telling apart
            limit_s = self.goal.longest_step_s(family.weight, self.ranking.best_value * (1.0 + TOLERANCE))
            if family.bound_s > limit_s:
                return
            family = replace(family, limit_s=min(family.limit_s, limit_s))
        best = best_split(
            family,
            headroom_fraction=self.headroom_fraction,
            solver=self.solver,
            should_stop=self._must_stop,
        )
        self._count(best.closed, family.weight)
        gap = best.gap
        if gap is not None:
            # What may become plan 1 is made better at once: the sooner its time is known, the more families lose.
            best_s = self.goal.longest_step_s(gap.weight, self.ranking.best_value)
            if gap.layout is not None and gap.bound_s < best_s and gap.step_s < _NEAR * best_s:
                gap = gap.descended(should_stop=self._must_stop)
            self._gaps.append(gap)
            best = BestSplit(gap.layout, gap.step_s)
        if best.layout is not None:
            row = placed(self.pooled, family.split.row, best.layout)
            self.ranking.keep(row, family.weight, step_s=best.step_s, counted=self.freely)

    def _count(self, closed: Closed, weight: float) -> None:
        """Counts what became of a gap, and lowers the proof to what is left of it."""
        self.found.solved += closed.solved
        if closed.failure is not None and closed.failure not in self.found.failures:
            self.found.failures.append(closed.failure)
        self._leave(closed.unproven_s, weight)

    def _leave(self, bound_s: float, weight: float) -> None:
        """Leaves a family open."""
        if self.freely and np.isfinite(bound_s):  # the ranking's proof is about plans that can be launched
            step_s = np.array([bound_s])
            self.found.left.add(step_s, self.goal.value_of_world(np.array([weight]), step_s))

    def _close_gap(self, gap: Gap, closed: Closed) -> None:
        self._count(closed, gap.weight)
        if closed.layout is not None:
            row = placed(self.pooled, gap.model.row, closed.layout)
            self.ranking.keep(row, gap.weight, step_s=closed.step_s, counted=self.freely)

    def _rank_listed(self, rows: Strategies, sites: Sites, weight: Floats) -> None:
        """Ranks strategies with the split that the request or the framework gives them, all priced at once."""
        table = [
            replace(rows.layouts.table[int(layout)], pool_per_stage=names_of(self.pooled, sites.pools(index)))
            for index, layout in enumerate(rows.layout)
        ]
        self.found.families += len(rows)
        verdict, step_s = self._rank(rows, table, weight)
        found, reached = self.found, int(self.goal.reached(step_s).sum())
        found.evaluated, found.feasible = found.evaluated + len(step_s), found.feasible + reached
        found.rejected["misses-target"] += len(step_s) - reached
        found.rejected["out-of-memory"] += int((verdict == Verdict.OOM).sum())
        found.rejected["at-risk-of-memory"] += int((verdict == Verdict.AT_RISK).sum())
        if self.found.nearest is None and (verdict != Verdict.FITS).any():
            first = int(np.argmax(verdict != Verdict.FITS))
            self.found.nearest = placed(self.pooled, rows.take(np.array([first])), table[first])

    def _rank(self, rows: Strategies, table: Sequence[Layout], weight: Floats) -> tuple[Codes, Floats]:
        """Ranks strategies under a layout each. Returns their verdicts on memory, and the seconds per step of those that fit."""
        if not len(rows):
            return np.zeros(0, np.int8), np.zeros(0)
        number = {layout: position for position, layout in enumerate(dict.fromkeys(table))}
        layouts = build_layouts(list(number), model=self.pooled.jobs[0].model, all_stages=True)
        priced = replace(rows, layout=np.array([number[layout] for layout in table]), layouts=layouts)
        verdict = pooled_memory(self.pooled, priced, headroom_fraction=self.headroom_fraction).verdict
        fits, step_s = np.flatnonzero(verdict == Verdict.FITS), np.zeros(0)
        if len(fits):
            step_s = pooled_step_time(self.pooled, priced.take(fits)).total_s
            # Best first: once one of them does not make the ranking, none behind it can.
            for position in np.argsort(self.goal.value_of_world(weight[fits], step_s), kind="stable").tolist():
                at = int(fits[position])
                row = placed(self.pooled, rows.take(np.array([at])), table[at])
                if not self.ranking.keep(row, float(weight[at]), step_s=float(step_s[position])):
                    break
        return verdict, step_s

    def _seed(self, base: Strategies, sites: Sites, order: Ints) -> None:
        """Ranks some strategies of every kind with layers by speed, so that what cannot win is soon known."""
        _, first = np.unique(sites.base[order], return_index=True)
        promising = order[np.sort(first)]  # every base row on its most promising placement
        some = promising[np.unique(np.linspace(0, len(promising) - 1, SEEDS).astype(np.int64))]
        options = self.space.options
        plain = options["recompute_method"] == RecomputeMethod.EVERY
        rejected, total = self.found.rejected.copy(), self.found.total
        rows, where = self._rows(base, sites.take(some), options=plain)
        self.found.rejected, self.found.total = rejected, total  # they are counted when their turn comes
        weight = self._weight(rows, where)
        work = row_work(row_numbers(self.pooled, rows), rows, num_layers=self.pooled.jobs[0].model.num_layers)
        table = [
            replace(
                layers_by_speed(self.pooled, work, where, index, vpp=int(rows.vpp[index])),
                pool_per_stage=names_of(self.pooled, where.pools(index)),
            )
            for index in range(len(rows))
        ]
        self._rank(rows, table, weight)

    def _must_stop(self) -> bool:
        stops = self.budget.must_stop()
        self.found.stopped = self.budget.stopped
        return stops
