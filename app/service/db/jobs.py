"""Job rows, which are claimed, kept alive, finished, cancelled and recovered, and the events that a job leaves behind.

A claim is a lease. A process that dies stops renewing it, and whichever process looks next queues the job again or, after
too many attempts, fails it and says why.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Connection, Engine, func, insert, select, tuple_, update

from app.errors import NotFoundError, WorkerLostError, WrongStateError, problem_document
from app.service.db.audit import record
from app.service.db.engine import now_of, reading, writing
from app.service.db.notices import tell
from app.service.db.tables import job_events, jobs, plans
from app.service.db.turns import Place, next_job, place_of
from app.service.db.workers import all_slots
from planner.search.progress import Progress

Status = Literal["queued", "running", "succeeded", "failed", "cancelled"]
FINISHED = ("succeeded", "failed", "cancelled")
# The second attempt covers a service that was restarted while the job ran, so that the lease of the job lapsed. A job whose service
# disappears twice may well have brought it down, by its need of memory for example, and is not tried again. A worker process that
# dies while its service lives fails its job at once.
MAX_ATTEMPTS = 2
"""How often a job is started whose processes keep disappearing."""


@dataclass(frozen=True, slots=True)
class JobKey:
    """The identity of a job: its tenant and its id."""

    tenant: str
    id: str


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job that this process has claimed and has to run."""

    key: JobKey
    kind: str
    payload: str
    created_at: datetime
    time_limit_s: float


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event in a job's life. `best_s` and `bound_s` are seconds of a training step."""

    seq: int
    type: str
    at: datetime
    evaluated: float | None = None
    best_s: float | None = None
    bound_s: float | None = None


