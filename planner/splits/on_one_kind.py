"""Open splits on one kind of node, after the listed ones: their search, how it joins what was found, and what it covers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cost_models.evaluate import Verdict, memory_verdict
from cost_models.memory import stage_memory
from cost_models.step.fsdp_comm import is_fsdp
from cost_models.strategies.strategy import Floats
from planner.rules.expressible import splits_freely
from planner.schemas.plan_request import PlanRequest
from planner.search.exhaustive import Exhaustive
from planner.search.found import Found
from planner.search.progress import Progress, progress_of
from planner.splits.found import Candidate, merged
from planner.splits.gaps import left_open
from planner.splits.lone_stages import Headroom
from planner.splits.model import PRICED_SCHEDULES
from planner.splits.search import OpenSplits
from planner.strategies.space import Space


def open_values(space: Space) -> list[str]:
    """What open splits cover, and which strategies keep their listed splits, so that no proof is read as covering more."""
    said = ["the best of all"] if splits_freely(space.job) else ["the best of all, where this release can be told it"]
    row = space.base(np.zeros(1, np.int64))
    shards = any(is_fsdp(space.job, replace(row, zero=np.array([zero], np.int8)))[0] for zero in space.zeros)
    if shards and space.job.framework.strategy.recompute_counts:
        said.append(
            "listed splits alone where parameters are sharded layer by layer and some of the layers are recomputed"
        )
    if not set(space.splits.schedules_tried) <= set(PRICED_SCHEDULES):
        said.append("listed splits alone under zero-bubble schedules")
    if any(space.knobs.get("offload_activation_layers", ())):
        said.append("listed splits alone where activations are offloaded")
    return said


def add_open_splits(
    exhaustive: Exhaustive, opens: Space, asked: PlanRequest, on_progress: Callable[[Progress], None] | None
) -> None:
    """Adds the best open splits of `opens` to what an exhaustive search of the listed ones found."""
    goal, found, kept = exhaustive.goal, exhaustive.found, exhaustive.kept
    headroom = asked.constraints.memory_headroom_fraction
    safe = _searched(exhaustive, opens, asked, on_progress, known=kept.safe_values, headroom_fraction=headroom)
    ranked, risky = list(safe.found.ranked), None
    # What is at risk ranks behind all that surely fits, so it is looked for only where that leaves places.
    if asked.constraints.allow_at_risk and len(safe.values) < asked.top_k and not safe.found.stopped:
        known = kept.values[kept.at_risk]
        risky = _searched(exhaustive, opens, asked, on_progress, known=known, headroom_fraction=None)
        # Where the best split of a strategy that may fit surely does, it has been ranked before.
        ranked += [each for each in risky.found.ranked if not _surely_fits(each, exhaustive.space, headroom)]
    at_risk = np.concatenate([kept.at_risk, np.arange(len(ranked)) >= len(safe.found.ranked)])
    found.vpps = sorted({vpp for pairs in opens.layout_index.values() for vpp, _ in pairs})
    found.best = merged(exhaustive.space, found.best, ranked, goal=goal, top_k=asked.top_k, at_risk=at_risk)
    found.families = safe.found.families + (risky.found.families if risky else 0)
    # Nobody counts the splits that a family's bound excludes: of what is not listed, only the splits that are ranked are counted.
    new = len(ranked)
    found.total, found.evaluated, found.feasible = found.total + new, found.evaluated + new, found.feasible + new
    solved = safe.found.solved + (risky.found.solved if risky else 0)
    found.methods += ["thresholds"] * bool(found.families) + ["cp-sat"] * bool(solved)
    _prove(found, safe, risky, ranked, top_k=asked.top_k)
    if safe.found.inexpressible is not None:
        best = min(safe.values, default=np.inf)
        found.inexpressible = safe.found.inexpressible.row if safe.found.inexpressible.value < best else None
    for failure in safe.found.failures:
        found.warnings.append(f"The best split is not proved to be the best: {failure}")


def _searched(
    exhaustive: Exhaustive,
    opens: Space,
    asked: PlanRequest,
    on_progress: Callable[[Progress], None] | None,
    *,
    known: Floats,
    headroom_fraction: Headroom,
) -> OpenSplits:
    """A search of open splits that has ended; with the headroom None of those that may fit."""
    best_s = exhaustive.found.lower_bound_s

    def report(bound_s: float) -> None:
        if on_progress is not None:
            on_progress(progress_of(exhaustive.found.evaluated, best_s=best_s, rest_s=bound_s))

    searcher = OpenSplits(
        opens,
        goal=exhaustive.goal,
        top_k=asked.top_k,
        headroom_fraction=headroom_fraction,
        known=known,
        should_stop=exhaustive.must_stop,
        on_family=report,
        listed=exhaustive.space.layouts.table,
    )
    # Without virtual stages thresholds find the best split, which is then the limit for those with virtual stages.
    for virtual in (False, True):
        for base, bounds in exhaustive.legal:
            searcher.run(base, bounds, virtual=virtual)
    searcher.close()
    searcher.found.left.add(np.array([exhaustive.unkept_s]), np.array([exhaustive.unkept_value]))
    return searcher


def _surely_fits(candidate: Candidate, space: Space, headroom_fraction: float) -> bool:
    memory = stage_memory(space.job, candidate.row)
    return bool(memory_verdict(space.job, memory, headroom_fraction=headroom_fraction)[0][0] == Verdict.FITS)


def _prove(found: Found, safe: OpenSplits, risky: OpenSplits | None, ranked: list[Candidate], *, top_k: int) -> None:
    """Lowers the proof to what was left open."""
    left, values = safe.found.left, safe.values
    sure, open_value = left.sure(values), left.value
    if risky is not None and sure == len(values):  # those at risk rank behind all that surely fit
        sure, open_value = sure + risky.found.left.sure(risky.values), min(open_value, risky.found.left.value)
    known = [found.lower_bound_s] if found.lower_bound_s is not None else []
    best_s = min([*known, *(candidate.step_s for candidate in ranked)], default=np.inf)
    # With a plan that surely fits, nothing that is at risk can become plan 1.
    open_s = left.step_s if values or risky is None else min(left.step_s, risky.found.left.step_s)
    if open_s < best_s or (not sure and np.isfinite(open_value)):
        found.optimal = False
    if found.stopped is None and np.isfinite(open_value) and sure < top_k:  # what a stop means has a warning of its own
        found.warnings.append(left_open(sure))
    bound_s = min(best_s, open_s)
    found.lower_bound_s = bound_s if np.isfinite(bound_s) else None
