"""Watches a running trial: follows what its processes write, and ends it when a phase takes too long or the host's memory too much.

Phases are start (until all processes have met), build, warm-up (its steps together), step (each one), and finish. Time is in seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from profiler.trial.processes import Processes
from profiler.trial.reasons import Errors

Phase = Literal["start", "build", "warm-up", "step", "finish"]
Ending = Literal["ended", "hang", "host-memory"]
_LOOK_EVERY_S = 0.05
_WEIGH_EVERY_S = 1.0
_GRACE_S = 2.0
_LONGEST_LINE = 100_000
_OF_AVAILABLE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a trial is ended: seconds of the whole and of each phase, and bytes of host memory."""

    deadline_s: float
    start_s: float = 120.0
    build_s: float = 240.0
    warm_up_s: float = 300.0
    step_s: float = 120.0
    finish_s: float = 60.0
    host_bytes: float | None = None
    """Of all processes together; by default nine tenths of what is available when the trial starts."""
    gpu_fraction: float | None = None
    """Share of a GPU's memory that PyTorch's allocator may take in each process; all of it by default."""

    def of(self, phase: Phase) -> float:
        """Seconds that a phase may take."""
        by_phase = {
            "start": self.start_s, "build": self.build_s, "warm-up": self.warm_up_s, "step": self.step_s, "finish": self.finish_s,
        }  # fmt: skip
        return by_phase[phase]


@dataclass(frozen=True, slots=True)
class Heard:
    """What a line tells: that a phase begins, or how long a step took."""

    phase: Phase | None = None
    step_s: float | None = None


class Watch:
    """What was seen of one trial."""

    def __init__(
        self,
        processes: Processes,
        outputs: Sequence[Path],
        *,
        limits: Limits,
        warm_up: int,
        steps: int,
        hear: Callable[[str], Heard | None],
        goes_on: Callable[[int, float], bool] | None = None,
        stop: Callable[[], None] | None = None,
    ) -> None:
        """Prepares to watch.

        Args:
            processes: those of the trial, already started.
            outputs: the files that they write to.
            limits: when the trial is ended.
            warm_up: steps that share one limit.
            steps: steps after them.
            hear: what a line tells, if anything.
            goes_on: asked after each step, with its number from 0 and its seconds, whether the trial should go on.
            stop: asks the processes to finish with what they have; without it they are ended.
        """
        self._processes, self._limits = processes, limits
        self._warm_up, self._steps = warm_up, steps
        self._hear, self._goes_on, self._stop = hear, goes_on, stop
        self._followed = [Followed(output) for output in outputs]
        self._phase: Phase = "start"
        self._phase_began_s = self._began_s = time.monotonic()
        self._weighed_s = self._began_s
        # Of what is available now, since other programs on the machine keep what they have.
        self._host_bytes = limits.host_bytes or _OF_AVAILABLE * available_bytes()
        self.errors = Errors()
        self.step_s: list[float] = []
        self.ended_early = False

    def until_it_ends(self) -> tuple[Ending, str | None]:
        """Follows the trial to its end, of whatever kind: how it ended, and the reason where it must be ended from here."""
        while True:
            # Asked before the last look at the output, so that nothing is written after it.
            codes = self._processes.codes()
            if None not in codes:
                self._listen(at_end=True)
                return "ended", None
            self._listen()
            if any(codes):
                # The others hang in a collective that the failed one will never join; their own words may still come.
                time.sleep(_GRACE_S)
                self._listen(at_end=True)
                return "ended", None
            if self.ended_early and self._stop is None:
                return "ended", None
            if (late := self._late()) is not None:
                return "hang", late
            if (heavy := self._heavy()) is not None:
                return "host-memory", heavy
            time.sleep(_LOOK_EVERY_S)

    def _listen(self, *, at_end: bool = False) -> None:
        for followed in self._followed:
            lines = followed.new_lines(at_end=at_end)
            self.errors.hear(lines)
            for heard in filter(None, map(self._hear, lines)):
                if heard.phase is not None:
                    self._begin(heard.phase)
                if heard.step_s is not None:
                    self._note_step(heard.step_s)

    def _note_step(self, took_s: float) -> None:
        self.step_s.append(took_s)
        done = len(self.step_s)
        if done >= self._warm_up:
            self._begin("finish" if done >= self._warm_up + self._steps else "step")
        elif self._phase != "warm-up":
            self._begin("warm-up")
        if self._goes_on is not None and not self.ended_early and not self._goes_on(done - 1, took_s):
            self.ended_early = True
            self._begin("finish")
            if self._stop is not None:
                self._stop()

    def _begin(self, phase: Phase) -> None:
        self._phase, self._phase_began_s = phase, time.monotonic()

    def _late(self) -> str | None:
        now_s = time.monotonic()
        after = f"after {len(self.step_s)} steps"
        if now_s - self._began_s > self._limits.deadline_s:
            return f"it had not ended after its {self._limits.deadline_s:g} s, in the phase {self._phase} {after}"
        allowed_s = self._limits.of(self._phase)
        if now_s - self._phase_began_s > allowed_s:
            return f"nothing came for {allowed_s:g} s in the phase {self._phase} {after}"
        return None

    def _heavy(self) -> str | None:
        """Why the trial takes too much host memory, if it does: the kernel would end somebody, not always the trial."""
        now_s = time.monotonic()
        if now_s - self._weighed_s < _WEIGH_EVERY_S:
            return None
        self._weighed_s = now_s
        held = self._processes.host_bytes()
        if held <= self._host_bytes:
            return None
        return f"its processes held {held / 2**30:.1f} GiB of host memory, more than their limit of {self._host_bytes / 2**30:.1f} GiB"


class Followed:
    """The lines of a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path, self._read_to, self._rest = path, 0, b""

    def new_lines(self, *, at_end: bool = False) -> list[str]:
        """Whole lines since the last call, and at the end what comes after the last of them.

        Progress bars write carriage returns; each of their states counts as a line.
        """
        with self._path.open("rb") as file:
            file.seek(self._read_to)
            new = file.read()
        self._read_to += len(new)
        *whole, rest = (self._rest + new).replace(b"\r", b"\n").split(b"\n")
        self._rest = b"" if at_end else rest[-_LONGEST_LINE:]
        if at_end and rest:
            whole.append(rest)
        return [line[:_LONGEST_LINE].decode(errors="replace") for line in whole]


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> float:
    """Host memory that programs can still take, in bytes; endless where the system does not say."""
    try:
        told: dict[str, Any] = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        return float(told["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return float("inf")
