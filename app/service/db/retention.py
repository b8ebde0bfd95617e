"""Deletes what has been kept for long enough: old finished plans, profiling jobs and tunings, calibrations, observations, audit entries and idempotency keys, and what is too much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Select, Table, delete, select, text, tuple_

from app.service.db.audit import Action, forget_audit, record
from app.service.db.engine import now_of, reading, writing
from app.service.db.gpu_time import forget_gpu_time
from app.service.db.jobs import FINISHED
from app.service.db.quotas import usage_of
from app.service.db.tables import calibrations, idempotency_keys, jobs, observations, plans, profiling_jobs, tunings

# Short transactions: SQLite's other writers wait for each of them.
_AT_A_TIME = 50
# Any constant that nothing else in the database uses; this one spells "swee".
_ADVISORY_LOCK = 0x73776565


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept; None for as long as nobody deletes them."""

    keys: timedelta
    """Idempotency keys, after their first use."""
    plans: timedelta | None = None
    """Finished plans, after their end."""
    calibrations: timedelta | None = None
    """Calibrations, after they were stored."""
    profiling_jobs: timedelta | None = None
    """Profiling jobs, after their end."""
    tunings: timedelta | None = None
    """Tunings, after their end."""
    observations: timedelta | None = None
    """Observations, after they were stored."""
    stored_bytes: int | None = None
    """Bytes of plans and calibrations of one tenant, above which its oldest finished plans are deleted."""
    audit: timedelta | None = None
    """Entries of the audit log, after they were written."""
    kept_ids: frozenset[str] = frozenset()
    """Plans, calibrations, profiling jobs, tunings and observations that are never deleted."""


@dataclass(frozen=True, slots=True)
class Swept:
    """Numbers of what was deleted."""

    plans: int
    calibrations: int
    profiling_jobs: int
    idempotency_keys: int
    audit_entries: int
    tunings: int = 0
    observations: int = 0
    studies: int = 0
    """Of tunings that are gone; they are kept apart and counted by whoever deletes them."""


NOTHING = Swept(0, 0, 0, 0, 0)


def sweep(engine: Engine, retention: Retention) -> Swept:
    """Deletes what is over its time. Several processes may sweep at once: each row is deleted, and counted, once."""
    _repeated(engine, forget_gpu_time)
    return Swept(
        plans=_old_plans(engine, retention) + _too_much(engine, retention),
        calibrations=_old_stored(engine, retention, calibrations, retention.calibrations, "calibration.delete"),
        observations=_old_stored(engine, retention, observations, retention.observations, "observation.delete"),
        profiling_jobs=_old_ended(engine, retention, profiling_jobs, retention.profiling_jobs, "profiling-job.delete"),
        tunings=_old_ended(engine, retention, tunings, retention.tunings, "tuning.delete"),
        idempotency_keys=_repeated(engine, lambda connection: _old_keys(connection, retention.keys)),
        audit_entries=_old_entries(engine, retention),
    )


def _repeated(engine: Engine, step: Callable[[Connection], int]) -> int:
    """Number of rows that the step deleted, a few in each transaction, until it finds none or another process sweeps."""
    total = 0
    while True:
        with writing(engine) as connection:
            if connection.dialect.name == "postgresql":
                lock = text("SELECT pg_try_advisory_xact_lock(:key)")
                if not connection.execute(lock, {"key": _ADVISORY_LOCK}).scalar_one():
                    return total
            deleted = step(connection)
        total += deleted
        if deleted == 0:
            return total


def _old_plans(engine: Engine, retention: Retention) -> int:
    age = retention.plans
    if age is None:
        return 0

    def step(connection: Connection) -> int:
        old = jobs.c.finished_at < now_of(connection) - age
        query = select(jobs.c.tenant, jobs.c.id).join(plans, _same_plan()).where(_is_finished(retention), old)
        return _delete_plans(connection, _pairs(connection, query))

    return _repeated(engine, step)


def _too_much(engine: Engine, retention: Retention) -> int:
    most = retention.stored_bytes
    if most is None:
        return 0
    with reading(engine) as connection:
        tenants = list(connection.execute(select(plans.c.tenant).distinct()).scalars())
    return sum(_repeated(engine, partial(_shrink, tenant=tenant, most=most, retention=retention)) for tenant in tenants)


def _shrink(connection: Connection, *, tenant: str, most: int, retention: Retention) -> int:
    over = usage_of(connection, tenant).stored_bytes - most
    if over <= 0:
        return 0
    query = (
        select(plans.c.id, plans.c.stored_bytes)
        .join(jobs, _same_plan())
        .where(plans.c.tenant == tenant, _is_finished(retention))
        .order_by(jobs.c.finished_at)
        .limit(_AT_A_TIME)
    )
    chosen: list[tuple[str, str]] = []
    for row in connection.execute(query):
        if over <= 0:
            break
        chosen.append((tenant, row.id))
        over -= row.stored_bytes
    return _delete_plans(connection, chosen)


def _pairs(connection: Connection, query: Select[Any]) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in connection.execute(query.limit(_AT_A_TIME))]


def _same_plan() -> ColumnElement[bool]:
    return (jobs.c.tenant == plans.c.tenant) & (jobs.c.id == plans.c.id)


def _is_finished(retention: Retention) -> ColumnElement[bool]:
    return jobs.c.status.in_(FINISHED) & jobs.c.id.not_in(retention.kept_ids)


def _delete_plans(connection: Connection, found: Sequence[tuple[str, str]]) -> int:
    for tenant, plan_id in found:
        record(connection, tenant, "plan.delete", plan_id)
    # The rows of the plan, its ranks, events and idempotency keys go with the job.
    return connection.execute(delete(jobs).where(tuple_(jobs.c.tenant, jobs.c.id).in_(found))).rowcount


def _old_stored(engine: Engine, retention: Retention, table: Table, age: timedelta | None, action: Action) -> int:
    """Calibrations or observations that were stored long ago."""
    return _old(engine, retention, table, age, action, lambda before: table.c.created_at < before)


def _old_ended(engine: Engine, retention: Retention, table: Table, age: timedelta | None, action: Action) -> int:
    """Profiling jobs or tunings that ended long ago."""
    # Nothing begins anew that has ended, so that what is found here still has ended when it is deleted.
    ended = table.c.status.in_(FINISHED)
    return _old(engine, retention, table, age, action, lambda before: ended & (table.c.finished_at < before))


def _old(
    engine: Engine,
    retention: Retention,
    table: Table,
    age: timedelta | None,
    action: Action,
    is_old: Callable[[datetime], ColumnElement[bool]],
) -> int:
    if age is None:
        return 0

    def step(connection: Connection) -> int:
        c, old = table.c, is_old(now_of(connection) - age)
        found = _pairs(connection, select(c.tenant, c.id).where(old, c.id.not_in(retention.kept_ids)))
        for tenant, row_id in found:
            record(connection, tenant, action, row_id)
        return connection.execute(delete(table).where(tuple_(c.tenant, c.id).in_(found))).rowcount

    return _repeated(engine, step)


def _old_entries(engine: Engine, retention: Retention) -> int:
    age = retention.audit
    if age is None:
        return 0
    with writing(engine) as connection:
        return forget_audit(connection, before=now_of(connection) - age)


def _old_keys(connection: Connection, age: timedelta) -> int:
    table = idempotency_keys.c
    old = table.created_at < now_of(connection) - age
    found = _pairs(connection, select(table.tenant, table.key).where(old))
    return connection.execute(delete(idempotency_keys).where(tuple_(table.tenant, table.key).in_(found))).rowcount
