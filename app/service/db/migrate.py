"""Brings a database to the newest schema, and says whether it has it. The migrations are part of the package."""

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
"""Not alembic's default name, which Optuna's storage takes for itself in the same database."""
_MIGRATIONS = Path(__file__).parent / "migrations"
# Two services that start at once take turns with the upgrade. Any constant will do that nothing else in the database uses; this
# one spells "mesh".
_ADVISORY_LOCK = 0x6D657368


def upgrade(engine: Engine, revision: str = "head") -> str:
    """Revision of the schema, to which every missing migration up to `revision` has been applied; by default all."""
    config = _config()
    with writing(engine) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, revision)
        except CommandError as error:
            raise UnavailableError(
                f"the database cannot be upgraded: {error}",
                hint="A newer meshwright has probably written it: use that version, or another database.",
            ) from error
        reached = revision_of(connection)
    assert reached is not None
    return reached


def is_current(engine: Engine) -> bool:
    """Whether the schema is the newest one."""
    with reading(engine) as connection:
        return revision_of(connection) == ScriptDirectory.from_config(_config()).get_current_head()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


def revision_of(connection: Connection) -> str | None:
    """Revision of the schema; None where there is none of ours."""
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
