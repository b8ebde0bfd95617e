"""Connections to PostgreSQL on which nothing waits for ever.

A server that is frozen, or behind a network that swallows packets, keeps its connections open and says nothing. The server's own time
limit on statements does not help there, so silence is bounded on this side too.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

T = TypeVar("T")
_CONNECT_S = 3
_INTERVAL_S = 0.1


class PatientConnection(psycopg.Connection[Any]):
    """A connection that is given up once the server has been silent for too long."""

    silence_s = math.inf
    """Seconds for which the server may say nothing while it is asked something."""

    def wait(self, gen: PQGen[T], interval: float = _INTERVAL_S, timeout: float | None = None) -> T:
        """The result of an exchange with the server.

        Raises:
            psycopg.OperationalError: the server was silent for too long; the connection is closed.
        """
        if timeout is not None:  # the caller waits for what need not come, such as a notice
            return super().wait(gen, interval, timeout)
        return super().wait(self._bounded(gen), interval)

    def _bounded(self, gen: PQGen[T]) -> PQGen[T]:
        # The driver looks every `interval`, and hands in what the socket is ready for, or nothing.
        heard_at = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                now = time.monotonic()
                if ready:
                    heard_at = now
                elif now - heard_at > self.silence_s:
                    self.close()
                    raise psycopg.OperationalError(f"the database said nothing for {self.silence_s:g} s")
                wanted = gen.send(ready)
        except StopIteration as done:
            result: T = done.value
            return result


class Patience:
    """Opens connections for one engine, each with a bound on its silence and on the time of its statements."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._lock = threading.Lock()
        self._is_away = False
        self._is_tried = False

    def connect(self, _dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]) -> PatientConnection:
        """A new connection (SQLAlchemy's event `do_connect`).

        Raises:
            psycopg.OperationalError: the server cannot be reached.
        """
        with self._lock:
            # While the server is away one caller tries. If all of them did, each would hold a thread for seconds, and those that need
            # no database would wait for a thread.
            if self._is_away and self._is_tried:
                raise psycopg.OperationalError("the database did not answer a moment ago")
            self._is_tried = True
        try:
            connection = self._connect(arguments, options)
        except psycopg.Error:
            self._is_away = True
            raise
        else:
            self._is_away = False
            return connection
        finally:
            self._is_tried = False

    def _connect(self, arguments: list[Any], options: dict[str, Any]) -> PatientConnection:
        # What the URL says goes first. The system's own probes find a machine that is gone; one that is frozen answers them.
        dead_ms = round(self._silence_s * 1000)
        own = {
            "connect_timeout": _CONNECT_S, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3,
            "tcp_user_timeout": dead_ms,
        }  # fmt: skip
        connection = PatientConnection.connect(*arguments, **{**own, **options})
        connection.silence_s = self._silence_s
        # Set by a statement, because poolers such as PgBouncer refuse options at the start. The server stops a slow statement itself
        # before it counts as silent, which saves the connection. A process that is suspended within a transaction gives up its locks.
        limits = {"statement_timeout": dead_ms * 4 // 5, "idle_in_transaction_session_timeout": dead_ms}
        for name, limit_ms in limits.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, str(limit_ms)))
        connection.commit()
        return connection
