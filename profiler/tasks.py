"""A task: one to a few seconds of measuring, with a stable name and a place in the order of value.

Its result are `Findings`: samples by the field of the calibration document that they belong to. They are plain JSON values, so
that they can be written to a state file at once and read back by a later run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from profiler.rig import Rig

Findings = dict[str, list[dict[str, Any]]]
"""Keys: gemm, collectives, attention, math_attention, memory_bandwidth, host_adam, overlap, pairs, host, host_layers, memory,
devices, notes."""


class NotSupportedError(Exception):
    """This device or library cannot do what a task measures. The task is left out, and a note says why."""


@dataclass(frozen=True, slots=True)
class Task:
    """One unit of measuring."""

    key: str
    value: int
    """Place in the order: tasks with lower values are measured earlier."""
    expected_s: float
    run: Callable[[Rig], Findings]
    title: str = ""


def note(text: str) -> dict[str, Any]:
    """A sentence for the notes of the document."""
    return {"text": text}


def rounded(value: float, digits: int = 6) -> float:
    """The value with as many significant digits as a measurement has, which keeps documents small."""
    return float(f"{value:.{digits}g}")


def timed(sample: Mapping[str, Any], *, time_s: float, spread_fraction: float) -> dict[str, Any]:
    """A sample with its time."""
    return {**sample, "time_s": rounded(time_s), "spread_fraction": rounded(spread_fraction, 3)}
