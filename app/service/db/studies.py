"""Optuna's studies beside the service's tables, for workers on several machines that measure trials of one study.

Optuna makes and migrates its own tables. They are therefore kept apart from ours: in a schema of their own on PostgreSQL, in a file
of their own on SQLite. Whichever of the two is made first, the other finds nothing in its way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.pool import NullPool

from app.service.db.engine import BUSY_TIMEOUT_MS, reading, writing
from planner.search.bayes import open_storage

SCHEMA = "meshwright_studies"
# Any constant that nothing else in the database uses; this one spells "stud".
_ADVISORY_LOCK = 0x73747564


def has_studies(engine: Engine) -> bool:
    """Whether `study_storage` was ever opened for this database."""
    if engine.dialect.name != "postgresql":
        return _file(engine).exists()
    with reading(engine) as connection:
        query = text("SELECT count(*) FROM pg_namespace WHERE nspname = :name")
        return bool(connection.execute(query, {"name": SCHEMA}).scalar_one())


def study_storage(engine: Engine) -> Any:
    """Optuna's storage that belongs to this database, made if it is not there.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the database is away, or its user may not create a schema.
        RuntimeError: the tables belong to another version of Optuna.
    """
    # Optuna creates its tables without a lock; of two workers that start at once, one would fail. They take ours.
    url = engine.url.render_as_string(hide_password=False)
    if engine.dialect.name != "postgresql":
        file = _file(engine)
        file.touch(mode=0o600)
        with writing(engine):
            return open_storage(f"sqlite:///{file}", engine_options=_options(timeout=BUSY_TIMEOUT_MS / 1000))
    # A lock of the session and no transaction: Optuna's connections are others, which must see the schema.
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _ADVISORY_LOCK})
        try:
            connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
            return open_storage(url, engine_options=_options(options=f"-csearch_path={SCHEMA}"))
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _ADVISORY_LOCK})


def _file(engine: Engine) -> Path:
    path = Path(str(engine.url.database))
    return path.with_name(f"{path.stem}-studies{path.suffix}")


def _options(**connect_args: Any) -> dict[str, Any]:
    # A connection is closed after each question: minutes lie between two trials, and nobody closes a study.
    return {"connect_args": connect_args, "poolclass": NullPool}
