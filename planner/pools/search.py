"""Exact search on pools: every legal strategy on every placement, with the best split of its layers, or a bound that it loses.

Sites (base rows on placements) are taken in the order of a bound that holds for all their expansions and splits. Each expands
into families (ZeRO, sharding, virtual stages, recomputation) with bounds of their own; families whose stages cannot hold the
model are left out, the others solved while their bound is below the k-th best known. Zero-bubble schedules are not searched,
nor are recomputation counts of each stage's own.
"""

from __future__ import annotations

from bisect import insort
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
from planner.pools.bounds import Layers, RowBound, Work, base_bound_s, base_work, row_bound, row_numbers, row_work
from planner.pools.families import Family, best_split, layers_by_speed, placed, stage_questions
from planner.pools.found import Plan, PoolsFound
from planner.pools.placements import NodeLimits, Sites, build_sites, price_weight
from planner.rules import violations
from planner.rules.expressible import SPLIT_CODES, splits_freely
from planner.search.base_rows import BASE_CODES
from planner.search.budget import Budget, best_first
from planner.search.objective import Goal
from planner.search.progress import Progress
from planner.splits.cp_sat import Solved, solve
from planner.splits.gaps import TOLERANCE
from planner.splits.memory_screen import commonest_kind, most_layers
from planner.splits.model import PRICED_SCHEDULES, SplitNumbers
from planner.splits.several_pools import PooledSplit
from planner.strategies.space import Space

