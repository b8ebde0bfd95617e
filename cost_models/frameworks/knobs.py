"""Knobs that no formula prices: how a framework spells one, what it defaults to, and under which strategies it does anything.

A knob belongs here where changing it changes neither the split nor the numerics, only how communication is cut up, how far
ahead parameters are fetched, or how much optimizer state waits on the host. A strategy is a mapping in the contract's names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Strategy = Mapping[str, Any]
DECADE = 10.0
"""How far to either side of its default a knob is searched: of sizes it is the order of magnitude that matters."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One knob of one framework."""

    name: str
    """As the framework spells it: an argument, or a key with dots reaching inside."""
    meaning: str
    unit: Literal["parameters", "MB", "fraction"]
    default: Callable[[Strategy], float]
    exists: Callable[[Strategy], bool]
    """Whether the setting does anything under this strategy."""
    source: str
    most: float = DECADE
    """Largest value tried, as a multiple of the default."""


def always(value: float) -> Callable[[Strategy], float]:
    """A default that depends on nothing."""
    return lambda _: value


def shards(*stages: int) -> Callable[[Strategy], bool]:
    """Where one of these ZeRO stages shards state over several replicas."""
    return lambda strategy: strategy["zero"] in stages and replicas(strategy) > 1


def replicas(strategy: Strategy) -> int:
    """Ranks that hold the same dense parameters."""
    return int(strategy["dp"] * strategy["cp"])


def reduces_in_buckets(strategy: Strategy) -> bool:
    """Where whole gradients are reduced bucket by bucket beside the backward pass."""
    return strategy["zero"] < 2 and replicas(strategy) > 1 and bool(strategy["overlap"]["grad_reduce"])


def offloaded_fraction(strategy: Strategy) -> float:
    """Share of the optimizer state that the plan keeps on the host."""
    return float(strategy["offload"]["optimizer_fraction"])


def offloads(strategy: Strategy) -> bool:
    """Where any optimizer state is on the host."""
    return offloaded_fraction(strategy) > 0
