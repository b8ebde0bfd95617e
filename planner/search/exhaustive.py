"""Exact search: every legal strategy of a space is ranked, or shown by a bound to lose to the k best found.

Cheapest first. Base rows (degrees and micro-batch) are taken by the number of GPUs they use, most first; a number of GPUs whose
peak arithmetic alone is too slow ends there. The rest are checked against the rules, then against the least memory that
any of their expansions could need, then ordered by a lower bound on their step time. They are expanded in that order,
memory before time, until the bound of the next one exceeds the k-th best: what is left cannot be among the top k.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from cost_models.evaluate import Verdict, memory_verdict
from cost_models.flops import model_flops_per_step
from cost_models.job import Job
from cost_models.memory import stage_memory
from cost_models.stages import stages
from cost_models.step import step_time
from cost_models.strategy import Floats, Recompute, Strategies, concatenated
from planner.rules import Violations, violations
from planner.search.objective import Goal, ranked_order
from planner.space import Space

FIRST_CHUNK, LARGEST_CHUNK = 64, 4096
"""Base rows expanded at a time: few at first, so that a good k-th best prunes early."""
MAX_ROWS_AT_ONCE = 1 << 16
"""Expanded strategies evaluated at a time: bounds memory, and stays near the cache."""
BOUND_SLACK = 1e-9
"""Relative allowance for rounding when a bound is compared with the k-th best."""
BOUND_TERMS = (
    "gemm",
    "attention",
    "elementwise",
    "launch",
    "embedding",
    "head",
    "loss",
    "tp_comm",
    "cp_comm",
    "ep_comm",
)
"""Terms that no expansion of a base row can lower."""
BASE_CODES = frozenset({
    "world-exceeds-gpus", "batch-not-divisible", "heads-not-divisible", "kv-heads-not-divisible", "mlp-not-divisible",
    "vocab-not-divisible", "sequence-not-divisible", "sequence-exceeds-positions", "sequence-parallel-needs-tp",
    "sequence-parallel-unsupported", "tensor-parallel-unsupported", "pipeline-unsupported", "pipeline-exceeds-layers",
    "context-parallel-unsupported", "context-parallel-needs-flash", "experts-missing",
    "experts-not-divisible", "expert-mlp-not-divisible", "expert-ranks-not-divisible", "expert-parallel-unsupported",
    "expert-tensor-parallel-unsupported", "moe-needs-sequence-parallel", "precision-unsupported-by-gpu",
    "precision-unsupported-by-framework", "attention-unsupported-by-gpu", "optimizer-unsupported",
})  # fmt: skip
"""Rules that read base fields alone, so that a base row that breaks one loses all its expansions; a test holds this."""
NEAREST_KEPT = 32
"""Candidates kept for `nearest_infeasible`."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search has come."""

    evaluated: int
    best_s: float | None
    bound_s: float | None


