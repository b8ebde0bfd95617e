"""The database connection: SQLite made safe for several threads and processes, or PostgreSQL, chosen by the URL.

Both are used through `reading` and `writing`. A writing transaction takes SQLite's write lock when it begins, because one that
reads first and writes later fails at once if another writer was quicker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, func, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from cost_models.errors import InvalidInputError, Problem

# The longest write, a plan with all its ranks, takes milliseconds. Who waits ten seconds waits for a disk that hangs.
BUSY_TIMEOUT_MS = 10_000
"""Milliseconds for which a writer waits for SQLite's lock before it gives up."""
_POOL_SIZE = 8
# Starlette's thread pool runs 40 requests at a time, and each holds at most one connection.
_MAX_OVERFLOW = 40


def build_engine(url: str | URL, *, silence_s: float | None = None, makes_file: bool = True) -> Engine:
    """An engine for this URL. The folder of a SQLite file is created, unless nothing may be.

    Args:
        url: where the database is.
        silence_s: seconds that PostgreSQL may take to say something and, for four fifths of them, to run a statement; None where
            statements may take as long as they like, as those of an upgrade or a backup.
        makes_file: whether a SQLite file that does not exist is made, when something first connects.

    Raises:
        InvalidInputError: this is not a database URL, the driver of that database is not installed, or there is no such SQLite
            file and none may be made.
    """
    try:
        return _engine_of(url, silence_s=silence_s, makes_file=makes_file)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        hint = "Write it like postgresql://user@host/name, which needs an extra: pip install 'meshwright[postgres]'."
        raise InvalidInputError([Problem("", f"the database URL cannot be used: {error}", hint)]) from error


def _engine_of(url: str | URL, *, silence_s: float | None, makes_file: bool) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        engine = create_engine(
            url,
            # A connection that the server or a firewall closed in the meantime is replaced instead of failing a request.
            pool_pre_ping=True,
            pool_size=_POOL_SIZE,
            max_overflow=_MAX_OVERFLOW,
            connect_args={} if silence_s else {"connect_timeout": 5},
        )
        if silence_s is not None:
            # Here, because SQLite does without the driver.
            from app.service.db.patience import Patience

            event.listen(engine, "do_connect", Patience(silence_s).connect)
        return engine
    if parsed.database in (None, "", ":memory:") or "uri" in parsed.query:
        hint = "Name a file, such as sqlite:////var/lib/meshwright/meshwright.db."
        raise InvalidInputError(
            [Problem("", "the database URL names no file; SQLite in memory is one thread's own", hint)]
        )
    assert parsed.database is not None
    file = Path(parsed.database)
    if not makes_file and not file.exists():
        hint = (
            "Check --db, MESHWRIGHT_DATABASE_URL and MESHWRIGHT_DATA_DIR. `meshwright db upgrade` makes a new storage."
        )
        raise InvalidInputError([Problem("", f"there is no file {file.absolute()}", hint)])
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    engine = create_engine(url, pool_size=_POOL_SIZE, max_overflow=_MAX_OVERFLOW)
    event.listen(engine, "do_connect", lambda *_: keep_private(file))
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def keep_private(file: Path) -> None:
    """Makes a file of SQLite its owner's alone: it holds what a company plans to train on which machines."""
    # Made before SQLite does, which would follow the umask. SQLite gives the files beside it, `-wal` and `-shm`, the permissions of
    # this one (sqlite.org/src, os_unix.c, findCreateFileMode). Never opened here: closing a file ends all locks that the process
    # holds on it, those of SQLite's connections in other threads too (sqlite.org/howtocorrupt.html, 2.2).
    with suppress(OSError):  # it is there already, or SQLite says what is wrong with its place
        os.mknod(file, 0o600)
    for name in (file.name, f"{file.name}-wal", f"{file.name}-shm"):
        # An earlier release has left them readable. Those of somebody else are theirs to change.
        with suppress(OSError):
            file.with_name(name).chmod(0o600)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A connection whose transaction sees one state of the database and writes nothing."""
    options: dict[str, Any] = {"meshwright_reads": True}
    if engine.dialect.name == "postgresql":
        # By default each of its statements sees what others have committed meanwhile: a job that the first one finds queued runs by
        # the second. It costs no message of its own, since the driver says so in its BEGIN.
        options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with engine.connect().execution_options(**options) as connection:
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that commits at the end, or rolls back on an error."""
    with engine.begin() as connection:
        yield connection


def now_of(connection: Connection) -> datetime:
    """The time by the database's clock, in UTC.

    Services and workers on several machines agree on no other: a lease that one of them writes is read by all.
    """
    if connection.dialect.name != "postgresql":
        # SQLite has no clock but that of the machine on which all of its users run.
        return datetime.now(UTC)
    # The time of this call and not that of the transaction's beginning, which waiting for a lock puts into the past.
    moment: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return moment.astimezone(UTC)


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # keeps the driver from beginning transactions itself; `_begin_sqlite` does
    # WAL lets readers go on while one connection writes. With WAL, synchronous=NORMAL risks at most the last transactions when the
    # machine loses power, never the file, and saves an fsync per commit (sqlite.org/pragma.html). SQLite checks foreign keys only
    # on connections that ask for it.
    for pragma in ("journal_mode=WAL", f"busy_timeout={BUSY_TIMEOUT_MS}", "foreign_keys=ON", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    # A deferred transaction that has read and then wants to write fails with SQLITE_BUSY at once, without waiting, if another
    # connection wrote in between: its snapshot is outdated. Taking the lock at the beginning waits for it instead.
    reads = connection.get_execution_options().get("meshwright_reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
