"""What comes closest where there is no plan although memory is not the reason.

Where rules leave nothing, that is the strategy that breaks the fewest of them; where targets leave nothing, the fastest plan.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cost_models.job import Job, PooledJob
from cost_models.pools.evaluate import evaluate_on_pools
from cost_models.strategies.strategy import Ints, Strategies
from planner.answer.evaluation import Reason
from planner.rules import Violations, reasons, violations
from planner.rules.rule import facts
from planner.search.objective import Goal
from planner.strategies.space import Space
from planner.strategies.told import strategy_dict

SHOWN = 3
"""Strategies returned."""
MOST_BASE_ROWS, MOST_EXPANDED = 1 << 14, 64
"""Base rows that are looked at, and how many of these are expanded: enough for an explanation, in milliseconds."""


def closest_illegal(space: Space) -> list[dict[str, Any]]:
    """The contract's `nearest_infeasible` where rules leave nothing: the strategies that break the fewest rules.

    Among equals, those on the most GPUs come first. Only a sample of a large space is looked at.
    """
    job = space.job
    meshes = space.degrees.blocks(np.arange(len(space.degrees)), most_rows=MOST_BASE_ROWS)[0]
    rows = space.base(meshes)
    broken = violations(job, rows)
    if broken.legal.any():  # then the rules are broken by what base rows leave open, such as the ZeRO stage
        rows = space.expand(rows.take(np.flatnonzero(broken.legal)[:MOST_EXPANDED])).rows
        broken = violations(job, rows)
    return [
        {
            "strategy": strategy_dict(rows, index),
            "reasons": reasons(job, rows, index, found=broken),
            "smallest_change": _all_changes(job, rows, index, broken),
        }
        for index in _fewest_broken(rows, broken).tolist()
    ]


def _all_changes(job: Job, rows: Strategies, index: int, broken: Violations) -> str:
    """The changes that all broken rules ask for, each once."""
    known = facts(job, rows, index)
    changes = ((rule.smallest_change or rule.hint).format_map(known) for rule in broken.broken(index))
    return "; ".join(dict.fromkeys(changes))


def _fewest_broken(rows: Strategies, broken: Violations) -> Ints:
    """Places of the strategies that break the fewest rules; no two of them break the same ones."""
    count = broken.num_broken
    # One strategy for each set of broken rules: ten strategies that fail for the same reason would tell the user nothing more.
    order = np.lexsort((-rows.world, count))
    order = order[count[order] > 0]
    first = broken.take(order).first_of_each_set()
    return np.asarray(order[np.sort(first)[:SHOWN]])


def too_slow(pooled: PooledJob, goal: Goal, best: Strategies | None) -> list[dict[str, Any]]:
    """The contract's `nearest_infeasible` where targets leave nothing: the fastest plan that fits, if there is one.

    Args:
        pooled: what is planned.
        goal: the goal of the request, with its targets.
        best: what a search without targets found, best first.
    """
    if best is None:
        return []
    strategy = best.take(np.zeros(1, np.int64))
    step_s = float(evaluate_on_pools(pooled, strategy).step_time_s[0])
    tokens = pooled.jobs[0].training.tokens_per_step
    reason = target_reason(step_s, wanted_s=goal.slowest_step_s, tokens=tokens)
    return [{"strategy": strategy_dict(strategy, 0), "reasons": [reason], "smallest_change": reachable(step_s, tokens)}]


def target_reason(step_s: float, *, wanted_s: float, tokens: float) -> Reason:
    """The reason that the fastest plan takes longer than the targets allow; `tokens` is the number of tokens in a step."""
    return {
        "code": "misses-target",
        "message": f"the fastest plan that fits takes {step_s:.4g} s for a step ({np.floor(tokens / step_s):,.0f} tokens/s), "
        f"but the targets ask for {wanted_s:.4g} s ({tokens / wanted_s:,.0f} tokens/s)",
        "hint": "Lower the target, or use more or faster GPUs.",
    }


def reachable(step_s: float, tokens: float) -> str:
    """The target that a plan with this step time can reach; `tokens` is the number of tokens in a step."""
    return f"a target of at most {np.floor(tokens / step_s):,.0f} tokens/s"
