"""What ends a measurement early: Ctrl-C, a terminate signal, or a rank that is gone. A thread watches while benchmarks block.

The first signal asks the measurement to stop after the current task. A second one, or a task that does not return, ends the
process at once; what was measured until then is already on disk.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import FrameType, TracebackType
from typing import Any, Self

from profiler.ranks import Ranks

# A rank may be silent for many beats without being lost: torch.compile and a swapping host can hold all of its threads for seconds.
# The grace is longer than most tasks, and shorter than the 30 s that SLURM and Kubernetes leave between
# SIGTERM and SIGKILL.
_BEAT_S, _LOST_S, _GRACE_S = 1.0, 15.0, 12.0
"""Seconds between heartbeats, for which a rank may be silent, and for which a task may go on after a signal."""


class Watch:
    """Watches the signals and heartbeats of one process; used as a context manager."""

    def __init__(self, place: Ranks, torch: Any, *, on_end: Callable[[str, int], None]) -> None:
        """`on_end(why, exit_code)` says what is kept and ends the process. It runs in the watching thread."""
        self._place, self._torch, self._on_end = place, torch, on_end
        self._stopped_at: float | None = None
        self._signal: int | None = None
        self._done = threading.Event()
        self._reader, self._writer = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._previous: dict[int, Any] = {}
        self.progress = ""
        """What is being measured, for messages."""

    @property
    def is_stopping(self) -> bool:
        return self._stopped_at is not None

    @property
    def exit_code(self) -> int:
        """128 plus the number of the signal that asked to stop, as shells report it."""
        return 128 + (self._signal or signal.SIGINT)

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._noticed)
        self._writer.setblocking(False)
        # A Python handler runs only when the main thread returns from a collective. The byte that C writes here arrives at once.
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join(timeout=2 * _BEAT_S)
        signal.set_wakeup_fd(-1)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()

    def _noticed(self, _number: int, _frame: FrameType | None) -> None:
        """Does nothing: a Python handler must be there for the byte to be written, and the thread does the work."""

    def _run(self) -> None:
        store, beats = self._store(), _Beats(self._place)
        while not self._done.wait(0.0):
            ready, _, _ = select.select([self._reader], [], [], _BEAT_S)
            if ready:
                self._received(self._reader.recv(64))
            now = time.monotonic()
            if self._stopped_at is not None and now - self._stopped_at > _GRACE_S:
                self._on_end(f"stopped during {self.progress or 'the start'}", self.exit_code)
            if store is not None:
                lost = beats.exchange(store, now)
                if lost is None:
                    store = None
                elif lost and not self.is_stopping and not self._done.is_set():
                    ranks = ", ".join(map(str, lost))
                    self._on_end(f"rank {ranks} is gone (last seen during {self.progress or 'the start'})", 5)

    def _received(self, numbers: bytes) -> None:
        for number in numbers:
            if number not in {signal.SIGINT, signal.SIGTERM}:
                continue
            # torchrun passes a Ctrl-C on to processes that the terminal has already sent it to: two within half a second are one.
            if self._stopped_at is not None and time.monotonic() - self._stopped_at > 0.5:
                self._on_end("stopped at once", 128 + number)
            self._signal = number
            self._stopped_at = self._stopped_at or time.monotonic()

    def _store(self) -> Any:
        """A second connection to the rendezvous store; None for a single process, or if the store cannot be reached.

        The process group's own connection may be blocked by a collective for as long as its timeout.
        """
        if self._place.world == 1:
            return None
        try:
            return self._torch.distributed.TCPStore(
                self._place.master_address,
                self._place.master_port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=20),
            )
        except (RuntimeError, ValueError):
            return None


class _Beats:
    """Heartbeats: every rank writes a counter, and those that watch it see whether it moves."""

    def __init__(self, place: Ranks) -> None:
        self._place = place
        self._count = 0
        # Rank 0 watches all, the others only rank 0, which holds the results: n messages per beat instead of n squared.
        self._watched: Sequence[int] = range(1, place.world) if place.rank == 0 else [0]
        self._seen: dict[int, tuple[int, float]] = {}

    def exchange(self, store: Any, now: float) -> list[int] | None:
        """Ranks that have gone silent; None if the store is gone."""
        self._count += 1
        try:
            store.set(f"meshwright/beat/{self._place.rank}", str(self._count))
            keys = {rank: f"meshwright/beat/{rank}" for rank in self._watched}
            counts = {rank: int(store.get(key)) for rank, key in keys.items() if store.check([key])}
        except RuntimeError:
            return None
        # Only our own clock is used, and only changes count, since clocks of different nodes differ.
        for rank, count in counts.items():
            if count != self._seen.get(rank, (None, 0.0))[0]:
                self._seen[rank] = (count, now)
        return [rank for rank, (_, moment) in self._seen.items() if now - moment > _LOST_S]


def leave(code: int) -> None:
    """Ends the process without waiting for threads or devices that may never answer."""
    os._exit(code)
