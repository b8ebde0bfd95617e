"""Profiling jobs: measurements that a tenant asks of its agents. `profiling_leases` gives them out.

They have a table of their own beside the jobs of the workers, because agents have no database: whatever they do comes over HTTP, names
the lease that it is done under, and may come twice.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, Row, Select, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from app.errors import NotFoundError, TooManyJobsError, WorkerLostError, problem_document
from app.service.db.audit import record
from app.service.db.engine import now_of, reading, writing
from app.service.db.jobs import FINISHED, Status
from app.service.db.pages import newest_first
from app.service.db.quotas import NO_QUOTAS, Quotas, one_at_a_time, require_room, require_room_for_profiling_job
from app.service.db.tables import agents, profiling_jobs
from cost_models.errors import InvalidInputError, Problem

MAX_ATTEMPTS = 3
"""How often a job is given out whose agents keep falling silent. One more than a worker gets: nodes are preempted, networks break."""
IN_TOUCH_S = 60.0
"""Seconds after which an agent that was not heard of is no longer counted on; it asks every few seconds."""
_LEAST_BYTES = 256
"""What the smallest measurement takes at rest."""
_jobs = profiling_jobs.c


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of an agent. Fields that are None leave the choice open."""

    budget_s: float
    agent_id: str | None = None
    gpu: str | None = None
    gpus_per_node: int | None = None
    num_nodes: int | None = None
    framework: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ProfilingJob:
    """A stored profiling job. `error` is a problem document as JSON."""

    id: str
    status: Status
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    wanted: Wanted
    attempts: int
    agent_id: str | None
    lease: str | None
    parts_done: int | None
    calibration_id: str | None
    error: str | None
    agents_in_touch: int
    """Agents that were heard of lately and could take it."""


def time_limit_s(budget_s: float) -> float:
    """Seconds after which a measurement with this budget is ended by force."""
    # The budget covers loading and measuring. What may come on top is a task that overstays, starting the ranks of several nodes,
    # and a compiler's first run.
    return 1.5 * budget_s + 180.0


