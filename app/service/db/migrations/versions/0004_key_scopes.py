"""Keys with scopes, an end, and their last use."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Keys that are there keep what they could do; none of them could make other keys, so none becomes an administrator's.
    op.add_column("keys", sa.Column("scopes", sa.String(64), nullable=False, server_default="read plan profile"))
    op.add_column("keys", sa.Column("expires_at", sa.DateTime(timezone=True)))
    op.add_column("keys", sa.Column("last_used_at", sa.DateTime(timezone=True)))
    op.create_index(op.f("ix_keys_tenant_created_at_id"), "keys", ["tenant", "created_at", "id"])
