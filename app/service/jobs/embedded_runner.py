"""The job runner of one process: one thread per worker process, and one more that keeps the leases.

A service has one in itself, and `meshwright worker` is one without a service. It is complete on one machine, on SQLite or PostgreSQL.
Several processes on one database share the queue, since a claim is a change of the job's row.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

import structlog
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionError

from app.errors import InternalError, problem_document
from app.service.db.job_news import JobNews
from app.service.db.jobs import ClaimedJob, JobEvent, JobKey, JobStore
from app.service.db.notices import Notice, Notices
from app.service.db.workers import WorkerStore
from app.service.jobs.lapsed_leases import LapsedLeases
from app.service.jobs.runner import Kinds
from app.service.jobs.watchers import Watch, Watchers
from app.service.jobs.worker import Done, Failed, JobInput
from app.service.jobs.worker_process import Limits, Outcome, WorkerProcess
from app.service.timestamps import rfc3339
from app.service.traces import Traces
from planner.search.progress import Progress

T = TypeVar("T")
log = structlog.get_logger("meshwright.jobs")
# Where notices arrive, one look of four is enough: it finds only worn leases and what a lost connection kept back.
_SELDOM = 4
# Long enough that a database that is away is not flooded with attempts and the log not with errors.
_RETRY_AFTER_S = 1.0


class EmbeddedRunner:
    """Runs jobs in `pool_size` worker processes that are kept warm."""

    def __init__(
        self,
        store: JobStore,
        kinds: Kinds,
        *,
        workers: WorkerStore,
        pool_size: int,
        grace_s: float,
        patience_s: float = 5.0,
        report_every_s: float = 3.0,
        notices: Notices | None = None,
        keep_every_s: float = 0.25,
        traces: Traces | None = None,
    ) -> None:
        """A runner that has yet to be started.

        Args:
            store: the jobs.
            kinds: how jobs of each kind are run.
            workers: the processes that run jobs on this database.
            pool_size: number of worker processes; 0 where others run the jobs.
            grace_s: seconds that a job which was told to stop may take before its worker process is ended.
            patience_s: seconds for which another process's lease must have run out before its job is taken away.
            report_every_s: seconds between two signs of life.
            notices: what other processes tell at once; without them it is found at the next look.
            keep_every_s: seconds between two looks at leases and at what other processes asked for.
            traces: spans of the jobs that run here.
        """
        self._store = store
        self._traces = traces or Traces(None)
        self._workers = workers
        self._pool_size = pool_size
        self._report_every_s = report_every_s
        self._notices = notices
        self._keep_every_s = keep_every_s
        self._reported: tuple[int, float] = (0, -math.inf)
        self._lapsed = LapsedLeases(store, patience_s=patience_s)
        self._kinds = kinds
        self._grace_s = grace_s
        # Unique even where a container always has the same host name and process id: an owner that comes back must not be taken
        # for the one that died.
        self._owner = f"{socket.gethostname()[:40]}:{os.getpid()}:{secrets.token_hex(4)}"
        self._stopping = threading.Event()
        self._work = threading.Condition()
        # A counter and not a flag: a hint that arrives between a failed claim and the wait that follows would be lost.
        self._hints = 0
        self._lock = threading.Lock()
        self._claiming = threading.Lock()
        self._may_have_strays = False
        self._running: dict[JobKey, WorkerProcess] = {}
        self._ready: set[WorkerProcess] = set()
        self._watchers = Watchers(JobNews(store.engine))
        # Threads and not tasks of the event loop, because each waits on a pipe and on the database for most of its life.
        slots = [threading.Thread(target=self._run_slot, name=f"job-slot-{i}", daemon=True) for i in range(pool_size)]
        self._threads = [*slots, threading.Thread(target=self._keep, name="job-keeper", daemon=True)]
        if notices is not None:
            self._threads.append(threading.Thread(target=self._listen, name="job-listener", daemon=True))

    def start(self) -> None:
        # Daemon threads: a service that is killed in the middle of a claim leaves only a lease behind, which lapses.
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        with self._work:
            self._work.notify_all()
        for thread in self._threads:
            thread.join()
        self._guarded(lambda: self._store.release(self._owner))
        if self._pool_size:
            self._guarded(lambda: self._workers.forget(self._owner))

    def submit(self, key: JobKey) -> None:  # noqa: ARG002 - any free slot takes the oldest job
        with self._work:
            self._hints += 1
            self._work.notify()

    def cancel(self, key: JobKey) -> None:
        with self._lock:
            worker = self._running.get(key)
        # A job that has just ended, or runs in another service, is not here: its row already says what is to become of it.
        if worker is not None:
            worker.cancel()

    async def wait(self, key: JobKey, *, timeout_s: float) -> None:
        await self._watchers.wait(key, timeout_s=timeout_s)

    def watch(self, key: JobKey) -> AbstractContextManager[Watch[JobEvent]]:
        return self._watchers.watch(key)

    def dismiss(self) -> None:
        self._watchers.dismiss()

    def ready_workers(self) -> int:
        with self._lock:
            return sum(worker.is_alive for worker in self._ready)

    def running(self) -> list[JobKey]:
        """Jobs that run in this process, or whose result waits for the database."""
        with self._lock:
            return list(self._running)

    def worker_pids(self) -> list[int]:
        """Process ids of the workers, for whoever measures or ends them."""
        with self._lock:
            return [worker.pid for worker in self._ready if worker.pid is not None]

    def _run_slot(self) -> None:
        worker: WorkerProcess | None = None
        while not self._stopping.is_set():
            if worker is None or not worker.is_alive:
                self._retire(worker)
                worker = self._started()
                continue
            # Read before the claim, so that a job queued during it ends the wait below at once.
            seen = self._hints
            job = self._guarded(partial(self._claimed, worker))
            if job is not None:
                self._run(job, worker)
                continue
            self._await_hint(seen)
        self._retire(worker)

    def _claimed(self, worker: WorkerProcess) -> ClaimedJob | None:
        # With the claim and its note here under one lock, a job that is this process's in the database alone is one whose claim was
        # committed while its answer was lost.
        with self._claiming:
            try:
                job = self._store.claim(self._owner)
            except SQLAlchemyError:
                self._may_have_strays = True
                raise
            if job is not None:
                with self._lock:
                    self._running[job.key] = worker
            return job

    def _release_strays(self) -> None:
        """Queues again what this process claimed without hearing that it did."""
        if self._may_have_strays and self._claiming.acquire(blocking=False):
            try:
                self._store.release(self._owner, but=self.running())
                self._may_have_strays = False
            finally:
                self._claiming.release()

    def _await_hint(self, seen: int) -> None:
        with self._work:
            self._work.wait_for(lambda: self._hints != seen or self._stopping.is_set())

    def _started(self) -> WorkerProcess | None:
        # A process per worker: the search holds Python's global lock, and a job that runs out of memory takes only itself along.
        worker = WorkerProcess({name: kind.task for name, kind in self._kinds.items()})
        if not worker.became_ready(is_abandoned=self._stopping.is_set):
            worker.terminate()
            if not self._stopping.is_set():
                log.error("worker did not start", pid=worker.pid)
                self._stopping.wait(_RETRY_AFTER_S)
            return None
        with self._lock:
            self._ready.add(worker)
        return worker

    def _retire(self, worker: WorkerProcess | None) -> None:
        if worker is not None:
            worker.terminate()
            with self._lock:
                self._ready.discard(worker)

    def _run(self, job: ClaimedJob, worker: WorkerProcess) -> None:
        try:
            with self._traces.job(job) as ended:
                ended(self._outcome(job, worker))
        finally:
            with self._lock:
                del self._running[job.key]

    def _outcome(self, job: ClaimedJob, worker: WorkerProcess) -> str:
        """How the job ended in its worker, which has been stored."""
        outcome = worker.run(
            JobInput(job.key.id, job.kind, job.payload, rfc3339(job.created_at)),
            limits=Limits(job.time_limit_s, self._grace_s),
            on_progress=lambda progress: self._keep_progress(job.key, progress),
            is_abandoned=self._stopping.is_set,
        )
        # An abandoned job keeps its row as it is: `stop` queues it again, for the next service that starts.
        if outcome != "abandoned":
            self._store_outcome(job, outcome)
            self._watchers.notify(job.key)
        return outcome if isinstance(outcome, str) else "succeeded" if isinstance(outcome, Done) else "failed"

    def _store_outcome(self, job: ClaimedJob, outcome: Outcome) -> None:
        """Stores how a job ended, as soon as the database takes it; the job's lease is renewed until then."""
        while not self._stopping.is_set():
            try:
                self._finish(job, outcome)
            except Exception as error:
                if _is_passing(error):
                    # The result is here and may have cost minutes; the database may be away for a moment only.
                    log.error("a result waits for the database", job=job.key.id, error=str(error)[:300])  # noqa: TRY400
                    self._stopping.wait(_RETRY_AFTER_S)
                elif isinstance(outcome, Done):
                    outcome = _refused(job, error)
                else:
                    log.exception("the end of a job could not be stored", job=job.key.id)
                    return
            else:
                return

    def _finish(self, job: ClaimedJob, outcome: Outcome) -> None:
        if isinstance(outcome, Done):
            write = self._kinds[job.kind].write_result
            self._store.finish(
                job, owner=self._owner, status="succeeded", store=lambda c: write(c, job.key, outcome.result)
            )
        elif isinstance(outcome, Failed):
            log.error("job failed", job=job.key.id, code=outcome.error["code"], traceback=outcome.traceback)
            self._store.finish(job, owner=self._owner, status="failed", error=outcome.error)
        else:
            self._store.finish(job, owner=self._owner, status="cancelled")

    def _keep_progress(self, key: JobKey, progress: Progress) -> None:
        self._guarded(lambda: self._store.add_progress(key, progress, owner=self._owner))

    def _keep(self) -> None:
        while not self._stopping.wait(self._until_look_s()):
            self._wake_for_dead_workers()
            self._guarded(self._look_after)
            if self._pool_size:
                self._guarded(self._report)

    def _until_look_s(self) -> float:
        # How soon a request to cancel that another process received, or a job that it queued, is noticed here at the latest. Each
        # look is a few short reads; a lease of 10 s would bear far fewer.
        is_heard = self._notices is not None and self._notices.is_heard
        return self._keep_every_s * (_SELDOM if is_heard else 1)

    def _listen(self) -> None:
        assert self._notices is not None
        self._notices.listen(self._hear, is_over=self._stopping.wait)

    def _hear(self, notice: Notice | None) -> None:
        if notice is None or notice.kind == "queued":
            with self._work:
                self._hints += 1
                # One slot for one job; all of them where nobody knows how many jobs were queued in the meantime.
                self._work.notify(1 if notice else self._pool_size)
        elif notice.kind == "cancel":
            self.cancel(JobKey(notice.tenant, notice.id))
        else:
            self._watchers.notify(JobKey(notice.tenant, notice.id))

    def _wake_for_dead_workers(self) -> None:
        """Lets the slot of an idle worker that was killed start another one; a slot sleeps until it is woken."""
        with self._lock:
            some_died = not all(worker.is_alive for worker in self._ready)
        if some_died:
            with self._work:
                self._hints += 1
                self._work.notify_all()

    def _report(self) -> None:
        """Says how many workers are ready here: at once where their number has changed, else every few seconds."""
        ready, now = self.ready_workers(), time.monotonic()
        if ready != self._reported[0] or now - self._reported[1] >= self._report_every_s:
            self._workers.report(self._owner, size=self._pool_size, ready=ready)
            self._reported = (ready, now)

    def _look_after(self) -> None:
        self._release_strays()
        if running := self.running():
            # A job that was given to somebody else must not go on here: its result could not be stored.
            for key in (*self._store.renew(self._owner, running), *self._store.cancel_requests(self._owner)):
                self.cancel(key)
        if self._lapsed.look():
            log.warning("jobs of a process that is gone were queued again or failed")
        # Jobs that another service queued, and those of a service that was gone, come without a hint of their own.
        if self._store.has_queued():
            with self._work:
                self._hints += 1
                self._work.notify()

    def _guarded(self, step: Callable[[], T]) -> T | None:
        try:
            return step()
        except SQLAlchemyError as error:
            log.error("the database refused a step of the job runner", error=str(error)[:300])  # noqa: TRY400 - repeats
        except Exception:
            # The outermost edge of the job threads, which must outlive a database that is away. A job whose end could not be stored
            # loses its lease and is retried.
            log.exception("a step of the job runner failed")
        self._stopping.wait(_RETRY_AFTER_S)
        return None


def _is_passing(error: Exception) -> bool:
    """Whether the database is likely to take the same statement later: it is away, locked or full, and nothing was wrong with it."""
    return isinstance(error, OperationalError | InterfaceError | NoConnectionError) or (
        isinstance(error, DBAPIError) and error.connection_invalidated
    )


def _refused(job: ClaimedJob, error: Exception) -> Failed:
    """What becomes of a job whose result the database will never take."""
    log.error("a result could not be stored", job=job.key.id, error=str(error)[:300])
    defect = InternalError("the job's result could not be stored", hint="Please report it with the server's log.")
    return Failed(problem_document(defect), "".join(traceback.format_exception(error)))
