"""Whose turn it is: which of the queued jobs is started next, and how many start before a given one.

Tenants take turns, so that a hundred jobs of one delay another's only by the one that runs. The next turn is that of the tenant with
the fewest running jobs, then of the one whose last job was started the longest ago. Among one tenant's jobs the higher priority
goes first, then the older one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select, text

from app.service.db.engine import now_of
from app.service.db.tables import jobs

# Any constant that nothing else in the database uses; this one spells "turn".
_ADVISORY_LOCK = 0x7475726E
_RECENT = 50
"""Number of jobs whose time is averaged: enough that one long search does not decide, few enough to follow what is asked today."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A tenant with queued jobs."""

    tenant: str
    queued: int
    running: int
    last_started_at: datetime | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a queued job stands."""

    position: int
    """1 for the job that is started next."""
    start_at: datetime | None
    """When it is expected to start; None while no job has ever ended."""


def next_job(connection: Connection, *, max_running: int | None) -> Row[Any] | None:
    """The queued job to start next, locked; None where none is queued or each tenant has as many running as it may.

    Args:
        connection: a writing transaction.
        max_running: jobs that one tenant may have running at a time; None for any number.
    """
    if connection.dialect.name == "postgresql":
        # Two services that look at the same time would both see a tenant below its limit.
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
    for turn in turns(connection):
        if max_running is None or turn.running < max_running:
            # A row that is locked is just being cancelled; the next look takes what is there then.
            query = _in_order(turn.tenant).limit(1).with_for_update(skip_locked=True)
            row = connection.execute(query).first()
            if row is not None:
                return row
    return None


def turns(connection: Connection) -> list[Turn]:
    """Tenants with queued jobs, in the order of their turns."""
    waiting = (
        select(jobs.c.tenant, func.count().label("queued"))
        .where(jobs.c.status == "queued")
        .group_by(jobs.c.tenant)
        .subquery()
    )
    other = jobs.alias()
    running = (
        select(func.count()).where(other.c.tenant == waiting.c.tenant, other.c.status == "running").scalar_subquery()
    )
    last = select(func.max(other.c.started_at)).where(other.c.tenant == waiting.c.tenant).scalar_subquery()
    found = [Turn(*row) for row in connection.execute(select(waiting.c.tenant, waiting.c.queued, running, last))]
    return sorted(found, key=_order)


def _order(turn: Turn) -> tuple[int, float, str]:
    last_started_s = 0.0 if turn.last_started_at is None else turn.last_started_at.timestamp()
    return turn.running, last_started_s, turn.tenant


def place_of(connection: Connection, tenant: str, job_id: str) -> Place | None:
    """The place of a queued job; None where it is not queued."""
    # Ids alone: a request may carry calibrations of a megabyte.
    order = list(connection.execute(_in_order(tenant).with_only_columns(jobs.c.id)).scalars())
    if job_id not in order:
        return None
    index = order.index(job_id)
    ahead = index + _others_ahead(turns(connection), tenant, rounds=index)
    running = connection.execute(select(func.count()).where(jobs.c.status == "running")).scalar_one()
    mean_s = _mean_run_s(connection)
    # While jobs wait, every worker runs one, so that the number of running jobs is that of workers, whatever machines these are on.
    if mean_s is None:
        return Place(ahead + 1, None)
    return Place(ahead + 1, now_of(connection) + timedelta(seconds=mean_s * (ahead + 1) / max(running, 1)))


def _others_ahead(waiting: Sequence[Turn], tenant: str, *, rounds: int) -> int:
    """Jobs of other tenants that start before the one that its tenant has after `rounds` others of its own."""
    names = [turn.tenant for turn in waiting]
    mine = names.index(tenant)
    return sum(min(turn.queued, rounds + (place < mine)) for place, turn in enumerate(waiting) if turn.tenant != tenant)


def _mean_run_s(connection: Connection) -> float | None:
    query = (
        select(jobs.c.started_at, jobs.c.finished_at)
        .where(jobs.c.status == "succeeded")
        .order_by(jobs.c.created_at.desc())
        .limit(_RECENT)
    )
    took = [(row.finished_at - row.started_at).total_seconds() for row in connection.execute(query)]
    return sum(took) / len(took) if took else None


def _in_order(tenant: str) -> Select[Any]:
    return (
        select(jobs)
        .where(jobs.c.tenant == tenant, jobs.c.status == "queued")
        .order_by(jobs.c.priority.desc(), jobs.c.created_at, jobs.c.id)
    )
