"""Who waits for which job or tuning, and who watches its events. One thread looks at the database for all of a kind.

A job that this process ends is told to its watchers at once. What other processes do is seen at the next look, unless somebody says
earlier that there is something to see (`notify`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Generic

import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.service.db.job_news import E, News, Source
from app.service.db.jobs import FINISHED, JobKey

log = structlog.get_logger("meshwright.jobs")
# Workers report at most every 0.2 s, so looking more often would find nothing new.
_LOOK_EVERY_S = 0.2
_RETRY_AFTER_S = 1.0


@dataclass(eq=False, slots=True)
class _Seat:
    """One reader: the event loop that it runs in, and the flag that wakes it."""

    loop: asyncio.AbstractEventLoop
    woken: asyncio.Event
    wants_events: bool


@dataclass(slots=True)
class _Watched(Generic[E]):
    """What is known of one job, shared by everybody who watches it."""

    events: list[E] = field(default_factory=list)
    is_over: bool = False
    seats: set[_Seat] = field(default_factory=set)

    @property
    def wants_events(self) -> bool:
        return any(seat.wants_events for seat in self.seats)

    @property
    def last_seq(self) -> int | None:
        """Number of the last event; None while nobody wants any."""
        if not self.wants_events:
            return None
        return self.events[-1].seq if self.events else 0


class Watch(Generic[E]):
    """One reader's view of a job."""

    def __init__(self, watched: _Watched[E], seat: _Seat) -> None:
        self._watched = watched
        self._seat = seat

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come: the job has ended or is gone, or the service stops."""
        return self._watched.is_over

    @property
    def events(self) -> list[E]:
        """Every event of the job so far, in order, or the last one where each tells everything. Read `is_over` before it, so that no last event is missed."""
        return self._watched.events

    async def changed(self, *, timeout_s: float | None = None) -> None:
        """Returns when there is something new, or after `timeout_s`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._seat.woken.wait(), timeout_s)
        self._seat.woken.clear()


class Watchers(Generic[E]):
    """Waits for jobs and follows them, wherever they run."""

    def __init__(self, news: Source[E], *, look_every_s: float = _LOOK_EVERY_S, keeps_last: bool = False) -> None:
        """`keeps_last`: whether an event tells everything, so that those before it are forgotten."""
        self._news = news
        self._look_every_s = look_every_s
        self._keeps_last = keeps_last
        self._lock = threading.Condition()
        self._watched: dict[JobKey, _Watched[E]] = {}
        self._due: set[JobKey] = set()
        self._thread: threading.Thread | None = None
        self._is_dismissed = False

    def notify(self, key: JobKey) -> None:
        """Says that this job has ended: who waits for it is woken, and its last events are read now."""
        with self._lock:
            watched = self._watched.get(key)
            if watched is None:
                return
            if watched.wants_events:
                self._look_at(key)
            else:
                watched.is_over = True
                _wake(watched)

    def dismiss(self) -> None:
        """Lets everybody go, now and from now on, because the service is about to stop."""
        with self._lock:
            self._is_dismissed = True
            for watched in self._watched.values():
                watched.is_over = True
                _wake(watched)

    @contextmanager
    def watch(self, key: JobKey) -> Iterator[Watch[E]]:
        """The events of a job, from its first one on."""
        with self._seated(key, wants_events=True) as watch:
            yield watch

    async def wait(self, key: JobKey, *, timeout_s: float) -> None:
        """Returns when the job has ended, or after `timeout_s`."""
        with self._seated(key, wants_events=False) as watch:
            end_at = asyncio.get_running_loop().time() + timeout_s
            while not watch.is_over and (left_s := end_at - asyncio.get_running_loop().time()) > 0:
                await watch.changed(timeout_s=left_s)

    @contextmanager
    def _seated(self, key: JobKey, *, wants_events: bool) -> Iterator[Watch[E]]:
        # The loop is noted, because the thread that looks is not the one of the event loop, and tests have several loops.
        seat = _Seat(asyncio.get_running_loop(), asyncio.Event(), wants_events)
        with self._lock:
            watched = self._watched.get(key)
            if watched is None or watched.is_over:
                # What others have watched to its end may lack events, where all of them only waited for the end.
                watched = self._watched[key] = _Watched(is_over=self._is_dismissed)
            if wants_events and not watched.wants_events:
                self._look_at(key)
            watched.seats.add(seat)
            if self._thread is None and not self._is_dismissed:
                # A thread and not a task: it waits for the database most of the time, and `notify` comes from threads.
                self._thread = threading.Thread(target=self._look, name="job-watcher", daemon=True)
                self._thread.start()
        try:
            yield Watch(watched, seat)
        finally:
            with self._lock:
                watched.seats.discard(seat)
                if not watched.seats and self._watched.get(key) is watched:
                    del self._watched[key]

    def _look_at(self, key: JobKey) -> None:
        self._due.add(key)
        self._lock.notify()

    def _look(self) -> None:
        """Reads what is new until nobody watches any more."""
        look_at = time.monotonic() + self._look_every_s
        while True:
            with self._lock:
                self._lock.wait_for(lambda: bool(self._due), timeout=look_at - time.monotonic())
                if not self._watched:
                    self._thread = None
                    return
                # Whoever has just come, or was told of an end, is not made to wait for the turn of all.
                due = self._due
                if time.monotonic() >= look_at:
                    due, look_at = set(self._watched), time.monotonic() + self._look_every_s
                self._due = set()
                looked = {key: self._watched[key] for key in due if key in self._watched}
                known = {key: watched.last_seq for key, watched in looked.items()}
            try:
                news = self._news.since(known)
            except SQLAlchemyError as error:
                log.error("jobs cannot be watched for now", error=str(error)[:300])  # noqa: TRY400 - repeats
                time.sleep(_RETRY_AFTER_S)
                continue
            with self._lock:
                for key, watched in looked.items():
                    self._tell(watched, known[key], news.get(key))

    def _tell(self, watched: _Watched[E], known: int | None, news: News[E] | None) -> None:
        # Somebody may have begun to watch the events of a job of which the status alone was asked for; the next look brings them.
        if watched.is_over or (known is None and watched.wants_events):
            return
        fresh = [] if news is None else news.events
        if self._keeps_last:
            watched.events = fresh or watched.events
        else:
            watched.events += fresh
        # A job that is gone was deleted, and has no event that says so.
        watched.is_over = news is None or news.status in FINISHED
        if fresh or watched.is_over:
            _wake(watched)


def _wake(watched: _Watched[E]) -> None:
    for seat in watched.seats:
        with suppress(RuntimeError):  # the loop of a reader that was given up is closed
            seat.loop.call_soon_threadsafe(seat.woken.set)
