"""The processes of one trial and all that they start: begun together, and ended together whatever sessions they have moved into.

torchrun and accelerate put their workers into sessions of their own, where no signal to a group reaches them. Every process of a trial
therefore carries the trial's mark in its environment, which its children inherit; whoever carries it is ended with the trial.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

MARK = "MESHWRIGHT_TRIAL"
PARENT = "MESHWRIGHT_TRIAL_PARENT"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# SIGKILL is not refused, but a process inside of a driver's call ends only when that returns.
_END_WITHIN_S = 20.0
_LOOK_EVERY_S = 0.05
_FIRST_OF_KERNEL_KILLS = "1000"


class Processes:
    """What was started for one trial."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(16)
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str], *, environment: Mapping[str, str], output: Path) -> None:
        """Starts a command whose output goes to a file, in the process group of the first one.

        Raises:
            OSError: there is no such program, or no process is left to be had.
        """
        # A lock on a GPU is inherited, so that it lasts as long as the last process that may be on it.
        with output.open("wb") as file:
            process = subprocess.Popen(  # noqa: S603 - our own program, or launch files that the caller names
                list(command), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                env={**environment, MARK: self.mark, PARENT: str(os.getpid())}, close_fds=False,
                process_group=self._started[0].pid if self._started else 0,
            )  # fmt: skip
        self._started.append(process)
        # Where host memory runs out the kernel ends the trial, before the program that started it.
        with contextlib.suppress(OSError):
            Path(f"/proc/{process.pid}/oom_score_adj").write_text(_FIRST_OF_KERNEL_KILLS)

    def codes(self) -> list[int | None]:
        """Exit code of each command, negative for a signal; None while it runs."""
        return [process.poll() for process in self._started]

    def host_bytes(self) -> int:
        """Host memory that belongs to the trial's processes alone, in bytes; what they share, such as libraries, is left out."""
        page = os.sysconf("SC_PAGE_SIZE")
        total = 0
        for pid in marked(self.mark):
            with contextlib.suppress(OSError, ValueError, IndexError):
                _, resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[:3]
                total += (int(resident) - int(shared)) * page
        return total

    def end(self) -> tuple[int, ...]:
        """Ends every process of the trial. Returns those that have not gone after 20 s, as happens inside of a driver."""
        if self._started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._started[0].pid, signal.SIGKILL)
        left = end_marked(self.mark)
        for process in self._started:
            if process.pid not in left:
                process.wait()
        return left


def marked(mark: str) -> tuple[int, ...]:
    """Processes with this mark in their environment; empty where the system does not show it."""
    sought = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        # Other users' processes are not ours to read, and others end meanwhile.
        with contextlib.suppress(OSError):
            if sought in (folder / "environ").read_bytes().split(b"\0") and not _is_gone(folder):
                found.append(int(folder.name))
    return tuple(sorted(found))


def end_marked(mark: str, *, but: int | None = None) -> tuple[int, ...]:
    """Ends all processes with this mark but one, again and again while there are new ones. Returns what is left after 20 s."""
    end_at = time.monotonic() + _END_WITHIN_S
    while left := tuple(pid for pid in marked(mark) if pid != but):
        if time.monotonic() > end_at:
            return left
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_EVERY_S)
    return ()


def die_with_parent(sent: signal.Signals = signal.SIGKILL) -> None:
    """Has the kernel send this process a signal when the one that started the trial is gone, however it went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, sent)
    parent = os.environ.get(PARENT)
    if parent is not None and int(parent) != os.getppid():
        # It went before the kernel was asked.
        os.kill(os.getpid(), sent)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
    return port


def _is_gone(folder: Path) -> bool:
    """Whether a process has ended and only waits for its parent to notice."""
    return (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
