"""Who waits for which job. Requests of the process that ends a job are woken; those of other processes see it at their next look."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future

from app.service.db.jobs import FINISHED, JobKey, JobStore

# Only jobs that another process runs are found by looking, so a quarter of a second delays few and costs the database little.
_LOOK_EVERY_S = 0.25


class Watchers:
    """Waits for jobs, wherever they run."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._futures: dict[JobKey, set[Future[None]]] = {}

    def notify(self, key: JobKey) -> None:
        """Wakes whoever waits for this job, which has ended."""
        with self._lock:
            futures = self._futures.pop(key, set())
        for future in futures:
            future.set_result(None)

    async def wait(self, key: JobKey, *, timeout_s: float) -> None:
        """Returns when the job has ended, or after `timeout_s`."""
        # A future of threads and not of asyncio, because the thread that ends the job is not the one of the event loop.
        future: Future[None] = Future()
        with self._lock:
            self._futures.setdefault(key, set()).add(future)
        try:
            await self._until_done(key, future, end_at=time.monotonic() + timeout_s)
        finally:
            with self._lock:
                if key in self._futures:
                    self._futures[key].discard(future)
                    if not self._futures[key]:
                        del self._futures[key]

    async def _until_done(self, key: JobKey, future: Future[None], *, end_at: float) -> None:
        woken = asyncio.wrap_future(future)
        while (left_s := end_at - time.monotonic()) > 0:
            done, _ = await asyncio.wait([woken], timeout=min(left_s, _LOOK_EVERY_S))
            if done or await asyncio.to_thread(self._store.status, key) in (*FINISHED, None):
                return
