"""Observations as they are stored now. No release has written any before, so that the table is made anew."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_table("observations")
    # SQLite keeps bytes in a column of any type; the documents are compressed in both.
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    document = sa.Column("document", sa.Text() if is_sqlite else sa.LargeBinary(), nullable=False)
    op.create_table(
        "observations",
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("id", sa.String(80), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("framework", sa.String(40), nullable=False),
        sa.Column("gpu", sa.String(64), nullable=False),
        sa.Column("used", sa.Boolean, nullable=False),
        sa.Column("headline", sa.Text, nullable=False),
        document,
        sa.Column("stored_bytes", sa.Integer, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("tenant", "id", name=op.f("pk_observations")),
    )
    op.create_index(op.f("ix_observations_tenant_created_at_id"), "observations", ["tenant", "created_at", "id"])
    op.create_index(op.f("ix_observations_tenant_stored_bytes"), "observations", ["tenant", "stored_bytes"])
