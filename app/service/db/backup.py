"""A backup of the whole storage in one file, and the way back, the same for SQLite and PostgreSQL.

The file is an SQLite database with the schema that the storage had. So a backup of either database can be restored into either, by
a later release too, and read with any SQLite program; long texts are compressed in it as they are in the storage (zlib). No program
of PostgreSQL is needed on the machine that asks.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, DateTime, Engine, MetaData, Table, event, func, insert, select, text, update
from sqlalchemy.engine import URL

from app.errors import WrongStateError
from app.service.db.engine import build_engine, reading, writing
from app.service.db.migrate import VERSION_TABLE, revision_of, upgrade
from app.service.db.tables import UtcDateTime, jobs
from cost_models.errors import InvalidInputError, Problem

# A row may hold a document of a megabyte, and so many rows are in memory at a time.
_ROWS_AT_A_TIME = 50
# Rows that tell of processes which run now. Out of a backup they would tell of processes that are gone, and a database in which
# there is nothing else is empty.
_OF_PROCESSES = ("workers",)


@dataclass(frozen=True, slots=True)
class Contents:
    """What a backup holds: the revision of its schema, and the number of rows by table."""

    revision: str
    rows: dict[str, int]


def back_up(engine: Engine, file: Path) -> Contents:
    """Writes everything that the storage holds at one moment to a new file, which only its owner can read.

    The service goes on meanwhile. The schema stays as it is, so that a backup can be made before an upgrade.

    Raises:
        InvalidInputError: there is such a file already, it cannot be written, or the database has no tables of ours.
        UnavailableError: a newer release has upgraded the database.
    """
    with _new_file(file) as partial:
        copy = build_engine(_url(partial))
        try:
            with reading(engine) as source:
                revision = revision_of(source)
                if revision is None:
                    hint = "Check --db, MESHWRIGHT_DATABASE_URL and MESHWRIGHT_DATA_DIR."
                    raise InvalidInputError([Problem("", "the database holds nothing of meshwright's", hint)])
                upgrade(copy, revision)
                with writing(copy) as target:
                    rows = _copy_rows(source, target)
        finally:
            copy.dispose()
        _check(partial)
    return Contents(revision, rows)


def restore(engine: Engine, file: Path, *, replace: bool = False) -> Contents:
    """Fills the storage from a backup, in one transaction, after both have been brought to the newest schema.

    Jobs that were running when the backup was made are queued, since nobody runs them; that attempt does not count.

    Args:
        replace: whether everything that the storage holds now may be deleted.

    Raises:
        InvalidInputError: the file is missing, damaged, or no backup of meshwright's.
        UnavailableError: a newer release wrote the backup or has upgraded the database.
        WrongStateError: the storage is not empty, and `replace` was not given.
    """
    with tempfile.TemporaryDirectory(prefix="meshwright-restore-") as folder:
        # The backup itself is never changed: a copy is what is upgraded.
        copy_file = Path(folder) / "copy.db"
        _copy_backup(file, copy_file)
        copy = build_engine(_url(copy_file))
        try:
            revision = upgrade(copy)
            upgrade(engine)
            with copy.connect() as source, writing(engine) as target:
                tables = _tables(source)
                if target.dialect.name == "postgresql":
                    # Until the end nobody else writes, and who reads sees what was there before. SQLite's writers take turns anyway.
                    target.execute(text(f"LOCK TABLE {', '.join(table.name for table in tables)} IN EXCLUSIVE MODE"))
                if not replace and any(target.execute(select(func.count()).select_from(t)).scalar() for t in tables):
                    hint = "Restore into an empty database, or give --replace to delete what this one holds."
                    raise WrongStateError("the database is not empty", hint=hint)
                for table in reversed(tables):
                    target.execute(table.delete())
                rows = _copy_rows(source, target)
                target.execute(
                    update(jobs)
                    .where(jobs.c.status == "running")
                    .values(status="queued", owner=None, lease_until=None, attempts=jobs.c.attempts - 1)
                )
        finally:
            copy.dispose()
    return Contents(revision, rows)


def _url(file: Path) -> URL:
    return URL.create("sqlite", database=str(file))


@contextmanager
def _new_file(file: Path) -> Iterator[Path]:
    """A file beside the wanted one, which takes its name when the block ends well: a backup is there whole or not at all."""
    if file.exists():
        raise InvalidInputError([Problem("", f"{file} already exists", "Give the backup a name of its own.")])
    try:
        # Only the owner may read it (mkstemp's mode is 0600): the keys' digests and all tenants' documents go into it.
        descriptor, name = tempfile.mkstemp(prefix=f"{file.name}.", suffix=".partial", dir=file.parent)
    except OSError as error:
        raise InvalidInputError([Problem("", f"{file} cannot be written: {error.strerror}")]) from error
    os.close(descriptor)
    partial = Path(name)
    try:
        yield partial
        partial.rename(file)
    finally:
        partial.unlink(missing_ok=True)


def _check(file: Path) -> None:
    """Sees to it that a backup is one file on the disk, readable and whole."""
    with closing(sqlite3.connect(file)) as connection:
        # A write-ahead log would be a second file, and a reader would want to write one.
        connection.execute("PRAGMA journal_mode=DELETE")
        _require_whole(connection, file)
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _require_whole(connection: sqlite3.Connection, file: Path) -> None:
    told = connection.execute("PRAGMA integrity_check").fetchall()
    if told != [("ok",)] or connection.execute("PRAGMA foreign_key_check").fetchall():
        raise InvalidInputError([Problem("", f"{file} is damaged: {told[0][0]}", "Use another backup.")])


def _copy_backup(file: Path, copy: Path) -> None:
    if not file.is_file():
        raise InvalidInputError([Problem("", f"there is no file {file}")])
    try:
        with (
            closing(sqlite3.connect(f"file:{quote(str(file.resolve()))}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
            names = {name for (name,) in target.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if VERSION_TABLE in names:
                _require_whole(target, file)
                return
    except sqlite3.DatabaseError as error:
        raise InvalidInputError([Problem("", f"{file} cannot be read as a backup: {error}")]) from error
    hint = "Give a file that `meshwright db backup` made."
    raise InvalidInputError([Problem("", f"{file} is no backup of meshwright's", hint)])


def _tables(connection: Connection) -> list[Table]:
    """Our tables with data as they are in this database, maybe of an older schema; each behind those that its rows refer to."""
    metadata = MetaData()
    event.listen(metadata, "column_reflect", _in_utc)
    metadata.reflect(connection, only=lambda name, _: name not in {VERSION_TABLE, *_OF_PROCESSES})
    return metadata.sorted_tables


def _in_utc(_inspector: Any, _table: Any, column: dict[str, Any]) -> None:
    if isinstance(column["type"], DateTime):
        column["type"] = UtcDateTime()


def _copy_rows(source: Connection, target: Connection) -> dict[str, int]:
    """Number of rows copied, by table. Both have the same schema."""
    # PostgreSQL says which columns hold bytes; an SQLite file keeps compressed texts in columns that were declared as text.
    copied = {}
    for table in _tables(target if target.dialect.name == "postgresql" else source):
        copied[table.name] = 0
        found = source.execute(select(table).execution_options(yield_per=_ROWS_AT_A_TIME))
        for rows in found.mappings().partitions():
            target.execute(insert(table), [dict(row) for row in rows])
            copied[table.name] += len(rows)
    return copied
