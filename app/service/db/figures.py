"""Figures of the whole database, for operators: no tenant and no id is in what they become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Column, Connection, Engine, Table, func, select, text

from app.service.db.engine import now_of, reading
from app.service.db.jobs import FINISHED, JobKey
from app.service.db.tables import calibrations, jobs, plans, profiling_jobs, tuning_trials, tunings, workers

# One look counts no more than this: who asks for figures once a minute leaves room for eighty jobs a second.
_MOST_ENDED = 5000


@dataclass(frozen=True, slots=True)
class Figures:
    """What there is at one moment."""

    at: datetime
    jobs_running: int
    queue_age_s: float
    profiling_queue_age_s: float
    workers_ready: int
    """Worker processes of living services and workers that run a job or could start one at once."""
    workers_wanted: int
    """As many as these were told to have."""
    tunings: Mapping[str, int]
    """Numbers by status."""
    trials: Mapping[str, int]
    """Numbers of trials that ended, by how they did."""
    trial_gpu_seconds: float
    storage_bytes: Mapping[str, int]
    """By kind of object, at rest."""
    database_bytes: int


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has ended."""

    key: JobKey
    kind: str
    status: str
    created_at: datetime
    started_at: datetime | None
    """None where it never started."""
    finished_at: datetime
    gap: float | None
    """How far its best plan may be from the bound, as a share; None where it found none or was not asked for one."""


def figures_of(engine: Engine, *, lease_s: float) -> Figures:
    """The figures as of now.

    Args:
        engine: the database.
        lease_s: seconds without a sign of life after which a process that runs jobs counts as gone.
    """
    with reading(engine) as connection:
        now = now_of(connection)
        running = select(func.count()).where(jobs.c.status == "running")
        ready, wanted = connection.execute(
            select(func.coalesce(func.sum(workers.c.ready), 0), func.coalesce(func.sum(workers.c.size), 0)).where(
                workers.c.seen_at >= now - timedelta(seconds=lease_s)
            )
        ).one()
        return Figures(
            at=now,
            jobs_running=connection.execute(running).scalar_one(),
            queue_age_s=_age_s(connection, jobs, now),
            profiling_queue_age_s=_age_s(connection, profiling_jobs, now),
            workers_ready=int(ready),
            workers_wanted=int(wanted),
            tunings=_counts(connection, tunings.c.status),
            trials=_counts(connection, tuning_trials.c.outcome),
            trial_gpu_seconds=float(
                connection.execute(select(func.coalesce(func.sum(tuning_trials.c.gpu_seconds), 0.0))).scalar_one()
            ),
            storage_bytes={
                kind: int(connection.execute(select(func.coalesce(func.sum(table.c.stored_bytes), 0))).scalar_one())
                for kind, table in (("plans", plans), ("calibrations", calibrations), ("tunings", tunings))
            },
            database_bytes=_database_bytes(connection),
        )


def ended_since(engine: Engine, moment: datetime) -> list[EndedJob]:
    """Jobs that have ended after this moment, the first ones first."""
    same = (plans.c.tenant == jobs.c.tenant) & (plans.c.id == jobs.c.id)
    columns = (
        jobs.c.tenant, jobs.c.id, jobs.c.kind, jobs.c.status, jobs.c.created_at, jobs.c.started_at, jobs.c.finished_at, plans.c.gap,
    )  # fmt: skip
    query = (
        select(*columns)
        .outerjoin_from(jobs, plans, same)
        .where(jobs.c.finished_at > moment, jobs.c.status.in_(FINISHED))
        .order_by(jobs.c.finished_at)
        .limit(_MOST_ENDED)
    )
    with reading(engine) as connection:
        rows = connection.execute(query).all()
    return [EndedJob(JobKey(row.tenant, row.id), *row[2:]) for row in rows]


def _counts(connection: Connection, column: Column[Any]) -> dict[str, int]:
    rows = connection.execute(select(column, func.count()).where(column.is_not(None)).group_by(column))
    return {str(value): int(count) for value, count in rows}


def _age_s(connection: Connection, table: Table, now: datetime) -> float:
    oldest: datetime | None = connection.execute(
        select(table.c.created_at).where(table.c.status == "queued").order_by(table.c.created_at).limit(1)
    ).scalar_one_or_none()
    return 0.0 if oldest is None else max((now - oldest).total_seconds(), 0.0)


def _database_bytes(connection: Connection) -> int:
    if connection.dialect.name == "postgresql":
        return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
    pages, size = (connection.execute(text(f"PRAGMA {name}")).scalar_one() for name in ("page_count", "page_size"))
    return int(pages) * int(size)
