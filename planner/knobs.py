"""Knobs that no formula prices: which a plan has, the range that is searched, and how the framework spells their values.

Which knobs a framework has is in its facts (`Flag`). Measured steps decide; see `planner.search.bayes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.errors import NotExpressibleError
from cost_models.frameworks import FRAMEWORKS
from cost_models.frameworks.knobs import DECADE, Flag, Strategy
from planner.search.bayes import Knob


def knobs_of(framework: str, strategy: Strategy) -> dict[str, Knob]:
    """Ranges of the knobs that do something under a strategy, by the framework's name of each.

    Raises:
        NotExpressibleError: there is none.
    """
    found = {flag.name: _range(flag, strategy) for flag in FRAMEWORKS[framework].knobs if flag.exists(strategy)}
    if not found:
        message = f"{framework} has no knob to tune under this plan"
        known = ", ".join(flag.name for flag in FRAMEWORKS[framework].knobs) or "none in its configuration"
        raise NotExpressibleError(message, hint=f"Known for {framework}: {known}. Choose another plan of the response.")
    return found


def default_values(framework: str, strategy: Strategy) -> dict[str, float | int]:
    """What the framework takes where nothing is set: the first values to measure."""
    return {
        flag.name: flag.default(strategy) if flag.unit == "fraction" else round(flag.default(strategy))
        for flag in FRAMEWORKS[framework].knobs
        if flag.exists(strategy)
    }


def meanings(framework: str) -> dict[str, str]:
    """What each knob of a framework is, with its unit."""
    return {flag.name: f"{flag.meaning} ({flag.unit})" for flag in FRAMEWORKS[framework].knobs}


def spelled(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as the framework reads them: a list of `arguments`, or a nested `config`."""
    arguments: list[str] = []
    config: dict[str, Any] = {}
    for name, value in values.items():
        if name.startswith("--"):
            arguments += [name, str(value)]
            continue
        target = config
        *parents, last = name.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
    return {"arguments": arguments} if arguments else {"config": config}


def _range(flag: Flag, strategy: Strategy) -> Knob:
    if flag.unit == "fraction":
        return Knob(low=0.0, high=1.0, is_whole=False)
    default = flag.default(strategy)
    return Knob(low=max(1.0, default // DECADE), high=default * flag.most, is_log=True)