class JobStore:
    """Jobs of all tenants, for the processes that run them."""

    def __init__(
        self, engine: Engine, *, lease_s: float, max_running: int | None = None, keeps_one_free: bool = False
    ) -> None:
        """The jobs of a database.

        Args:
            engine: the database.
            lease_s: seconds without a sign of life after which the process that runs a job counts as gone.
            max_running: jobs that one tenant may have running at a time; None for any number.
            keeps_one_free: whether, where `max_running` is None, a tenant may use all workers of all machines but one.
        """
        self._engine = engine
        self._max_running = max_running
        self._keeps_one_free = keeps_one_free and max_running is None
        self._lease = timedelta(seconds=lease_s)

    @property
    def engine(self) -> Engine:
        """The database that holds the jobs."""
        return self._engine

    def claim(self, owner: str) -> ClaimedJob | None:
        """The queued job whose turn it is, which is now running and leased to `owner`; None if none may be started."""
        with writing(self._engine) as connection:
            row = next_job(connection, max_running=self._limit(connection))
            if row is None:
                return None
            now = now_of(connection)
            connection.execute(
                update(jobs)
                .where(jobs.c.tenant == row.tenant, jobs.c.id == row.id)
                .values(
                    status="running",
                    owner=owner,
                    started_at=now,
                    lease_until=now + self._lease,
                    attempts=row.attempts + 1,
                )
            )
            key = JobKey(row.tenant, row.id)
            append_event(connection, key, "started")
            return ClaimedJob(key, row.kind, row.payload, row.created_at, row.time_limit_s)

    def _limit(self, connection: Connection) -> int | None:
        return max(all_slots(connection, self._lease) - 1, 1) if self._keeps_one_free else self._max_running

    def renew(self, owner: str, keys: Sequence[JobKey]) -> list[JobKey]:
        """Extends the owner's leases on these jobs, once any of them has lost more than a third of its time.

        Returns:
            Those of the jobs that are no longer the owner's: another process was given them, or they have ended.
        """
        pairs = [(key.tenant, key.id) for key in keys]
        mine = (jobs.c.owner == owner) & (jobs.c.status == "running") & tuple_(jobs.c.tenant, jobs.c.id).in_(pairs)
        with reading(self._engine) as connection:
            rows = connection.execute(select(jobs.c.tenant, jobs.c.id, jobs.c.lease_until).where(mine)).all()
            # The runner asks up to four times a second. Only a worn lease costs a write, and two thirds of it are then left for
            # further attempts.
            worn = now_of(connection) + self._lease * 2 / 3
        if any(row.lease_until < worn for row in rows):
            with writing(self._engine) as connection:
                connection.execute(update(jobs).where(mine).values(lease_until=now_of(connection) + self._lease))
        kept = {JobKey(row.tenant, row.id) for row in rows}
        return [key for key in keys if key not in kept]

    def cancel_requests(self, owner: str) -> list[JobKey]:
        """Running jobs of the owner that somebody has asked to cancel."""
        mine = (jobs.c.owner == owner) & (jobs.c.status == "running")
        with reading(self._engine) as connection:
            asked = select(jobs.c.tenant, jobs.c.id).where(mine, jobs.c.cancel_requested)
            return [JobKey(row.tenant, row.id) for row in connection.execute(asked)]

    def has_queued(self) -> bool:
        """Whether any job is waiting to be claimed."""
        with reading(self._engine) as connection:
            return connection.execute(select(jobs.c.id).where(jobs.c.status == "queued").limit(1)).first() is not None

    def finish(
        self,
        job: ClaimedJob,
        *,
        owner: str,
        status: Status,
        error: dict[str, Any] | None = None,
        store: Callable[[Connection], None] | None = None,
    ) -> bool:
        """Ends a job and stores its result in one transaction; False if the job no longer belongs to the owner."""
        with writing(self._engine) as connection:
            # A process that was thought dead may come back with a result after its job was given to another one. The owner in the
            # condition of the update decides, so that each job is ended once.
            if not _end(connection, job.key, owner=owner, status=status, error=error):
                return False
            if store is not None:
                store(connection)
            return True

    def release(self, owner: str, *, but: Sequence[JobKey] = ()) -> None:
        """Queues again the owner's jobs `but` those that it goes on running: it shuts down in good order, or never knew of them."""
        named = tuple_(jobs.c.tenant, jobs.c.id).not_in([(key.tenant, key.id) for key in but])
        with writing(self._engine) as connection:
            # The attempt does not count: a restart of the service says nothing about the job.
            connection.execute(
                update(jobs)
                .where(jobs.c.owner == owner, jobs.c.status == "running", named)
                .values(status="queued", owner=None, lease_until=None, attempts=jobs.c.attempts - 1)
            )
            tell(connection, "queued", "", "")

    def lapsed(self) -> dict[JobKey, datetime]:
        """Running jobs whose lease has run out, with the time at which it did."""
        with reading(self._engine) as connection:
            over = (jobs.c.status == "running") & (jobs.c.lease_until < now_of(connection))
            rows = connection.execute(select(jobs.c.tenant, jobs.c.id, jobs.c.lease_until).where(over))
            return {JobKey(row.tenant, row.id): row.lease_until for row in rows}

    def recover(self, lapsed: Mapping[JobKey, datetime]) -> int:
        """Number of these jobs retried or failed; those whose lease was renewed in the meantime are left alone."""
        if not lapsed:
            return 0
        named = tuple_(jobs.c.tenant, jobs.c.id).in_([(key.tenant, key.id) for key in lapsed])
        with writing(self._engine) as connection:
            query = select(jobs).where(jobs.c.status == "running", named)
            rows = connection.execute(query.with_for_update(skip_locked=True)).all()
            gone = [row for row in rows if row.lease_until == lapsed[JobKey(row.tenant, row.id)]]
            for row in gone:
                _retry_or_fail(connection, row)
            return len(gone)

    def request_cancel(self, key: JobKey) -> Status:
        """The job's status now: `cancelled` if it had not started, else `running` until its worker stops.

        Raises:
            NotFoundError: there is no such job.
            WrongStateError: it has finished.
        """
        with writing(self._engine) as connection:
            row = connection.execute(_one(key).with_for_update()).first()
            if row is None:
                raise NotFoundError(f"no plan {key.id}", hint="GET /v1/plans lists yours.")
            if row.status in FINISHED:
                raise WrongStateError(
                    f"plan {key.id} has already {_PAST[row.status]}", hint="Nothing is left to cancel."
                )
            record(connection, key.tenant, "plan.cancel", key.id)
            if row.status == "queued":
                _end(connection, key, owner=None, status="cancelled")
                return "cancelled"
            connection.execute(
                update(jobs).where(jobs.c.tenant == key.tenant, jobs.c.id == key.id).values(cancel_requested=True)
            )
            tell(connection, "cancel", key.tenant, key.id)
            return "running"

    def status(self, key: JobKey) -> Status | None:
        """Status of the job; None if there is no such job."""
        with reading(self._engine) as connection:
            row = connection.execute(_one(key)).first()
            return None if row is None else row.status

    def place(self, key: JobKey) -> Place | None:
        """Where a queued job stands; None where it is not queued."""
        with reading(self._engine) as connection:
            return place_of(connection, key.tenant, key.id)

    def add_progress(self, key: JobKey, progress: Progress, *, owner: str) -> None:
        """Stores one report of progress as an event, where the job is still the owner's."""
        mine = _one(key).where(jobs.c.owner == owner, jobs.c.status == "running")
        with writing(self._engine) as connection:
            # Locked, so that the job cannot be given to another process between this look and the insert.
            if connection.execute(mine.with_for_update()).first() is not None:
                append_event(connection, key, "progress", progress)

    def events_after(self, key: JobKey, seq: int) -> list[JobEvent]:
        """Events numbered above `seq`, in order."""
        query = (
            select(job_events)
            .where(job_events.c.tenant == key.tenant, job_events.c.job_id == key.id, job_events.c.seq > seq)
            .order_by(job_events.c.seq)
        )
        with reading(self._engine) as connection:
            return [JobEvent(r.seq, r.type, r.at, r.evaluated, r.best_s, r.bound_s) for r in connection.execute(query)]

    def counts(self) -> dict[str, int]:
        """Number of jobs by status."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(jobs.c.status, func.count()).group_by(jobs.c.status))
            return {row[0]: row[1] for row in rows}


_PAST = {"succeeded": "succeeded", "failed": "failed", "cancelled": "been cancelled"}


def insert_job(
    connection: Connection,
    key: JobKey,
    *,
    kind: str,
    payload: str | bytes,
    at: datetime,
    time_limit_s: float,
    priority: int = 0,
) -> None:
    """Inserts a queued job with its first event, inside the caller's transaction; bytes are a payload that is packed already."""
    connection.execute(
        insert(jobs).values(
            tenant=key.tenant, id=key.id, kind=kind, status="queued", payload=payload, created_at=at,
            attempts=0, time_limit_s=time_limit_s, cancel_requested=False, priority=priority,
        )
    )  # fmt: skip
    append_event(connection, key, "queued")
    tell(connection, "queued", key.tenant, key.id)


