"""The audit log: who did what to which object. An entry is written by the transaction that does it, so neither is there without the other.

Stores call `record` where they change something; whoever acts is known from the request, without being passed through every call.
"""

from __future__ import annotations

import secrets
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import Connection, Engine, delete, insert, select

from app.service.db.engine import now_of, reading
from app.service.db.pages import newest_first
from app.service.db.tables import audit

Action = Literal[
    "plan.create", "plan.cancel", "plan.delete", "calibration.create", "calibration.delete", "key.create", "key.revoke",
    "agent.register", "profiling-job.create", "profiling-job.cancel", "profiling-job.delete",
    "observation.create", "observation.delete",
    "tuning.create", "tuning.cancel", "tuning.delete", "correction.enable", "correction.disable",
]  # fmt: skip
"""What can be done: a kind of object, and what happens to it."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts."""

    by: str
    """Id of the key; `local` where no key is needed, `command line`, or `service` for what nobody asked for."""
    request_id: str | None = None
    address: str | None = None
    """Where the request came from, as the server sees it."""


ACTOR: ContextVar[Actor] = ContextVar("actor")
"""Who acts in this context. A request sets it once its sender is known, for itself and for the threads that work for it."""
_SERVICE = Actor("service")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One thing that was done."""

    id: str
    at: datetime
    by: str
    action: str
    object: str
    request_id: str | None
    address: str | None


def record(connection: Connection, tenant: str, action: Action, object_id: str) -> None:
    """Writes down that this is done to the tenant's object, inside the caller's transaction."""
    actor = ACTOR.get(_SERVICE)
    connection.execute(
        insert(audit).values(
            tenant=tenant, id=f"audit-{secrets.token_hex(10)}", at=now_of(connection), by=actor.by, action=action,
            object=object_id, request_id=actor.request_id, address=actor.address,
        )
    )  # fmt: skip


def page_of_audit(
    engine: Engine, tenant: str, *, limit: int, after: tuple[datetime, str] | None = None
) -> list[AuditEntry]:
    """Up to `limit` entries of a tenant, newest first, beginning after the one written at this time with this id."""
    columns = (audit.c.id, audit.c.at, audit.c.by, audit.c.action, audit.c.object, audit.c.request_id, audit.c.address)
    mine = select(*columns).where(audit.c.tenant == tenant)
    query = newest_first(mine, audit.c.at, audit.c.id, limit=limit, after=after)
    with reading(engine) as connection:
        return [AuditEntry(*row) for row in connection.execute(query)]


def forget_audit(connection: Connection, *, before: datetime) -> int:
    """Number of entries of all tenants older than this moment, which are removed inside the caller's transaction."""
    return connection.execute(delete(audit).where(audit.c.at < before)).rowcount
