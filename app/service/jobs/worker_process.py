"""One worker process as the service sees it: started, given one job at a time, watched, and ended when it must be."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Literal

from app.errors import TimeLimitError, WorkerLostError, problem_document
from app.service.jobs.worker import Done, Failed, JobInput, Message, Ready, serve
from planner.search.progress import Progress

Outcome = Done | Failed | Literal["cancelled", "abandoned"]
"""How a job ended in its worker; `abandoned` where the service shuts down."""
# Bounds how late a cancellation, a time limit or a shutdown is noticed; a result or the end of the process wakes the wait itself.
_LOOK_EVERY_S = 0.05
# Loading takes one to two seconds; on a cold network file system, or a machine that starts many at once, far longer.
_START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """When a job is stopped, in seconds."""

    time_limit_s: float
    grace_s: float
    """Seconds that a job which was told to stop may take to do so."""


class WorkerProcess:
    """A spawned process. One thread uses it; only `cancel` may be called from others."""

    def __init__(self, tasks: Mapping[str, str]) -> None:
        # Not "fork": a copy of a process with threads inherits locks that nobody in it will ever release.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        # Shared without a lock, because a worker that is killed while it holds one would block the service. A single byte cannot
        # be read half-written.
        self._stop = context.RawValue("b", 0)
        self._process = context.Process(
            target=serve, args=(theirs, self._stop, dict(tasks), list(sys.path)), name="meshwright-worker", daemon=True
        )
        self._process.start()
        # While this copy is open, the end of the worker would not close the pipe.
        theirs.close()
        self._cancelled_at: float | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def became_ready(self, *, is_abandoned: Callable[[], bool]) -> bool:
        """Waits until the worker has loaded its tasks; False where it ended, or was abandoned, instead."""
        end_at = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < end_at and not is_abandoned():
            message = self._receive(_LOOK_EVERY_S)
            if message is not None:
                return isinstance(message, Ready)
        return False

    def cancel(self) -> None:
        """Tells the running job to stop. Its process is ended if it has not stopped when its grace, which begins now, is over."""
        self._cancelled_at = time.monotonic()
        self._stop.value = 1

    def run(
        self,
        job: JobInput,
        *,
        limits: Limits,
        on_progress: Callable[[Progress], None],
        is_abandoned: Callable[[], bool],
    ) -> Outcome:
        """The job's outcome. Afterwards the process is dead if it had to be ended or ended by itself."""
        self._cancelled_at = None
        self._stop.value = 0
        try:
            self._connection.send(job)
        except OSError:
            return self._lost()
        end_at = time.monotonic() + limits.time_limit_s
        stopped_at: float | None = None
        while True:
            left_s = _LOOK_EVERY_S if stopped_at is None else stopped_at + limits.grace_s - time.monotonic()
            message = self._receive(min(max(left_s, 0.0), _LOOK_EVERY_S))
            if isinstance(message, Progress):
                on_progress(message)
            elif isinstance(message, Done | Failed):
                # A result that arrives after the cancellation is dropped: the caller was told that there would be none.
                return "cancelled" if self._is_cancelled else message
            elif message == "ended":
                return "cancelled" if self._is_cancelled else self._lost()
            if is_abandoned():
                self.terminate()
                return "abandoned"
            now = time.monotonic()
            if stopped_at is None and (self._is_cancelled or now >= end_at):
                stopped_at = self._told_at(now)
                self._stop.value = 1
            if stopped_at is not None and now >= stopped_at + limits.grace_s:
                self.terminate()
                return "cancelled" if self._is_cancelled else _timed_out(limits)

    @property
    def _is_cancelled(self) -> bool:
        return self._cancelled_at is not None

    def _told_at(self, now: float) -> float:
        """When the job was told to stop: when it was cancelled, else now."""
        return now if self._cancelled_at is None else self._cancelled_at

    def terminate(self) -> None:
        """Ends the process now."""
        # SIGKILL, since a worker that ignored its stop flag may well be inside a solver that handles no gentler signal.
        self._process.kill()
        self._process.join()
        self._connection.close()

    def _receive(self, timeout_s: float) -> Message | Literal["ended"] | None:
        # The sentinel too: a worker that is killed while it writes leaves a pipe that may never become readable.
        if not wait([self._connection, self._process.sentinel], timeout=timeout_s):
            return None
        try:
            if self._connection.poll():
                message: Message = self._connection.recv()
                return message
        except (EOFError, OSError):
            pass
        return None if self._process.is_alive() else "ended"

    def _lost(self) -> Failed:
        self._process.join(timeout=1.0)
        error = WorkerLostError(
            f"the process that ran this job ended ({_how(self._process.exitcode)})",
            hint="Look for an out-of-memory kill in the server's system log, or ask for a smaller search.",
        )
        return Failed(problem_document(error))


def _timed_out(limits: Limits) -> Failed:
    error = TimeLimitError(
        f"the job was still running after {limits.time_limit_s:g} s",
        hint="Fix some axes in `constraints`, or set `time_limit_s` to get the best plans found within that time.",
    )
    return Failed(problem_document(error))


def _how(exitcode: int | None) -> str:
    if exitcode is None:
        return "its pipe closed"
    return f"exit code {exitcode}" if exitcode >= 0 else f"signal {signal.Signals(-exitcode).name}"
