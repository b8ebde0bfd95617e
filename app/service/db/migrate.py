"""Brings a database to the newest schema, and says whether it is there. The migrations travel inside the package."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, text

from app.errors import UnavailableError
from app.service.db.engine import reading, writing

VERSION_TABLE = "meshwright_version"
"""Not alembic's default name, which Optuna's storage uses for itself in the same database."""
_MIGRATIONS = Path(__file__).parent / "migrations"
_ADVISORY_LOCK = 0x6D657368  # any constant will do: two processes that upgrade at once take turns


def upgrade(engine: Engine) -> str:
    """Revision of the schema after every missing migration was applied."""
    config = _config()
    with writing(engine) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise UnavailableError(
                f"the database cannot be upgraded: {error}",
                hint="It was probably written by a newer meshwright: use that version, or another database.",
            ) from error
        revision = _current(connection)
    assert revision is not None
    return revision


def is_current(engine: Engine) -> bool:
    """Whether the schema is the newest one."""
    with reading(engine) as connection:
        return _current(connection) == ScriptDirectory.from_config(_config()).get_current_head()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


def _current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
