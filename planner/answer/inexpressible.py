"""The best strategy that the framework cannot be told to run, where it beats every plan that it can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cost_models.job import Job
from cost_models.step.total import step_time
from planner.rules.expressible import inexpressible_reasons
from planner.search.found import Found
from planner.strategies.told import strategy_dict


def inexpressible_best(job: Job, found: Found, plans: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The contract's `inexpressible_best`: a better strategy that cannot be launched, with its gain in step time."""
    # It is reported and not ranked: a user who can change the framework's code should know what the restriction costs.
    row, step_s = found.inexpressible, found.inexpressible_step_s
    if row is None:
        return None
    if step_s is None:
        step_s = float(step_time(job, row).total_s[0])
    best_s = plans[0]["evaluation"]["step_time_s"] if plans else None
    if best_s is not None and found.best_step_s is not None:
        best_s = float(found.best_step_s[0])
    return {
        "strategy": strategy_dict(row, 0),
        "reasons": inexpressible_reasons(job, row),
        "step_time_s": step_s,
        "gain_fraction": (best_s - step_s) / best_s if best_s is not None else 1.0,
    }


def method_gain(plan: Mapping[str, Any], plans: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same for the best plan of a method for which no launch files are written."""
    step_s = float(plan["evaluation"]["step_time_s"])
    best_s = plans[0]["evaluation"]["step_time_s"] if plans else None
    message = f"no target of launch files can be told sync.method {plan['strategy']['sync']['method']!r}"
    return {
        "strategy": plan["strategy"],
        "reasons": [{"code": "sync-unsupported", "message": message, "hint": "Write its launch by hand."}],
        "step_time_s": step_s,
        "gain_fraction": (best_s - step_s) / best_s if best_s is not None else 1.0,
    }
