"""A process that has loaded the program and forks answering processes from itself.

A fork is there within milliseconds, shares the loaded program's memory with its siblings, and finds the tables of the cost models
built. A process that was started anew would load for a second, and a client who leaves often would cost that second each time.
The standard library's fork server is not used: before Python 3.13 it loads modules by the current folder first, where users may
well have an `app` or a `planner` of their own.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle

from app.service.answering.inside import serve


@dataclass(frozen=True, slots=True)
class Fork:
    """Asks for a process; its end of the connection follows."""

    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Asks for the end of a process."""

    pid: int


class Forker:
    """Forks answering processes. Threads may share it; nothing here waits for the program to be loaded."""

    def __init__(self, loads: Sequence[str]) -> None:
        """`loads` names the modules that the processes will use; one that has a function `warm_up` has it called."""
        self._loads = list(loads)
        self._lock = threading.Lock()
        self._control: Connection | None = None
        self.pid = 0
        """Its own number; 0 before the first fork."""

    def fork(self, *, memory_bytes: int) -> socket.socket:
        """The service's end of the connection to a new process, which says `Ready` once it is there."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                self._send_fork(theirs, memory_bytes)
            except OSError:  # it has been killed
                self._control = None
                self._send_fork(theirs, memory_bytes)
        return ours

    def kill(self, pid: int) -> None:
        """Ends a process that this one has forked, if it has not ended yet."""
        # Asked of its parent, for whom the number is the process's own until it has waited for its end.
        with self._lock, suppress(OSError):
            if self._control is not None:
                self._control.send(Kill(pid))

    def _send_fork(self, theirs: socket.socket, memory_bytes: int) -> None:
        if self._control is None:
            self._start()
        assert self._control is not None
        self._control.send(Fork(memory_bytes))
        send_handle(self._control, theirs.fileno(), self.pid)

    def _start(self) -> None:
        # Not "fork": the service has threads, whose locks a copy of it would inherit without anybody to release them.
        context = multiprocessing.get_context("spawn")
        control, theirs = context.Pipe()
        process = context.Process(
            target=serve_forks, args=(theirs, list(sys.path), self._loads), name="meshwright-forker", daemon=True
        )
        process.start()
        theirs.close()
        self._control, self.pid = control, process.pid or 0


def serve_forks(control: Connection, path: list[str], loads: list[str]) -> None:
    """Loads the program, then forks and kills processes until the service closes the pipe; their end is then its own."""
    sys.path[:] = path
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the service's to handle
    # A process with threads must not fork, and NumPy's library starts one a core when it is loaded. Small arrays need none.
    for library in ("OPENBLAS", "MKL", "OMP"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    for name in loads:
        warm_up = getattr(importlib.import_module(name), "warm_up", None)
        if warm_up is not None:
            warm_up()
    # What is loaded stays: neither this process nor a fork need look through it for garbage, and so its pages stay shared.
    gc.freeze()
    forked: set[int] = set()
    while True:
        try:
            command: Fork | Kill = control.recv()
            handle = recv_handle(control) if isinstance(command, Fork) else -1
        except (EOFError, OSError):
            break
        _bury(forked)
        if isinstance(command, Fork):
            forked.add(_forked(control, handle, command.memory_bytes))
        elif command.pid in forked:
            os.kill(command.pid, signal.SIGKILL)
    for pid in forked:
        os.kill(pid, signal.SIGKILL)


def _forked(control: Connection, handle: int, memory_bytes: int) -> int:
    pid = os.fork()
    if pid:
        # Only the new process keeps its end, so that the service notices when it is gone.
        os.close(handle)
        return pid
    status = 1
    try:
        control.close()
        serve(socket.socket(fileno=handle), memory_bytes=memory_bytes)
        status = 0
    finally:
        # Not an ordinary end: what runs at exit, and what is buffered, belongs to the parent.
        os._exit(status)


def _bury(forked: set[int]) -> None:
    """Waits for those that have ended, and forgets them."""
    for pid in list(forked):
        if os.waitpid(pid, os.WNOHANG)[0]:
            forked.discard(pid)
