"""Profiling jobs as their agents see them: leased one at a time, kept by heartbeats, and ended under the lease.

Every write of an agent names its lease, which another attempt replaces. An agent that was thought gone can therefore neither end nor
change what another one does now.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

from sqlalchemy import Connection, Engine, Row, Select, select

from app.errors import WrongStateError
from app.service.db.agents import seen
from app.service.db.engine import now_of, writing
from app.service.db.jobs import FINISHED, Status
from app.service.db.profiling_jobs import ProfilingJob, ProfilingJobStore, change, fits, time_limit_s
from app.service.db.tables import agents, profiling_jobs

Outcome = Literal["succeeded", "failed"]
_jobs = profiling_jobs.c
_KEEP = "Upload what was measured with POST /v1/calibrations if it is to be kept."


class ProfilingLeases:
    """Leases of profiling jobs; every call is for one agent of one tenant."""

    def __init__(self, engine: Engine, jobs: ProfilingJobStore) -> None:
        self._engine = engine
        self._jobs = jobs
        self.lease_s = jobs.lease_s
        self._lease = timedelta(seconds=jobs.lease_s)

    def lease(self, tenant: str, agent_id: str, *, instance: str) -> ProfilingJob | None:
        """The oldest queued job that fits the agent, now leased to it; None where there is none.

        An agent whose answer was lost asks again and is given the same lease. `instance` tells its program from an earlier run of it.

        Raises:
            NotFoundError: the tenant has no such agent.
        """
        self._jobs.look_for_silent(tenant)
        with writing(self._engine) as connection:
            seen(connection, tenant, agent_id)
            mine = select(profiling_jobs).where(
                _jobs.tenant == tenant,
                _jobs.agent_id == agent_id,
                _jobs.instance == instance,
                _jobs.status == "running",
            )
            row = connection.execute(mine.with_for_update()).first()
            if row is None:
                row = connection.execute(_next_for(tenant, agent_id)).first()
                if row is None:
                    return None
                now = now_of(connection)
                change(
                    connection, row, status="running", agent_id=agent_id, instance=instance, started_at=now,
                    lease=f"lease-{secrets.token_hex(10)}", lease_until=now + self._lease, lapsed_at=None,
                    attempts=row.attempts + 1, parts_done=None,
                )  # fmt: skip
            job_id = row.id
        return self._jobs.get(tenant, job_id)

    def heartbeat(self, tenant: str, agent_id: str, *, lease: str, parts_done: int | None) -> Status | None:
        """Status of the job under this lease, which is longer now if it runs; None if the lease is no longer the job's.

        Raises:
            NotFoundError: the tenant has no such agent.
        """
        with writing(self._engine) as connection:
            seen(connection, tenant, agent_id)
            row = connection.execute(_under(tenant, agent_id, lease)).first()
            if row is None:
                return None
            if row.status in FINISHED:
                return row.status  # type: ignore[no-any-return]
            # A job that was queued again and that nobody has begun goes on where it is: its agent was only out of reach.
            now = now_of(connection)
            # An agent that is heard of for ever while its measurement hangs would otherwise keep the job for ever.
            last = row.started_at + timedelta(seconds=time_limit_s(row.budget_s)) + self._lease
            if now < last:
                change(
                    connection, row, status="running", lease_until=min(now + self._lease, last), lapsed_at=None,
                    parts_done=parts_done,
                )  # fmt: skip
                return "running"
            return None

    def require(self, tenant: str, agent_id: str, *, lease: str, calibration_id: str) -> None:
        """Nothing, where this calibration may end the job of this lease, or has ended it.

        Raises:
            NotFoundError: the tenant has no such agent.
            WrongStateError: the lease is no longer the job's, or the job has ended otherwise.
        """
        with writing(self._engine) as connection:
            seen(connection, tenant, agent_id)
            _require_end(_required(connection, tenant, agent_id, lease), "succeeded", calibration_id)

    def finish(
        self,
        tenant: str,
        agent_id: str,
        *,
        lease: str,
        status: Outcome,
        calibration_id: str | None = None,
        error: Mapping[str, Any] | None = None,
    ) -> ProfilingJob:
        """The job, ended under this lease. The same result sent again changes nothing.

        A result that comes late is taken as long as the job was not given to another agent.

        Raises:
            NotFoundError: the tenant has no such agent.
            WrongStateError: the lease is no longer the job's, or the job has ended otherwise.
        """
        with writing(self._engine) as connection:
            seen(connection, tenant, agent_id)
            row = _required(connection, tenant, agent_id, lease)
            _require_end(row, status, calibration_id)
            if row.status not in FINISHED:
                change(
                    connection, row, status=status, finished_at=now_of(connection), lease_until=None, lapsed_at=None,
                    calibration_id=calibration_id, error=error and json.dumps(error),
                )  # fmt: skip
            job_id = row.id
        return self._jobs.get(tenant, job_id)

    def give_back(self, tenant: str, agent_id: str, *, lease: str) -> ProfilingJob:
        """The job, queued again because its agent shuts down in good order, which counts as no attempt.

        Raises:
            NotFoundError: the tenant has no such agent.
            WrongStateError: the lease is no longer the job's, or the job has ended.
        """
        with writing(self._engine) as connection:
            seen(connection, tenant, agent_id)
            row = _required(connection, tenant, agent_id, lease)
            if row.status in FINISHED:
                raise WrongStateError(f"profiling job {row.id} has ended: {row.status}", hint=_KEEP)
            if row.status == "running":
                change(
                    connection, row, status="queued", lease=None, lease_until=None, lapsed_at=None,
                    attempts=row.attempts - 1,
                )  # fmt: skip
            job_id = row.id
        return self._jobs.get(tenant, job_id)


def _next_for(tenant: str, agent_id: str) -> Select[Any]:
    return (
        select(profiling_jobs)
        .join(agents, fits())
        .where(_jobs.tenant == tenant, agents.c.id == agent_id, _jobs.status == "queued")
        .order_by(_jobs.created_at, _jobs.id)
        .limit(1)
        # A row that is locked is just being given to another agent, or cancelled.
        .with_for_update(skip_locked=True, of=profiling_jobs)
    )


def _under(tenant: str, agent_id: str, lease: str) -> Select[Any]:
    mine = (_jobs.tenant == tenant) & (_jobs.agent_id == agent_id) & (_jobs.lease == lease)
    return select(profiling_jobs).where(mine).with_for_update()


def _required(connection: Connection, tenant: str, agent_id: str, lease: str) -> Row[Any]:
    row = connection.execute(_under(tenant, agent_id, lease)).first()
    if row is None:
        raise WrongStateError(f"{lease} is no longer the lease of any profiling job", hint=_KEEP)
    return row


def _require_end(row: Row[Any], status: Outcome, calibration_id: str | None) -> None:
    if row.status in FINISHED and (row.status, row.calibration_id) != (status, calibration_id):
        raise WrongStateError(f"profiling job {row.id} has ended: {row.status}", hint=_KEEP)
