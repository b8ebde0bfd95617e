"""Which processes run jobs on this database, wherever they are: each says every few seconds that it lives.

A service that runs no jobs itself learns from these rows whether anybody does, and a tenant's share is counted over all of them.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import ColumnElement, Connection, Engine, delete, func, insert, select, update

from app.service.db.engine import now_of, reading, writing
from app.service.db.tables import workers

# A row of a process that was killed says nothing any more after one lease. It is kept for a while, for whoever looks why.
_KEPT_LEASES = 60


class WorkerStore:
    """The processes that run jobs."""

    def __init__(self, engine: Engine, *, lease_s: float) -> None:
        """`lease_s`: seconds without a sign of life after which a process counts as gone."""
        self._engine = engine
        self._lease = timedelta(seconds=lease_s)

    def report(self, owner: str, *, size: int, ready: int) -> None:
        """Says that this process lives.

        Args:
            owner: the process, as it stands in the rows of its jobs.
            size: jobs that it may run at a time.
            ready: its worker processes that are running a job or could start one at once.
        """
        with writing(self._engine) as connection:
            now = now_of(connection)
            connection.execute(delete(workers).where(workers.c.seen_at < now - self._lease * _KEPT_LEASES))
            values = {"size": size, "ready": ready, "seen_at": now}
            # No other process has this owner, so that nobody inserts the row in between.
            if connection.execute(update(workers).where(workers.c.owner == owner).values(values)).rowcount == 0:
                connection.execute(insert(workers).values(owner=owner, **values))

    def forget(self, owner: str) -> None:
        """Removes a process that shuts down in good order."""
        with writing(self._engine) as connection:
            connection.execute(delete(workers).where(workers.c.owner == owner))

    def ready(self) -> int:
        """Number of worker processes on any machine that are running a job or could start one at once."""
        with reading(self._engine) as connection:
            total = select(func.coalesce(func.sum(workers.c.ready), 0)).where(_living(connection, self._lease))
            return int(connection.execute(total).scalar_one())


def all_slots(connection: Connection, lease: timedelta) -> int:
    """Number of jobs that the living processes on all machines may run at a time."""
    total = select(func.coalesce(func.sum(workers.c.size), 0)).where(_living(connection, lease))
    return int(connection.execute(total).scalar_one())


def _living(connection: Connection, lease: timedelta) -> ColumnElement[bool]:
    return workers.c.seen_at >= now_of(connection) - lease