def raise_priority(connection: Connection, key: JobKey, priority: int) -> None:
    """Gives a job that is still queued this priority if its own is lower."""
    queued = (jobs.c.tenant == key.tenant) & (jobs.c.id == key.id) & (jobs.c.status == "queued")
    connection.execute(update(jobs).where(queued, jobs.c.priority < priority).values(priority=priority))


def unfinished(connection: Connection, tenant: str) -> int:
    """Number of a tenant's jobs that are queued or running."""
    query = select(func.count()).where(jobs.c.tenant == tenant, jobs.c.status.in_(("queued", "running")))
    return connection.execute(query).scalar_one()


def append_event(connection: Connection, key: JobKey, kind: str, progress: Progress | None = None) -> None:
    """Inserts the job's next event, inside the caller's transaction."""
    # Numbered by the insert itself. Clients resume a stream behind the last number they saw, so numbers must neither repeat nor
    # appear out of order.
    last = select(func.coalesce(func.max(job_events.c.seq), 0) + 1).where(
        job_events.c.tenant == key.tenant, job_events.c.job_id == key.id
    )
    connection.execute(
        insert(job_events).values(
            tenant=key.tenant, job_id=key.id, seq=last.scalar_subquery(), type=kind, at=now_of(connection),
            evaluated=progress and progress.evaluated, best_s=progress and progress.best_s,
            bound_s=progress and progress.bound_s,
        )
    )  # fmt: skip


def _one(key: JobKey) -> Any:
    return select(jobs).where(jobs.c.tenant == key.tenant, jobs.c.id == key.id)


def _end(
    connection: Connection,
    key: JobKey,
    *,
    owner: str | None,
    status: Status,
    error: dict[str, Any] | None = None,
) -> bool:
    changed = connection.execute(
        update(jobs)
        .where(jobs.c.tenant == key.tenant, jobs.c.id == key.id, jobs.c.status.not_in(FINISHED))
        .where(jobs.c.owner.is_(None) if owner is None else jobs.c.owner == owner)
        .values(
            status=status,
            finished_at=now_of(connection),
            error=error and json.dumps(error),
            owner=None,
            lease_until=None,
        )
    )
    if changed.rowcount == 0:
        return False
    if status != "succeeded":  # so that the same request, asked again, becomes a new job
        connection.execute(
            update(plans).where(plans.c.tenant == key.tenant, plans.c.id == key.id).values(live_digest=None)
        )
    append_event(connection, key, status)
    tell(connection, "ended", key.tenant, key.id)
    return True


def _retry_or_fail(connection: Connection, row: Any) -> None:
    key = JobKey(row.tenant, row.id)
    if row.cancel_requested:
        _end(connection, key, owner=row.owner, status="cancelled")
    elif row.attempts >= MAX_ATTEMPTS:
        error = WorkerLostError(
            f"the process that ran this job disappeared {row.attempts} times",
            hint="Look for an out-of-memory kill in the server's system log, or ask for a smaller search.",
        )
        _end(connection, key, owner=row.owner, status="failed", error=problem_document(error))
    else:
        again = {"status": "queued", "owner": None, "lease_until": None}
        connection.execute(update(jobs).where(jobs.c.tenant == key.tenant, jobs.c.id == key.id).values(**again))
        append_event(connection, key, "queued")
        tell(connection, "queued", key.tenant, key.id)
