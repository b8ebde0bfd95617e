"""The audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("id", sa.String(80), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("by", sa.String(80), nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("object", sa.String(80), nullable=False),
        sa.Column("request_id", sa.String(64)),
        sa.Column("address", sa.String(64)),
        sa.PrimaryKeyConstraint("tenant", "id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_tenant_at_id"), "audit", ["tenant", "at", "id"])
    op.create_index(op.f("ix_audit_at"), "audit", ["at"])