class ProfilingJobStore:
    """Stored profiling jobs; every call is for one tenant."""

    def __init__(self, engine: Engine, *, lease_s: float, max_queued_jobs: int, quotas: Quotas = NO_QUOTAS) -> None:
        """`lease_s`: seconds without a heartbeat after which an agent counts as silent. `quotas` are those of one tenant."""
        self._engine = engine
        self.lease_s = lease_s
        self._lease = timedelta(seconds=lease_s)
        # When a service comes back after an outage, every lease has run out although all agents live. They are given the time for
        # two more heartbeats before their jobs are taken away.
        self._patience = self._lease / 3
        self._max_queued_jobs = max_queued_jobs
        self._quotas = quotas

    def submit(
        self, tenant: str, wanted: Wanted, *, idempotency_key: str | None = None, body_sha256: str = ""
    ) -> ProfilingJob:
        """The queued job, or the one that this idempotency key has made before.

        Raises:
            InvalidInputError: no registered agent fits, or the idempotency key was used for another body.
            QuotaError: the tenant has no room for another calibration, or for another profiling job.
            TooManyJobsError: the tenant has too many unfinished jobs.
        """
        try:
            job_id = self._submit(tenant, wanted, idempotency_key, body_sha256)
        except IntegrityError:
            # The same key arrived twice at once; the second attempt finds the first one's job.
            job_id = self._submit(tenant, wanted, idempotency_key, body_sha256)
        return self.get(tenant, job_id)

    def _submit(self, tenant: str, wanted: Wanted, idempotency_key: str | None, body_sha256: str) -> str:
        with writing(self._engine) as connection:
            if idempotency_key is not None:
                query = select(profiling_jobs).where(_jobs.tenant == tenant, _jobs.idempotency_key == idempotency_key)
                known = connection.execute(query).first()
                if known is not None:
                    return _same_body(known, body_sha256)
            one_at_a_time(connection, tenant)
            unfinished = select(func.count()).where(_jobs.tenant == tenant, _jobs.status.in_(("queued", "running")))
            count, most = connection.execute(unfinished).scalar_one(), self._max_queued_jobs
            if count >= most:
                raise TooManyJobsError(
                    f"you already have {most} unfinished profiling jobs",
                    hint="Wait for some of them to end, or cancel some.",
                    context={"quota": "unfinished_jobs", "limit": most, "used": count},
                )
            require_room_for_profiling_job(connection, tenant, self._quotas)
            # Refused now, since what a node has measured for minutes is stored however much there is.
            require_room(connection, tenant, self._quotas, added_bytes=_LEAST_BYTES)
            job_id = insert_profiling_job(
                connection, tenant, wanted, idempotency_key=idempotency_key, body_sha256=body_sha256
            )
            # Asked of the row that was just inserted, so that it is the same condition that later gives it out.
            fitting = select(func.count()).select_from(profiling_jobs).join(agents, fits())
            if not connection.execute(fitting.where(_jobs.tenant == tenant, _jobs.id == job_id)).scalar_one():
                raise InvalidInputError([_nobody_fits(connection, tenant, wanted)])
            record(connection, tenant, "profiling-job.create", job_id)
            return job_id

    def get(self, tenant: str, job_id: str) -> ProfilingJob:
        """One job.

        Raises:
            NotFoundError: the tenant has no such job.
        """
        self.look_for_silent(tenant)
        with reading(self._engine) as connection:
            query = _rows(tenant, now=now_of(connection)).where(_jobs.id == job_id)
            row = connection.execute(query).first()
        if row is None:
            raise _unknown(job_id)
        return _job(row)

    def page(
        self, tenant: str, *, limit: int, after: tuple[datetime, str] | None = None, status: Status | None = None
    ) -> list[ProfilingJob]:
        """Up to `limit` jobs, newest first, beginning after the one made at this time with this id."""
        self.look_for_silent(tenant)
        with reading(self._engine) as connection:
            mine = _rows(tenant, now=now_of(connection))
            query = newest_first(mine, _jobs.created_at, _jobs.id, limit=limit, after=after)
            if status is not None:
                query = query.where(_jobs.status == status)
            return [_job(row) for row in connection.execute(query)]

    def remove(self, tenant: str, job_id: str) -> bool:
        """Cancels a job that has not finished (True: it is still there, cancelled), or deletes one that has (False).

        Raises:
            NotFoundError: the tenant has no such job.
        """
        with writing(self._engine) as connection:
            row = connection.execute(_one(tenant, job_id).with_for_update()).first()
            if row is None:
                raise _unknown(job_id)
            if row.status in FINISHED:
                connection.execute(delete(profiling_jobs).where(_jobs.tenant == tenant, _jobs.id == job_id))
                record(connection, tenant, "profiling-job.delete", job_id)
                return False
            # Its agent hears of it with the next heartbeat and ends the measurement.
            change(connection, row, status="cancelled", finished_at=now_of(connection), lease_until=None)
            record(connection, tenant, "profiling-job.cancel", job_id)
            return True

    def add_measured(self, tenant: str, job_id: str, *, agent_id: str, lease: str, calibration_id: str) -> None:
        """Stores a job that has succeeded, unless it is there: the example of the documentation."""
        with writing(self._engine) as connection:
            if connection.execute(_one(tenant, job_id)).first() is None:
                now = now_of(connection)
                insert_profiling_job(
                    connection, tenant, Wanted(60.0, agent_id), id=job_id, status="succeeded", attempts=1,
                    agent_id=agent_id, lease=lease, calibration_id=calibration_id, created_at=now, started_at=now, finished_at=now,
                )  # fmt: skip

    def look_for_silent(self, tenant: str) -> None:
        """Gives up the jobs of agents that have been silent for long enough."""
        with reading(self._engine) as connection:
            over = (_jobs.tenant == tenant) & (_jobs.status == "running") & (_jobs.lease_until < now_of(connection))
            if connection.execute(select(_jobs.id).where(over).limit(1)).first() is None:
                return
        with writing(self._engine) as connection:
            now = now_of(connection)
            over = (_jobs.tenant == tenant) & (_jobs.status == "running") & (_jobs.lease_until < now)
            for row in connection.execute(select(profiling_jobs).where(over).with_for_update(skip_locked=True)).all():
                if row.lapsed_at is None:
                    change(connection, row, lapsed_at=now)
                elif row.lapsed_at <= now - self._patience:
                    _retry_or_fail(connection, row, now=now)


def insert_profiling_job(connection: Connection, tenant: str, wanted: Wanted, **values: Any) -> str:
    """Inserts a queued job, or one with other `values`, inside the caller's transaction, and returns its id."""
    row = {
        "id": f"profiling-{secrets.token_hex(10)}", "status": "queued", "attempts": 0, "created_at": now_of(connection),
        **values,
    }  # fmt: skip
    connection.execute(
        insert(profiling_jobs).values(
            tenant=tenant, budget_s=wanted.budget_s, framework=wanted.framework,
            name=wanted.name, asked_agent_id=wanted.agent_id, asked_gpu=wanted.gpu,
            asked_gpus_per_node=wanted.gpus_per_node, asked_num_nodes=wanted.num_nodes, **row,
        )
    )  # fmt: skip
    return str(row["id"])