@dataclass(eq=False)
class Found:
    """Result of a search."""

    best: Strategies | None
    """At most k strategies, best first."""
    rejected: Counter[str]
    evaluated: int = 0
    """Strategies whose time was computed."""
    bounded: int = 0
    """Strategies that a bound excluded."""
    feasible: int = 0
    at_risk: int = 0
    nearest: Strategies | None = None
    """Strategies that break only the memory limit, least excess first."""
    optimal: bool = True
    lower_bound_s: float | None = None
    elapsed_s: float = 0.0
    stopped: str | None = None
    """"time" or "cancelled" where the search ended early."""
    warnings: list[str] = field(default_factory=list)


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
    ) -> None:
        self.space, self.goal, self.top_k = space, goal, top_k
        self.headroom_fraction, self.allow_at_risk = headroom_fraction, allow_at_risk
        self.time_limit_s = time_limit_s
        self.on_progress, self.should_stop = on_progress, should_stop
        self.found = Found(best=None, rejected=Counter())
        self._values = np.zeros(0)
        self._at_risk = np.zeros(0, np.bool_)
        self._excess = np.zeros(0)
        self._unsearched_s: list[float] = []
        """Lower bounds of what an early stop left out."""
        self._started = perf_counter()

    def run(self) -> Found:
        """The k best strategies, and how sure that is."""
        base = self.space.base()
        worlds = np.unique(base.world)
        if self.goal.objective != "fewest_gpus":
            worlds = worlds[::-1]
        for world in worlds:
            rows = base.take(base.world == world)
            floor_s = arithmetic_floor_s(self.space.job, world)
            if self._loses(rows.take(np.arange(1)), np.array([floor_s])).all():
                self.found.bounded += int(self.space.multiplicity(rows).sum())
            elif self.found.stopped is None and not self._must_stop():
                self._search(rows)
            else:
                self._unsearched_s.append(floor_s)
        self.found.optimal = not self._unsearched_s
        self.found.lower_bound_s = self._lower_bound()
        self.found.elapsed_s = perf_counter() - self._started
        return self.found

    def _search(self, base: Strategies) -> None:
        """Searches base rows of one number of GPUs, best bound first."""
        base = self._with_enough_memory(self._legal_base(base))
        bound_s = lower_bound_s(self.space, base)
        hopeless = ~self.goal.reached(bound_s)
        if hopeless.any():
            self.found.rejected["misses-target"] += int(self.space.multiplicity(base.take(hopeless)).sum())
            base, bound_s = base.take(~hopeless), bound_s[~hopeless]
        order = np.argsort(self.goal.value(base, bound_s), kind="stable")
        base, bound_s = base.take(order), bound_s[order]
        loses = self._loses(base, bound_s)
        start, size = 0, FIRST_CHUNK
        while start < len(base) and not loses[start]:
            if self._must_stop():
                self._unsearched_s.append(float(bound_s[start:].min()))
                return
            stop = min(start + size, len(base))
            self._expand(base.take(np.arange(start, stop)[~loses[start:stop]]))
            start, size = stop, min(2 * size, LARGEST_CHUNK)
            loses = self._loses(base, bound_s)
            self._report(bound_s[start] if start < len(base) else None)
        self.found.bounded += int(self.space.multiplicity(base.take(np.arange(start, len(base)))).sum())

    def _loses(self, rows: Strategies, bound_s: Floats) -> NDArray[np.bool_]:
        """Where even the bound is worse than the k-th best."""
        return np.asarray(self.goal.value(rows, bound_s) > self._kth_value() * (1.0 + BOUND_SLACK), np.bool_)

    def _legal_base(self, base: Strategies) -> Strategies:
        """Base rows that break no rule that concerns base fields alone."""
        found = violations(self.space.job, base).only(BASE_CODES)
        self._count_rejected(found, weights=self.space.multiplicity(base))
        return base.take(found.legal)

    def _with_enough_memory(self, base: Strategies) -> Strategies:
        """Base rows of which some expansion could fit: the leanest choices decide, every ZeRO stage tried."""
        possible = np.zeros(len(base), np.bool_)
        modes = self.space.recompute_modes
        recomputes = sorted({Recompute(modes[0]), Recompute(modes[-1])}, reverse=True)
        for recompute in recomputes:
            for zero in sorted(self.space.zeros, reverse=True):
                rest = np.flatnonzero(~possible)
                for part in np.array_split(rest, max(1, -(-len(rest) // MAX_ROWS_AT_ONCE))):
                    if len(part):
                        lean = self.space.leanest(base.take(part), zero=zero, recompute=recompute)
                        possible[part] = self._could_fit(lean)
        lost = base.take(~possible)
        if len(lost):
            self.found.rejected["out-of-memory"] += int(self.space.multiplicity(lost).sum())
            lean = self.space.leanest(lost, zero=max(self.space.zeros), recompute=recomputes[0])
            legal = lean.take(violations(self.space.job, lean).legal)
            if len(legal):
                self._keep_nearest(legal)
        return base.take(possible)

    def _could_fit(self, rows: Strategies) -> NDArray[np.bool_]:
        memory = stage_memory(self.space.job, rows)
        verdict, _ = memory_verdict(self.space.job, memory, headroom_fraction=self.headroom_fraction)
        return np.asarray(verdict != Verdict.OOM)

    def _expand(self, base: Strategies) -> None:
        """Evaluates every expansion of these base rows, a bounded number at a time."""
        sizes = np.cumsum(self.space.multiplicity(base))
        cuts = np.flatnonzero(np.diff(sizes // MAX_ROWS_AT_ONCE)) + 1
        for part in np.split(np.arange(len(base)), cuts):
            self._evaluate(self.space.expand(base.take(part)))

    def _evaluate(self, rows: Strategies) -> None:
        job = self.space.job
        found = violations(job, rows)
        self._count_rejected(found, weights=None)
        rows = rows.take(found.legal)
        if not len(rows):
            return
        memory = stage_memory(job, rows)
        verdict, _ = memory_verdict(job, memory, headroom_fraction=self.headroom_fraction)
        self._note_memory(rows, verdict)
        kept = verdict == Verdict.FITS
        if self.allow_at_risk:
            kept |= verdict == Verdict.AT_RISK
        rows, at_risk = rows.take(kept), (verdict == Verdict.AT_RISK)[kept]
        if not len(rows):
            return
        step_s = step_time(job, rows).total_s
        self.found.evaluated += len(rows)
        reached = self.goal.reached(step_s)
        self.found.rejected["misses-target"] += int((~reached).sum())
        self.found.feasible += int((reached & ~at_risk).sum())
        self._merge(rows.take(reached), self.goal.value(rows, step_s)[reached], at_risk[reached])

    def _note_memory(self, rows: Strategies, verdict: NDArray[np.int8]) -> None:
        oom, risky = verdict == Verdict.OOM, verdict == Verdict.AT_RISK
        self.found.rejected["out-of-memory"] += int(oom.sum())
        self.found.at_risk += int(risky.sum())
        if not self.allow_at_risk:
            self.found.rejected["at-risk-of-memory"] += int(risky.sum())
        if oom.any() or risky.any():
            self._keep_nearest(rows.take(oom | risky))

    def _keep_nearest(self, rows: Strategies) -> None:
        """Keeps the candidates whose memory exceeds capacity the least."""
        excess = stage_memory(self.space.job, rows).device_high - self.space.job.cluster.capacity_bytes
        if self.found.nearest is not None:
            rows = concatenated([self.found.nearest, rows])
            excess = np.concatenate([self._excess, excess])
        order = ranked_order(excess, rows, last=np.zeros(len(rows), np.bool_))[:NEAREST_KEPT]
        self.found.nearest, self._excess = rows.take(order), excess[order]

    def _merge(self, rows: Strategies, values: Floats, at_risk: NDArray[np.bool_]) -> None:
        """Keeps the k best of what was kept before and these."""
        if self.found.best is not None:
            rows = concatenated([self.found.best, rows])
            values = np.concatenate([self._values, values])
            at_risk = np.concatenate([self._at_risk, at_risk])
        order = ranked_order(values, rows, last=at_risk)[: self.top_k]
        if len(order):
            self.found.best, self._values, self._at_risk = rows.take(order), values[order], at_risk[order]

    def _kth_value(self) -> float:
        """Value that a strategy must beat; infinite until k safe ones are known."""
        safe = self._values[~self._at_risk]
        return float(safe[-1]) if len(safe) >= self.top_k else np.inf

    def _count_rejected(self, found: Violations, *, weights: NDArray[np.int64] | None) -> None:
        for code, count in found.counts(weights).items():
            self.found.rejected[code] += count

    def _must_stop(self) -> bool:
        if self.should_stop is not None and self.should_stop():
            self.found.stopped = "cancelled"
        elif self.time_limit_s is not None and perf_counter() - self._started > self.time_limit_s:
            self.found.stopped = "time"
        return self.found.stopped is not None

    def _lower_bound(self) -> float | None:
        """Least step time that any plan worth ranking can have, as far as it is known."""
        known = list(self._unsearched_s)
        if self.found.best is not None:
            known.append(float(step_time(self.space.job, self.found.best).total_s.min()))
        return min(known, default=None)

    def _report(self, bound_s: float | None) -> None:
        if self.on_progress is None:
            return
        best = None if self.found.best is None else float(step_time(self.space.job, self.found.best).total_s[0])
        self.on_progress(
            Progress(evaluated=self.found.evaluated, best_s=best, bound_s=best if bound_s is None else bound_s)
        )


def arithmetic_floor_s(job: Job, world: float) -> float:
    """Seconds that the model's operations take on this many GPUs at their peak: no plan is faster."""
    peaks = job.cluster.gpu.peak_flops_per_s
    fastest = max(peaks.get(name, 0.0) for name in (job.training.precision, "bf16", "fp16"))
    return model_flops_per_step(job, causal=True) / (world * fastest)


def lower_bound_s(space: Space, base: Strategies) -> Floats:
    """Seconds that no expansion of each base row can beat, shape (N,).

    The work and the layer communication of the slowest stage, and the bubble of the deepest interleaving; nothing that
    depends on ZeRO, sharding, recomputation or knobs is counted.
    """
    bound = np.empty(len(base))
    for start in range(0, len(base), MAX_ROWS_AT_ONCE):
        part = np.arange(start, min(start + MAX_ROWS_AT_ONCE, len(base)))
        terms = stages(space.job, base.take(part)).terms_s
        bound[part] = sum(terms[name] for name in (*BOUND_TERMS, "pp_bubble"))
    return bound
