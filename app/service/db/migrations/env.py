"""Alembic's entry point. Migrations run on the connection that `app.service.db.migrate` hands over, never from a file of settings."""

from __future__ import annotations

from alembic import context

from app.service.db.migrate import VERSION_TABLE
from app.service.db.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
