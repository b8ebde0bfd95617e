"""Alembic's entry point. Migrations run on the connection that `app.service.db.migrate` hands over; there is no alembic.ini."""

from __future__ import annotations

from alembic import context

from app.service.db.migrate import VERSION_TABLE
from app.service.db.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    # SQLite alters a column by copying its table, which Alembic calls a batch.
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
