"""What processes on one PostgreSQL database tell each other at once: a job was queued, is to be cancelled, or has ended.

A notice only saves waiting. Whoever misses one sees the same in the rows at the next look, so that a lost connection loses nothing,
and SQLite, which has no such channel, needs none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import structlog
from sqlalchemy import Connection, Engine, text

Kind = Literal["queued", "cancel", "ended"]
log = structlog.get_logger("meshwright.jobs")
_CHANNEL = "meshwright"
# How late the end of the process is noticed; a notice itself wakes the wait.
_LOOK_EVERY_S = 0.25
# A database that restarts is not flooded with attempts.
_RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Notice:
    """What became of one job."""

    kind: Kind
    tenant: str
    id: str


def tell(connection: Connection, kind: Kind, tenant: str, job_id: str) -> None:
    """Tells every listening process, as soon as the caller's transaction is committed."""
    if connection.dialect.name == "postgresql":
        payload = json.dumps([kind, tenant, job_id])
        connection.execute(text("SELECT pg_notify(:channel, :payload)"), {"channel": _CHANNEL, "payload": payload})


class Notices:
    """Hears what is told on one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_heard = False

    @property
    def is_heard(self) -> bool:
        """Whether a notice would arrive at once."""
        return self._is_heard

    def listen(self, heard: Callable[[Notice | None], None], *, is_over: Callable[[float], bool]) -> None:
        """Hands over every notice until `is_over`; None where some may have been missed. Returns at once on SQLite.

        Args:
            heard: what is called with each notice.
            is_over: waits up to so many seconds, and says whether the process ends.
        """
        if self._engine.dialect.name != "postgresql":
            return
        is_news = True
        while not is_over(0.0):
            try:
                self._listen(heard, is_over=is_over)
            except Exception as error:  # noqa: BLE001 - the outermost edge of a thread that must outlive the database
                if is_news or self._is_heard:
                    log.warning("notices of other processes are not heard for now", error=str(error)[:300])
                is_news = self._is_heard = False
                is_over(_RETRY_AFTER_S)
        self._is_heard = False

    def _listen(self, heard: Callable[[Notice | None], None], *, is_over: Callable[[float], bool]) -> None:
        pooled = self._engine.raw_connection()
        try:
            driver: Any = pooled.driver_connection
            driver.autocommit = True
            driver.execute(f"LISTEN {_CHANNEL}")
            self._is_heard = True
            heard(None)
            while not is_over(0.0):
                for notify in driver.notifies(timeout=_LOOK_EVERY_S):
                    heard(Notice(*json.loads(notify.payload)))
        finally:
            # Closed and not given back: a connection that listens must not be one of those that queries are sent over.
            pooled.invalidate()