CHUNK = 256
"""Sites whose families are bounded at a time."""
SITES_AT_ONCE = 1 << 18
"""Sites that are bounded at a time."""
SEEDS = 128
"""Base rows that are tried before the search."""
FIRST_STAGES, LATER_STAGES = 1 << 12, 1 << 16
"""Stages whose memory is screened at a time: few while there is no time to beat, which screens best."""
GPU_COUNT_CODES = frozenset({"world-exceeds-gpus"})
"""Rules on the number of GPUs: placements keep to what every pool has."""


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
    ) -> None:
        """`pools` are the pool of every stage where the request says it; with `listed_alone` the splits of the space, too."""
        self.pooled, self.space, self.goal, self.limits = pooled, space, goal, limits
        self.top_k, self.headroom_fraction = top_k, headroom_fraction
        self.pools, self.listed_alone = pools, listed_alone
        self.budget, self.on_progress = Budget(time_limit_s, should_stop), on_progress
        self.solver = solver
        self.freely = splits_freely(pooled.jobs[0])
        self.found = PoolsFound()

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
        base = base.take(self._legal(base, only=BASE_CODES, weights=self.space.multiplicity(base)))
        sites, homeless = build_sites(self.pooled, base, limits=self.limits, fixed=self.pools)
        sizes = self.space.multiplicity(base)
        found.rejected["unequal-data-parallel-shares"] += int(sizes[homeless].sum())
        found.total = found.rejected.total() + int(sizes[sites.base].sum())
        found.unplaced = bool(len(base)) and not len(sites)
        if len(sites):
            self._search(base, sites)

    def _search(self, base: Strategies, sites: Sites) -> None:
        """Searches the sites in the order of the values that their bounds allow."""
        work = base_work(self.pooled, self.space, base)
        # Two passes: bounds with fractions of layers are cheap and exclude most sites; whole layers then tighten what is left.
        bound_s = self._site_bounds_s(base, work, sites, layers="fractions")
        values = self.goal.value_of_world(self._weight(base.take(sites.base), sites), bound_s)
        if self.freely and not self.listed_alone and len(sites) > CHUNK and not self._must_stop():
            self._seed(base, sites, np.argsort(values, kind="stable"))
        reached, sizes = self.goal.reached(bound_s), self.space.multiplicity(base)
        self.found.rejected["misses-target"] += int(sizes[sites.base[~reached]].sum())
        sites = sites.take(np.flatnonzero(reached & (values <= self.limit)))
        bound_s = self._site_bounds_s(base, work, sites, layers="whole")
        values = self.goal.value_of_world(self._weight(base.take(sites.base), sites), bound_s)
        for part, rest in best_first(values, limit=lambda: self.limit, most=CHUNK):
            before = self._must_stop()
            if before or not self._families(base, sites.take(part)):
                self._leave(bound_s[rest])
                self.found.unsearched += int(sizes[sites.base[rest if before else rest[len(part) :]]].sum())
                break
            if self.on_progress is not None:
                best_s = self.found.best[0].step_s if self.found.best else None
                self.on_progress(Progress(self.found.families, best_s, float(bound_s[part[-1]])))

    def _site_bounds_s(self, base: Strategies, work: Work, sites: Sites, *, layers: Layers) -> Floats:
        """Seconds of a step that nothing at each of these sites beats."""
        found = np.zeros(len(sites))
        for start in range(0, len(sites), SITES_AT_ONCE):
            part = np.arange(start, min(start + SITES_AT_ONCE, len(sites)))
            some = sites.take(part)
            rows = base.take(some.base)
            vpp = self.space.splits.most_vpp[rows.pp.astype(np.int64)]
            found[part] = base_bound_s(self.pooled, work.take(some.base), rows, some, vpp=vpp, layers=layers)
        return found

    def _weight(self, rows: Strategies, sites: Sites) -> Floats:
        """What the objective weighs a step with: GPUs, or their price for `cost`."""
        if self.goal.objective != "cost":
            return rows.world
        return price_weight(self.pooled, sites.stages_PN, rows.world / rows.pp)

    def _leave(self, bounds_s: Floats) -> None:
        self.found.unproven_s = min(self.found.unproven_s, float(bounds_s.min()))

    def _families(self, base: Strategies, sites: Sites) -> bool:
        """Solves the families of these sites, best bound first; false where the search was stopped."""
        rows, sites = self._rows(base, sites)
        if not len(rows):
            return True
        numbers = row_numbers(self.pooled, rows)
        bound = row_bound(self.pooled, numbers, rows, sites)
        weight = self._weight(rows, sites)
        values = self.goal.value_of_world(weight, bound.step_s)
        order = np.argsort(values, kind="stable")
        order = order[values[order] <= self.limit]
        if self.listed_alone or not self.freely:
            self._rank_listed(rows.take(order), sites.take(order), weight[order])
        if self.listed_alone:
            return True
        most = LATER_STAGES if np.isfinite(self.limit) else FIRST_STAGES
        stages = rows.pp[order].astype(np.int64)
        for part, rest in best_first(values[order], limit=lambda: self.limit, most=most, sizes=stages):
            holding = self._holding(rows, sites, numbers, bound, weight, order[part])
            for position, (index, family) in enumerate(holding):
                if values[index] > self.limit:
                    break
                if self._must_stop():
                    self._leave(bound.step_s[order[rest]])
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
        limits_s = np.array([self.goal.longest_step_s(each, self.limit) for each in weight[part].tolist()])
        work = row_work(its, some, num_layers=self.pooled.jobs[0].model.num_layers)
        slowest_s = bound.take(part).slowest_allowed_s(some, limits_s)
        kind, _ = commonest_kind(self.pooled.jobs[0].model)
        asked = stage_questions(some, where, work, kind=kind, slowest_s=slowest_s)
        holding, held = most_layers(self.pooled.jobs, some, asked, headroom_fraction=self.headroom_fraction)
        by_stage = np.split(held, np.cumsum(some.pp.astype(np.int64))[:-1])
        if not self.found.best:
            self.found.rejected["out-of-memory"] += self.freely * int((~holding).sum())  # else the listed splits count
            if self.found.nearest is None and not holding.all():
                first = int(np.argmin(holding))
                row = some.take(np.array([first]))
                layout = replace(row.layouts.table[int(row.layout[0])], pool_per_stage=self._names(where.pools(first)))
                self.found.nearest = placed(self.pooled, row, layout)
        return [
            (
                int(part[index]),
                Family(
                    split=PooledSplit(
                        jobs=self.pooled.jobs,
                        row=some.take(np.array([index])),
                        pools=where.pools(index),
                        numbers=tuple(each.take(np.array([index])) for each in its),
                        choices=(),
                        pooled=self.pooled,
                        sends_s=float(bound.sends_s[part[index]]),
                        once_least_s=float(bound.once_s[part[index]]),
                    ),
                    weight=float(weight[part[index]]),
                    bound_s=float(bound.step_s[part[index]]),
                    limit_s=float(limits_s[index]),
                    slowest_s=float(slowest_s[index]),
                    most_layers=by_stage[index],
                ),
            )
            for index in np.flatnonzero(holding).tolist()
        ]

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
        kept &= ~(block & is_fsdp(self.pooled.jobs[0], rows))  # what is hidden there depends on all stages' counts
        times = np.bincount(inverse)
        self.found.total -= int(times[origin[~kept]].sum())
        rows, origin = rows.take(kept), origin[kept]
        legal = self._legal(rows, weights=times[origin])
        rows, origin = rows.take(legal), origin[legal]
        by_base = np.argsort(origin, kind="stable")
        count = np.bincount(origin, minlength=len(used))
        start, times = np.cumsum(count) - count, count[inverse]
        which = np.repeat(np.arange(len(sites)), times)
        within = np.arange(len(which)) - np.repeat(np.cumsum(times) - times, times)
        return rows.take(by_base[start[inverse][which] + within]), sites.take(which)

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
            fresh = replace(broken, flags=np.where(legal, broken.flags, 0))
            self.found.rejected.update(fresh.counts(weights))
            legal &= broken.legal
        return legal

    def _solve(self, family: Family) -> None:
        """The best split of one family."""
        found = self.found
        found.families += 1
        if not self.freely:  # only the best of all is worth telling apart
            limit_s = self.goal.longest_step_s(family.weight, self._best_value * (1.0 + TOLERANCE))
            if family.bound_s > limit_s:
                return
            family = replace(family, limit_s=min(family.limit_s, limit_s))
        best = best_split(
            family, headroom_fraction=self.headroom_fraction, solver=self.solver, should_stop=self._must_stop
        )
        closed = best.closed
        found.solved += closed.solved
        if closed.failure is not None and closed.failure not in found.failures:
            found.failures.append(closed.failure)
        if self.freely:  # the ranking's proof is about plans that can be launched
            self._leave(np.array([closed.unproven_s]))
        if best.layout is not None:
            row = placed(self.pooled, family.split.row, best.layout)
            self._keep(row, family.weight, step_s=best.step_s, counted=self.freely)

    def _rank_listed(self, rows: Strategies, sites: Sites, weight: Floats) -> None:
        """Ranks strategies with the split that the request or the framework gives them, all priced at once."""
        table = [
            replace(rows.layouts.table[int(layout)], pool_per_stage=self._names(sites.pools(index)))
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
                if not self._keep(row, float(weight[at]), step_s=float(step_s[position])):
                    break
        return verdict, step_s

    def _names(self, pools: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.pooled.names[pool] for pool in pools)

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
                pool_per_stage=self._names(where.pools(index)),
            )
            for index in range(len(rows))
        ]
        self._rank(rows, table, weight)

    def _keep(self, row: Strategies, weight: float, *, step_s: float, counted: bool = False) -> bool:
        """Ranks a plan that fits, or keeps it apart where the framework cannot be told its split; false where it is too slow."""
        found, value = self.found, float(self.goal.value_of_world(np.array([weight]), np.array([step_s]))[0])
        if value > self.limit or not self.goal.reached(np.array([step_s]))[0]:
            return False
        plan = Plan(row, step_s, value)
        if all(violations(job, row).only(SPLIT_CODES).legal[0] for job in self.pooled.whole):
            found.evaluated, found.feasible = found.evaluated + counted, found.feasible + counted
            self._insert(plan)
        elif found.inexpressible is None or plan.order < found.inexpressible.order:
            found.inexpressible = plan
        return True

    def _insert(self, plan: Plan) -> None:
        """Ranks a plan; of a family the best one alone, where splits are not listed."""
        best = self.found.best
        if not self.listed_alone:
            same = next((at for at, each in enumerate(best) if each.family == plan.family), None)
            if same is not None and best[same].order <= plan.order:
                return
            if same is not None:
                del best[same]
        insort(best, plan, key=_order)
        del best[self.top_k :]

    @property
    def limit(self) -> float:
        """Value above which nothing counts: the k-th best."""
        best = self.found.best
        return best[-1].value * (1.0 + TOLERANCE) if len(best) == self.top_k else np.inf

    @property
    def _best_value(self) -> float:
        """The best value of all, launchable or not."""
        known = [*self.found.best[:1], *([self.found.inexpressible] if self.found.inexpressible else [])]
        return min((plan.value for plan in known), default=np.inf)

    def _must_stop(self) -> bool:
        stops = self.budget.must_stop()
        self.found.stopped = self.budget.stopped
        return stops


def _order(plan: Plan) -> tuple[object, ...]:
    return plan.order
