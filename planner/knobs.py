"""Knobs that no formula prices: which ones a plan has, the ranges to search, and how the framework spells their values.

The knobs of a framework are among its facts (`Flag`). Which values are best is decided by measured steps; see
`planner.search.bayes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.errors import NotExpressibleError
from cost_models.frameworks import FRAMEWORKS
from cost_models.frameworks.knobs import DECADE, Flag, Strategy
from planner.search.bayes import Knob


def knobs_of(framework: str, strategy: Strategy) -> dict[str, Knob]:
    """The ranges of the knobs that have an effect under a strategy, by the framework's name for each.

    Raises:
        NotExpressibleError: no knob has an effect.
    """
    found = {flag.name: _range(flag, strategy) for flag in FRAMEWORKS[framework].knobs if flag.exists(strategy)}
    if not found:
        message = f"{framework} has no knob to tune under this plan"
        known = ", ".join(flag.name for flag in FRAMEWORKS[framework].knobs) or "none in its configuration"
        raise NotExpressibleError(message, hint=f"Knobs of {framework}: {known}. Choose another plan of the response.")
    return found


def default_values(framework: str, strategy: Strategy) -> dict[str, float | int]:
    """The values that the framework takes where nothing is set."""
    # They are measured first, so that what tuning gains is known against the framework as it comes.
    return {
        flag.name: flag.default(strategy) if flag.unit == "fraction" else round(flag.default(strategy))
        for flag in FRAMEWORKS[framework].knobs
        if flag.exists(strategy)
    }


def meanings(framework: str) -> dict[str, str]:
    """What each knob of a framework means, with its unit."""
    return {flag.name: f"{flag.meaning} ({flag.unit})" for flag in FRAMEWORKS[framework].knobs}


def spelled(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as the framework reads them: a list of `arguments`, or a nested `config`."""
    # Megatron takes arguments; DeepSpeed and Nanotron read files, in which the dots of a name step into sections.
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
    # Sizes matter by their order of magnitude, so the range spans decades and is searched on a logarithmic scale. None defaults
    # to less than a decade above 1.
    default = flag.default(strategy)
    return Knob(low=default // DECADE, high=default * flag.most, is_log=True)
