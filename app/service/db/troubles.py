"""What is wrong with a database, told apart by what an operator has to do: start it, make room on its disk, or upgrade its schema."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from app.errors import DatabaseAwayError, DatabaseFullError, SchemaNotCurrentError, UnavailableError
from app.service.db.engine import reading
from app.service.db.migrate import is_current

_SPARE_BYTES = 16 << 20
"""Free bytes on SQLite's disk below which the service should get no more work: a plan of 1,000 strategies writes some 14 MB."""
# PostgreSQL, appendix A: disk_full; undefined_column and undefined_table.
_FULL, _SCHEMA = "53100", frozenset({"42703", "42P01"})
# SQLite's codes of the last kind of error that is not our own fault: the disk is full, or what is written does not reach it.
_SQLITE_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
_SQLITE_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_LOW_BYTE = 0xFF
_PASSING = (OperationalError, InterfaceError, PoolTimeoutError)
"""What SQLAlchemy raises where the database, and not the statement, is at fault."""


def trouble_of(error: SQLAlchemyError) -> UnavailableError | None:
    """The error that a client is told, for one that the database raised; None where the statement itself is at fault."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    state = getattr(cause, "sqlstate", None)
    code = getattr(cause, "sqlite_errorcode", None)
    if state == _FULL or code in _SQLITE_FULL:
        return DatabaseFullError("the disk of the database is full", hint="Make room on it; nothing was lost.")
    if state in _SCHEMA or (isinstance(cause, sqlite3.OperationalError) and str(cause).startswith("no such ")):
        return schema_trouble()
    if code is not None and code & _LOW_BYTE in _SQLITE_BUSY:
        return UnavailableError("the database is busy", hint="Try again in a moment.")
    if not isinstance(error, _PASSING) or code == sqlite3.SQLITE_ERROR:
        return None
    return DatabaseAwayError("the database cannot be reached", hint="Try again in a moment.")


def schema_trouble() -> SchemaNotCurrentError:
    """The error where this release and the database's schema do not belong together."""
    return SchemaNotCurrentError("the schema of the database is not current", hint="Run `meshwright db upgrade`.")


class Readiness:
    """Whether a database can be worked with, asked at most once a second however many ask."""

    def __init__(
        self, engine: Engine, *, spare_bytes: int = _SPARE_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._spare_bytes = spare_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._trouble: UnavailableError | None = None

    def require(self) -> None:
        """Raises what is wrong with the database, if anything is.

        Raises:
            DatabaseAwayError, DatabaseFullError, SchemaNotCurrentError: what the operator has to mend.
        """
        # Under the lock, so that everybody who asks while the database hangs gets the answer of the first.
        with self._lock:
            if self._clock() - self._asked_at >= 1.0:
                self._trouble = self._found()
                self._asked_at = self._clock()
            trouble = self._trouble
        if trouble is not None:
            raise trouble

    def _found(self) -> UnavailableError | None:
        try:
            if not is_current(self._engine):
                return schema_trouble()
            self._require_room()
        except SQLAlchemyError as error:
            if (trouble := trouble_of(error)) is None:
                raise
            return trouble
        except DatabaseFullError as error:
            return error
        return None

    def _require_room(self) -> None:
        if self._engine.dialect.name == "sqlite":
            path = self._engine.url.database
            free = shutil.disk_usage(Path(path).parent).free if path else self._spare_bytes
            if free < self._spare_bytes:
                raise DatabaseFullError(
                    f"the disk of the database has {free >> 20} MiB left", hint="Make room on it; nothing was lost."
                )
            return
        with reading(self._engine) as connection:
            # Some 0.5 MB that do not fit into the memory of this statement, so that the server puts them on its disk for a moment. It
            # writes no log and leaves nothing behind, and fails where the next plan would.
            connection.execute(text("SET LOCAL work_mem = '64kB'"))
            connection.execute(text("SELECT count(*) FROM generate_series(1, 20000)")).scalar_one()
