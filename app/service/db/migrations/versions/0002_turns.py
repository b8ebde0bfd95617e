"""Turns of the tenants: a job's priority, and indexes for the next tenant and for its next job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A default of the server, for the rows that are there.
    op.add_column("jobs", sa.Column("priority", sa.Integer, nullable=False, server_default="0"))
    op.create_index(op.f("ix_jobs_tenant_started_at"), "jobs", ["tenant", "started_at"])
    op.create_index(
        op.f("ix_jobs_status_tenant_priority_created_at"), "jobs", ["status", "tenant", "priority", "created_at"]
    )
