"""The only stopwatch: seconds of one call among back-to-back calls, taken by device events if there is a device.

Every number is the median of several blocks of calls, with half of their interquartile range as its spread. Warm-up is not
counted. Short calls are queued behind a spinning kernel, so that the device is timed and not how fast the host issues work.
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
"""Issues one call. Its argument counts the calls, so that buffers can be rotated."""
_SHORT_S = 200e-6
"""Calls shorter than this may be issued more slowly by the host than the device runs them."""
LONG_S = 400e-6
"""Calls longer than this draw so much power that the clock falls, and their warm-up must last until it has."""
_ISSUE_S = 150e-6
"""A generous time for issuing one call, even a collective on a slow host."""
_MAX_QUEUED = 48
"""Calls queued at a time, far fewer than the thousand or so launches after which a stream blocks the host."""
# About the highest clock of an H100 (1.98 GHz). At a lower clock the spinning kernel lasts longer, which is harmless.
_CYCLES_PER_S = 1.9e9
# Bounds a block of calls that are too short to time: without it, a call of 1e-7 s would be made 200,000 times.
_MAX_CALLS = 2000


@dataclass(frozen=True, slots=True)
class Timing:
    """The timing of one call."""

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
    """Seconds of warm-up for long calls, after which the power limit has set the clock."""
    passes: int = 1
    """How often long calls are measured, with others in between, because a clock at its power limit wanders for seconds."""

    @property
    def expected_s(self) -> float:
        """Seconds of one measurement of a call that is shorter than a block."""
        return self.warm_s + self.block_s * self.blocks


# Five blocks are the fewest whose quartiles mean something. A block of 10 or 20 ms holds dozens of the calls that decide a plan, and
# is far longer than the resolution of device events (0.5 us, by CUDA's documentation of cudaEventElapsedTime).
QUICK = Effort(block_s=0.010, blocks=5, warm_s=0.010, settle_s=0.040, passes=2)
FULL = Effort(block_s=0.020, blocks=5, warm_s=0.025, settle_s=0.060, passes=4)
TINY = Effort(block_s=0.002, blocks=3, warm_s=0.001)
"""For processors, on which a benchmark only shows that everything works."""


def now_s() -> float:
    """Seconds of a clock that never goes back."""
    return time.perf_counter()


def launched_s() -> float:
    """Seconds since the torchrun that started this process began; 0 without one, or if the system does not say."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0.0
    try:
        return _age_s(os.getppid())
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


def _age_s(pid: int) -> float:
    """Seconds since a process began. Its start is the 22nd field of its stat, in clock ticks since boot (proc(5))."""
    # The second field, the name in brackets, may itself hold blanks and brackets; fields are counted from behind its last one.
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
    """Several timings of one call, pooled into one."""
    return summary([value for timing in timings for value in timing.block_s], calls=timings[0].calls)


class Stopwatch:
    """Times calls on one device."""

    def __init__(self, torch: Any, device: Any, *, probe: Callable[[], None] = lambda: None) -> None:
        """`probe` is called while the device works; it reads clocks and power."""
        self._torch = torch
        self._on_gpu = device.type == "cuda"
        self._probe = probe

    def synchronize(self) -> None:
        """Waits until the device has finished all its work."""
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
            effort: how long and how often to measure.
            together: returns the largest of a number over all processes, for calls that all must make equally often.
            align: brings all processes to the same point before a block.
        """
        # Two calls outside all timing: the first loads kernels, picks algorithms and builds communicators, and the second finds
        # them all there. With one, what the first call starts in the background would fall into the estimate that follows.
        for index in range(2):
            call(index)
        self.synchronize()
        align()
        # A rough time of one call, which only decides how many make up the warm-up. The warm-up itself gives the better estimate
        # that decides the size of a block.
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
        """Median seconds in which the host issues one call. It does not wait for the device within a block."""
        # Three calls to warm up: loading, autograd's first graph, and the allocator's pool, which is complete after a whole step.
        for index in range(3):
            call(index)
        seconds = []
        for _ in range(blocks):
            self.synchronize()
            start = now_s()
            for index in range(calls):
                call(index)
            # Taken before the synchronisation, so that the device's own time is not counted.
            seconds.append((now_s() - start) / calls)
            self.synchronize()
        return summary(seconds, calls=calls)

    def elapsed(self, call: Call, *, calls: int) -> float:
        """Seconds per call of a single run, for work that must not be repeated."""
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
        # The device spins until the host has queued every call of the block, so that none waits for the host.
        if is_short:
            self._torch.cuda._sleep(int(calls * _ISSUE_S * _CYCLES_PER_S))  # noqa: SLF001 - torch's only spinning kernel
        before.record()
        for index in range(start, start + calls):
            call(index)
        after.record()
        self._probe()
        after.synchronize()
        return float(before.elapsed_time(after)) / 1e3 / calls
