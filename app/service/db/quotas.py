"""What one tenant may have stored: numbers of plans, profiling jobs, tunings and observations, and the bytes of what is kept at rest."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, Table, func, select, text

from app.errors import QuotaError
from app.service.db.gpu_time import gpu_hours_of
from app.service.db.tables import calibrations, observations, plans, profiling_jobs, tunings

_ASK_AGAIN_S = 3600
"""Seconds after which a client may ask again: only deleting makes room, by the tenant or by the service's retention."""
# Any constant that no other pair of advisory locks uses; this one spells "quot".
_ADVISORY_LOCK = 0x71756F74


@dataclass(frozen=True, slots=True)
class Quotas:
    """What one tenant may have; None for any number."""

    max_plans: int | None = None
    max_stored_bytes: int | None = None
    max_profiling_jobs: int | None = None
    max_tunings: int | None = None
    max_observations: int | None = None
    max_gpu_hours: float | None = None
    """That trials of all tunings take within 30 days."""


NO_QUOTAS = Quotas()


@dataclass(frozen=True, slots=True)
class Usage:
    """What one tenant has."""

    num_plans: int
    stored_bytes: int


def usage_of(connection: Connection, tenant: str) -> Usage:
    """What the tenant has stored, finished and unfinished plans alike."""

    def total(table: Table) -> tuple[int, int]:
        query = select(func.count(), func.coalesce(func.sum(table.c.stored_bytes), 0)).where(table.c.tenant == tenant)
        number, size = connection.execute(query).one()
        return int(number), int(size)

    num_plans, plan_bytes = total(plans)
    return Usage(num_plans, plan_bytes + sum(total(table)[1] for table in (calibrations, tunings, observations)))


def one_at_a_time(connection: Connection, tenant: str) -> None:
    """Lets others who are about to store something for this tenant wait until the transaction ends.

    They would all find the same room left, and each would take it.
    """
    # SQLite's writers take turns anyway.
    if connection.dialect.name == "postgresql":
        key = {"kind": _ADVISORY_LOCK, "tenant": tenant}
        connection.execute(text("SELECT pg_advisory_xact_lock(:kind, hashtext(:tenant))"), key)


def require_room(
    connection: Connection, tenant: str, quotas: Quotas, *, added_bytes: int, added_plans: int = 0
) -> None:
    """Refuses what the tenant has no room for.

    Raises:
        QuotaError: a quota would be exceeded.
    """
    if quotas.max_plans is None and quotas.max_stored_bytes is None:
        return
    usage = usage_of(connection, tenant)
    if quotas.max_plans is not None and usage.num_plans + added_plans > quotas.max_plans:
        raise _exceeded(
            "plans", f"you already have {usage.num_plans:,} plans of at most {quotas.max_plans:,}",
            limit=quotas.max_plans, used=usage.num_plans,
        )  # fmt: skip
    if quotas.max_stored_bytes is not None and usage.stored_bytes + added_bytes > quotas.max_stored_bytes:
        raise _exceeded(
            "stored_bytes",
            f"your plans, calibrations, tunings and observations take {usage.stored_bytes:,} of at most {quotas.max_stored_bytes:,} bytes, "
            f"and this needs {added_bytes:,} more",
            limit=quotas.max_stored_bytes, used=usage.stored_bytes,
        )  # fmt: skip


def require_room_for_profiling_job(connection: Connection, tenant: str, quotas: Quotas) -> None:
    """Refuses a further profiling job where the tenant may have no more, ended ones included.

    Raises:
        QuotaError: the quota would be exceeded.
    """
    _require_fewer(connection, tenant, profiling_jobs, quotas.max_profiling_jobs, what="profiling jobs")


def require_room_for_tuning(connection: Connection, tenant: str, quotas: Quotas) -> None:
    """Refuses a further tuning where the tenant may have no more, ended ones included, or its trials took enough of its GPUs.

    Raises:
        QuotaError: the quota would be exceeded.
    """
    _require_fewer(connection, tenant, tunings, quotas.max_tunings, what="tunings")
    if (spent := gpu_hours_spent(connection, tenant, quotas)) is not None:
        raise spent


def gpu_hours_spent(connection: Connection, tenant: str, quotas: Quotas) -> QuotaError | None:
    """Why no trial of the tenant may begin just now; None where one may."""
    most = quotas.max_gpu_hours
    if most is None or (used := gpu_hours_of(connection, tenant)) < most:
        return None
    hint = "Wait until what was taken 30 days ago counts no more, or ask whoever runs the service for more."
    context = {"quota": "gpu_hours", "limit": most, "used": used, "retry_after_s": _ASK_AGAIN_S}
    message = f"the trials of your tunings took {used:.3g} of at most {most:g} GPU hours within 30 days"
    return QuotaError(message, hint=hint, context=context)


def _require_fewer(
    connection: Connection, tenant: str, table: Table, most: int | None, *, what: str, which: str = "that have ended"
) -> None:
    if most is None:
        return
    query = select(func.count()).select_from(table).where(table.c.tenant == tenant)
    used = int(connection.execute(query).scalar_one())
    if used >= most:
        raise _exceeded(
            table.name, f"you already have {used:,} {what} of at most {most:,}",
            limit=most, used=used, what=f"{what} {which}",
        )  # fmt: skip


def require_room_for_observation(connection: Connection, tenant: str, quotas: Quotas, *, added_bytes: int) -> None:
    """Refuses a further observation where the tenant may have no more, or has no room for its bytes.

    Raises:
        QuotaError: a quota would be exceeded.
    """
    most, which = quotas.max_observations, "that you no longer need"
    _require_fewer(connection, tenant, observations, most, what="observations", which=which)
    require_room(connection, tenant, quotas, added_bytes=added_bytes)


def _exceeded(
    quota: str, message: str, *, limit: int, used: int, what: str = "plans or calibrations that you no longer need"
) -> QuotaError:
    hint = f"Delete {what}, or ask whoever runs the service for more."
    context = {"quota": quota, "limit": limit, "used": used, "retry_after_s": _ASK_AGAIN_S}
    return QuotaError(message, hint=hint, context=context)
