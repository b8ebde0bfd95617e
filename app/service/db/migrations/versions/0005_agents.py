"""Agents on GPU nodes, and the measurements that they are asked for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def _moment(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def upgrade() -> None:
    op.create_table(
        "agents",
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("id", sa.String(80), nullable=False),
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("gpu", sa.String(64), nullable=False),
        sa.Column("gpus_per_node", sa.Integer),
        sa.Column("num_nodes", sa.Integer, nullable=False),
        sa.Column("product_version", sa.String(40), nullable=False),
        _moment("created_at"),
        _moment("last_seen_at"),
        sa.PrimaryKeyConstraint("tenant", "id", name=op.f("pk_agents")),
        sa.UniqueConstraint("tenant", "name", name=op.f("uq_agents_tenant_name")),
    )
    op.create_table(
        "profiling_jobs",
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("id", sa.String(80), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        _moment("created_at"),
        _moment("started_at", nullable=True),
        _moment("finished_at", nullable=True),
        sa.Column("budget_s", sa.Float, nullable=False),
        sa.Column("framework", sa.String(40)),
        sa.Column("name", sa.String(80)),
        sa.Column("asked_agent_id", sa.String(80)),
        sa.Column("asked_gpu", sa.String(64)),
        sa.Column("asked_gpus_per_node", sa.Integer),
        sa.Column("asked_num_nodes", sa.Integer),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("agent_id", sa.String(80)),
        sa.Column("instance", sa.String(64)),
        sa.Column("lease", sa.String(80)),
        _moment("lease_until", nullable=True),
        _moment("lapsed_at", nullable=True),
        sa.Column("parts_done", sa.Integer),
        sa.Column("calibration_id", sa.String(80)),
        sa.Column("error", sa.Text),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("body_sha256", sa.String(64)),
        sa.PrimaryKeyConstraint("tenant", "id", name=op.f("pk_profiling_jobs")),
        sa.UniqueConstraint("tenant", "lease", name=op.f("uq_profiling_jobs_tenant_lease")),
        sa.UniqueConstraint("tenant", "idempotency_key", name=op.f("uq_profiling_jobs_tenant_idempotency_key")),
    )
    op.create_index(
        op.f("ix_profiling_jobs_tenant_status_created_at"), "profiling_jobs", ["tenant", "status", "created_at"]
    )
    op.create_index(op.f("ix_profiling_jobs_tenant_created_at_id"), "profiling_jobs", ["tenant", "created_at", "id"])
