"""What trials have taken of GPUs, which outlives their tunings, and which records no agent has sent."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "gpu_time",
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("id", sa.String(80), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("gpu_seconds", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id", name=op.f("pk_gpu_time")),
    )
    op.create_index(op.f("ix_gpu_time_tenant_at"), "gpu_time", ["tenant", "at"])
    op.create_index(op.f("ix_gpu_time_at"), "gpu_time", ["at"])
    op.add_column("tuning_trials", sa.Column("assumed", sa.Boolean, nullable=False, server_default=sa.false()))
