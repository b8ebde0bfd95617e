"""The only stopwatch: seconds of a call among back-to-back calls, by device events where there is a device.

Every number is a median of blocks with half of their interquartile range. Warm-up stays outside; short calls are queued
behind a spinning kernel, so that what is timed is the device and not how fast the host issues work.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

Call = Callable[[int], Any]
"""Issues one call; its argument counts calls, for rotating buffers."""
_SHORT_S = 200e-6
"""Below it the host may be slower than the device."""
LONG_S = 400e-6
"""Above it a call alone draws the power that lowers the clock, and warm-up must last until it has."""
_ISSUE_S = 150e-6
"""Generous time of issuing one call, a collective of a slow host included."""
_MAX_QUEUED = 48
"""Far less than the about 1000 launches that a stream takes before it blocks the host."""
_CYCLES_PER_S = 1.9e9
_MAX_CALLS = 2000


@dataclass(frozen=True, slots=True)
class Timing:
    """One measured call."""

    time_s: float
    spread_fraction: float
    calls: int
    block_s: tuple[float, ...] = ()
    """Seconds per call of every block."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure one call."""

    block_s: float
    blocks: int
    warm_s: float
    settle_s: float = 0.0
    """Warm-up of long calls, until the power limit has set the clock."""
    passes: int = 1
    """How often long calls are measured, others in between: a clock at its power limit wanders for seconds."""

    @property
    def expected_s(self) -> float:
        """Seconds of one measurement of a call that is shorter than a block."""
        return self.warm_s + self.block_s * self.blocks


QUICK = Effort(block_s=0.010, blocks=5, warm_s=0.010, settle_s=0.040, passes=2)
FULL = Effort(block_s=0.020, blocks=5, warm_s=0.025, settle_s=0.060, passes=4)
TINY = Effort(block_s=0.002, blocks=3, warm_s=0.001)
"""For the processor path, where a benchmark only shows that everything works."""


def now_s() -> float:
    """Seconds of a clock that never goes back."""
    return time.perf_counter()


def launched_s() -> float:
    """Seconds since the torchrun that started this process began; 0 without one, or where the system does not say."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0.0
    try:
        return _age_s(os.getppid())
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


def _age_s(pid: int) -> float:
    """Seconds since a process began: its start is the 22nd field, in clock ticks since boot (proc(5))."""
    fields_after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    began_s = float(fields_after_name[19]) / os.sysconf("SC_CLK_TCK")
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - began_s, 0.0)


def summary(block_s: list[float], *, calls: int) -> Timing:
    """Median and spread of the blocks' seconds per call."""
    middle = median(block_s)
    if len(block_s) < 3:
        return Timing(middle, 0.0, calls, tuple(block_s))
    low, _, high = quantiles(block_s, n=4, method="inclusive")
    return Timing(middle, 0.5 * (high - low) / middle, calls, tuple(block_s))


def pooled(timings: Sequence[Timing]) -> Timing:
    """Several timings of one call as one."""
    return summary([value for timing in timings for value in timing.block_s], calls=timings[0].calls)


class Stopwatch:
    """Times calls on one device."""

    def __init__(self, torch: Any, device: Any, *, probe: Callable[[], None] = lambda: None) -> None:
        """`probe` is asked while the device works: it reads clocks and power."""
        self._torch = torch
        self._on_gpu = device.type == "cuda"
        self._probe = probe

    def synchronize(self) -> None:
        """Waits until the device has nothing to do."""
        if self._on_gpu:
            self._torch.cuda.synchronize()

    def measure(
        self,
        call: Call,
        *,
        effort: Effort,
        together: Callable[[float], float] = lambda value: value,
        align: Callable[[], None] = lambda: None,
    ) -> Timing:
        """Median seconds of one call.

        Args:
            call: issues the work.
            effort: how long and how often.
            together: the largest of a number over all processes, for calls that all must make equally often.
            align: brings all processes to the same point before a block.
        """
        for index in range(2):
            call(index)
        self.synchronize()
        align()
        each_s = together(self._block(call, 2, start=2))
        align()
        warm_s = max(effort.warm_s, effort.settle_s) if each_s > LONG_S else effort.warm_s
        each_s = together(self._block(call, self._calls(each_s, warm_s), start=4))
        calls = self._calls(each_s, effort.block_s)
        block_s = []
        for block in range(effort.blocks):
            align()
            block_s.append(self._block(call, calls, start=block * calls, is_short=each_s < _SHORT_S))
        return summary(block_s, calls=calls)

    def host_seconds(self, call: Call, *, calls: int, blocks: int = 5) -> Timing:
        """Median seconds in which the host issues one call, none of it waiting for the device before the end."""
        for index in range(3):
            call(index)
        seconds = []
        for _ in range(blocks):
            self.synchronize()
            start = now_s()
            for index in range(calls):
                call(index)
            seconds.append((now_s() - start) / calls)
            self.synchronize()
        return summary(seconds, calls=calls)

    def elapsed(self, call: Call, *, calls: int) -> float:
        """Seconds per call of one plain run, for work that must not be repeated."""
        return self._block(call, calls, start=0)

    def _calls(self, each_s: float, wanted_s: float) -> int:
        calls = max(1, min(_MAX_CALLS, math.ceil(wanted_s / max(each_s, 1e-7))))
        return min(calls, _MAX_QUEUED) if self._on_gpu and each_s < _SHORT_S else calls

    def _block(self, call: Call, calls: int, *, start: int, is_short: bool = False) -> float:
        """Seconds per call of one block."""
        if not self._on_gpu:
            began = now_s()
            for index in range(start, start + calls):
                call(index)
            return (now_s() - began) / calls
        before, after = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        if is_short:
            self._torch.cuda._sleep(int(calls * _ISSUE_S * _CYCLES_PER_S))  # noqa: SLF001 - torch's only spinning kernel
        before.record()
        for index in range(start, start + calls):
            call(index)
        after.record()
        self._probe()
        after.synchronize()
        return float(before.elapsed_time(after)) / 1e3 / calls