def _same_body(known: Row[Any], body_sha256: str) -> str:
    if known.body_sha256 != body_sha256:
        message = "this Idempotency-Key was already used with a different request"
        raise InvalidInputError([Problem("", message, "Send a new key with a new request.", "idempotency-key-reused")])
    return str(known.id)


def fits() -> Any:
    """The condition under which an agent may take a job, for a join of both tables."""
    # An agent without a number of GPUs to a node measures only when it is asked by its id.
    is_meant = or_(
        _jobs.asked_agent_id == agents.c.id, _jobs.asked_agent_id.is_(None) & agents.c.gpus_per_node.is_not(None)
    )
    return (
        (_jobs.tenant == agents.c.tenant)
        & is_meant
        & or_(_jobs.asked_gpu.is_(None), _jobs.asked_gpu == agents.c.gpu)
        & or_(_jobs.asked_gpus_per_node.is_(None), _jobs.asked_gpus_per_node == agents.c.gpus_per_node)
        & or_(_jobs.asked_num_nodes.is_(None), _jobs.asked_num_nodes == agents.c.num_nodes)
    )


def _one(tenant: str, job_id: str) -> Select[Any]:
    return select(profiling_jobs).where(_jobs.tenant == tenant, _jobs.id == job_id)


def change(connection: Connection, row: Row[Any], **values: Any) -> None:
    """Changes columns of a job that the caller's transaction has locked."""
    connection.execute(update(profiling_jobs).where(_jobs.tenant == row.tenant, _jobs.id == row.id).values(**values))


def _retry_or_fail(connection: Connection, row: Row[Any], *, now: datetime) -> None:
    if row.attempts < MAX_ATTEMPTS:
        # The lease stays written down: a result that comes after all is taken while nobody else has begun.
        change(connection, row, status="queued", lease_until=None, lapsed_at=None)
        return
    error = WorkerLostError(
        f"the agents that ran this job fell silent {row.attempts} times",
        hint="Look at the log of `meshwright agent` on the node, and for an out-of-memory kill in its system log.",
    )
    change(
        connection, row, status="failed", finished_at=now, lease_until=None, lapsed_at=None,
        error=json.dumps(problem_document(error)),
    )  # fmt: skip


def _nobody_fits(connection: Connection, tenant: str, wanted: Wanted) -> Problem:
    asked = {"gpu": wanted.gpu, "gpus_per_node": wanted.gpus_per_node, "num_nodes": wanted.num_nodes}
    named = {field: value for field, value in asked.items() if value is not None}
    if wanted.agent_id is not None:
        mine = (agents.c.tenant == tenant) & (agents.c.id == wanted.agent_id)
        agent = connection.execute(select(agents).where(mine)).first()
        if agent is None:
            return Problem("/agent", f"there is no agent {wanted.agent_id}", "GET /v1/agents lists yours.")
        facts = agent._mapping  # noqa: SLF001 - SQLAlchemy's documented name
        field, value = next((field, value) for field, value in named.items() if facts[field] != value)
        has = "does not say it" if facts[field] is None else f"has {facts[field]}"
        return Problem(
            f"/{field}", f"{field} is {value}, but agent {agent.id} {has}", "Leave it out, or ask another agent."
        )
    shape = ", ".join(f"{field} {value}" for field, value in named.items())
    hint = "Start `meshwright agent` on such a node; GET /v1/agents lists those that are registered."
    return Problem("", f"no registered agent has {shape}" if shape else "no agent is registered", hint)


def _unknown(job_id: str) -> NotFoundError:
    return NotFoundError(f"there is no profiling job {job_id}", hint="GET /v1/profiling-jobs lists yours.")


def _rows(tenant: str, *, now: datetime) -> Select[Any]:
    lately = now - timedelta(seconds=IN_TOUCH_S)
    in_touch = (
        select(func.count())
        .select_from(agents)
        .where(fits(), agents.c.last_seen_at >= lately)
        .correlate(profiling_jobs)
        .scalar_subquery()
    )
    return select(*_jobs, in_touch.label("agents_in_touch")).where(_jobs.tenant == tenant)


def _job(r: Row[Any]) -> ProfilingJob:
    wanted = Wanted(
        r.budget_s, r.asked_agent_id, r.asked_gpu, r.asked_gpus_per_node, r.asked_num_nodes, r.framework, r.name
    )
    return ProfilingJob(
        r.id, r.status, r.created_at, r.started_at, r.finished_at, wanted, r.attempts, r.agent_id, r.lease,
        r.parts_done, r.calibration_id, r.error, r.agents_in_touch,
    )  # fmt: skip
