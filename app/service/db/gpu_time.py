"""What the trials of a tenant have taken of its GPUs lately. Deleting a tuning gives nothing of it back."""

from __future__ import annotations

import secrets
from datetime import timedelta

from sqlalchemy import Connection, delete, func, insert, select

from app.service.db.engine import now_of
from app.service.db.tables import gpu_time

WITHIN = timedelta(days=30)
"""For how long an attempt counts."""


def spend(connection: Connection, tenant: str, gpu_seconds: float) -> None:
    """Notes what an attempt took, inside the caller's transaction."""
    if gpu_seconds > 0:
        row = {"tenant": tenant, "id": f"gpu-{secrets.token_hex(10)}", "at": now_of(connection)}
        connection.execute(insert(gpu_time).values(**row, gpu_seconds=gpu_seconds))


def gpu_hours_of(connection: Connection, tenant: str) -> float:
    """GPU hours that the tenant's trials took within the last 30 days."""
    mine = (gpu_time.c.tenant == tenant) & (gpu_time.c.at > now_of(connection) - WITHIN)
    seconds = connection.execute(select(func.coalesce(func.sum(gpu_time.c.gpu_seconds), 0.0)).where(mine)).scalar_one()
    return float(seconds) / 3600.0


def forget_gpu_time(connection: Connection) -> int:
    """Deletes what no longer counts, and returns the number of rows."""
    return connection.execute(delete(gpu_time).where(gpu_time.c.at <= now_of(connection) - WITHIN)).rowcount
