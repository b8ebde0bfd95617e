"""One measurement as a process of its own: started, watched, and ended for certain, with every process that it has started.

The agent itself never loads torch. A context on a GPU would be in the way of what is measured, and a measurement that runs out of memory
or hangs in a driver must not take the agent along.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cost_models.errors import MeasurementError

# The profiler gives a task twelve seconds to end after a signal. SLURM and Kubernetes leave thirty in all.
_STOP_S = 15.0
"""Seconds between asking a measurement to end and ending it by force."""
_LOG_TAIL_BYTES = 20_000
_LONGEST_TEXT = 1000
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_SECRETS = ("MESHWRIGHT_SERVER", "MESHWRIGHT_TOKEN")
"""Variables that would make the measurement send its result itself, or that are none of its business."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a measurement ended: with `message` empty where it succeeded."""

    message: str
    hint: str = ""


def command_of(
    arguments: Sequence[str], *, gpus_per_node: int, launcher: str | None, python: str = sys.executable
) -> list[str]:
    """The command that runs `meshwright` with these arguments in one process per GPU.

    Args:
        arguments: those of `meshwright`.
        gpus_per_node: processes to start on this node, unless a launcher does it.
        launcher: a command such as `srun --ntasks-per-node 8` that starts the processes on every node.
        python: the interpreter.
    """
    program = ["-m", "meshwright", *arguments]
    if launcher is not None:
        return [*shlex.split(launcher), python, *program]
    if gpus_per_node == 1:
        return [python, *program]
    return [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus_per_node}", *program]


class Measurement:
    """A running measurement."""

    def __init__(
        self, command: Sequence[str], *, out: Path, time_limit_s: float, environment: Mapping[str, str]
    ) -> None:
        """Starts the command, which writes its calibration to `out` and is ended after `time_limit_s` seconds.

        Raises:
            MeasurementError: it cannot be started.
        """
        self._out = out
        self._log = out.with_suffix(".log")
        self._time_limit_s = time_limit_s
        self._ends_at = time.monotonic() + time_limit_s
        kept = {name: value for name, value in environment.items() if name not in _SECRETS}
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(  # noqa: S603 - the program itself, with arguments that were checked
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=kept,
                    start_new_session=True,
                    # The agent has one thread, so that running Python between fork and exec is safe.
                    preexec_fn=_end_with_parent,  # noqa: PLW1509
                )
        except OSError as error:
            raise MeasurementError(
                f"{command[0]} could not be started: {error.strerror or error}",
                hint="Look at --launcher and --folder of `meshwright agent` on the node.",
            ) from error

    def poll(self) -> Ended | None:
        """How it ended; None while it runs. One that has overstayed its limit is ended now."""
        if self._process.poll() is None:
            if time.monotonic() < self._ends_at:
                return None
            self.stop(grace_s=0.0)
            return Ended(
                f"the measurement did not end within {self._time_limit_s:.0f} s and was ended by force",
                f"What it said last: {self._last_words()}",
            )
        if self._process.returncode == 0 and self._out.exists():
            return Ended("")
        return self._failure(self._process.returncode)

    def stop(self, *, grace_s: float = _STOP_S) -> None:
        """Ends the process and all that it has started; what it has finished stays in its state file."""
        # Looked up first: a launcher that dies leaves its children to process 1, and torchrun's are not of its session.
        everybody = [self._process.pid, *descendants(self._process.pid)]
        if grace_s > 0:
            _signal(self._process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=grace_s)
        everybody += descendants(self._process.pid)
        for pid in dict.fromkeys(everybody):
            _signal(pid, signal.SIGKILL)
        self._process.wait()

    @property
    def parts_done(self) -> int | None:
        """Number of finished parts; None before the first."""
        try:
            with self._out.with_name(f"{self._out.name}.partial").open("rb") as state:
                # The first line describes the machine.
                return max(sum(1 for _ in state) - 1, 0) or None
        except OSError:
            return None

    def clear(self) -> None:
        """Removes the files of a measurement that nobody will continue."""
        for path in (self._out, self._log, self._out.with_name(f"{self._out.name}.partial")):
            path.unlink(missing_ok=True)

    def _failure(self, code: int) -> Ended:
        told = re.findall(r"^error: (.+)(?:\n {2}(\S.*))?", self._tail(), flags=re.MULTILINE)
        if told:
            # The first: where several ranks fail, the others tell that they have lost it.
            message, hint = told[0]
            return Ended(message[:_LONGEST_TEXT], hint[:_LONGEST_TEXT])
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return Ended(f"the measurement ended with {how}", f"What it said last: {self._last_words()}")

    def _tail(self) -> str:
        with self._log.open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES, 0))
            return log.read().decode(errors="replace")

    def _last_words(self) -> str:
        words = " ".join(self._tail().split())
        return words[-_LONGEST_TEXT:] or "nothing"


def descendants(pid: int) -> list[int]:
    """Processes that this one has started, and that those have started, as Linux lists them."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name in parentheses may hold anything; the state and the parent follow its last one.
            parent = int(status.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(status.parent.name))
    found, level = list[int](), [pid]
    while level:
        level = [child for parent in level for child in children.get(parent, [])]
        found += level
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _end_with_parent() -> None:
    """Asks Linux to end this process when the agent is gone: nobody would otherwise end a measurement that nobody waits for."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
