"""The database connection: SQLite made safe for several threads and processes, or PostgreSQL by URL.

Both are used through `reading` and `writing`; a writing transaction takes SQLite's write lock when it begins, because one
that reads first and writes later fails at once where another writer was quicker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from cost_models.errors import InvalidInputError, Problem

BUSY_TIMEOUT_MS = 10_000
_POOL_SIZE = 8
_MAX_OVERFLOW = 40  # starlette's thread pool runs 40 requests at a time


def build_engine(url: str) -> Engine:
    """An engine for this URL; the folder of a SQLite file is made.

    Raises:
        InvalidInputError: it is no URL, or of a database whose driver is not there.
    """
    try:
        return _engine_of(url)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        hint = "Such as postgresql://user@host/name, which needs the extra: pip install 'meshwright[postgres]'."
        raise InvalidInputError([Problem("", f"the database URL cannot be used: {error}", hint)]) from error


def _engine_of(url: str) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return create_engine(
            url,
            pool_pre_ping=True,
            pool_size=_POOL_SIZE,
            max_overflow=_MAX_OVERFLOW,
            connect_args={"connect_timeout": 5},
        )
    if parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, pool_size=_POOL_SIZE, max_overflow=_MAX_OVERFLOW)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A connection whose transaction sees one state of the database and writes nothing."""
    with engine.connect().execution_options(meshwright_reads=True) as connection:
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that commits at the end, or rolls back on an error."""
    with engine.begin() as connection:
        yield connection


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver begins no transaction by itself: `_begin_sqlite` does
    for pragma in ("journal_mode=WAL", f"busy_timeout={BUSY_TIMEOUT_MS}", "foreign_keys=ON", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    reads = connection.get_execution_options().get("meshwright_reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
