"""Tunings: plans that are measured on agents, and the trials of each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def _moment(name: str, *, nullable: bool = True) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def upgrade() -> None:
    # As `PackedText` declares it: SQLite keeps bytes in a column of any type.
    packed: type[sa.Text | sa.LargeBinary] = sa.Text if op.get_bind().dialect.name == "sqlite" else sa.LargeBinary
    op.create_table(
        "tunings",
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("id", sa.String(80), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        _moment("created_at", nullable=False),
        _moment("started_at"),
        _moment("finished_at"),
        sa.Column("plan_id", sa.String(80), nullable=False),
        sa.Column("asked", packed, nullable=False),
        sa.Column("backend", sa.String(16), nullable=False),
        sa.Column("gpu", sa.String(64), nullable=False),
        sa.Column("min_gpus", sa.Integer, nullable=False),
        sa.Column("asked_agent_id", sa.String(80)),
        sa.Column("max_trials", sa.Integer, nullable=False),
        sa.Column("budget_s", sa.Float, nullable=False),
        sa.Column("gpu_hours", sa.Float, nullable=False),
        sa.Column("trial_limit_s", sa.Float, nullable=False),
        sa.Column("answer", packed),
        sa.Column("claim", sa.String(80)),
        _moment("claim_until"),
        sa.Column("stopped", sa.Text),
        sa.Column("document", packed),
        sa.Column("error", sa.Text),
        sa.Column("stored_bytes", sa.Integer, nullable=False, server_default="0"),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("body_sha256", sa.String(64)),
        sa.PrimaryKeyConstraint("tenant", "id", name=op.f("pk_tunings")),
        sa.UniqueConstraint("tenant", "idempotency_key", name=op.f("uq_tunings_tenant_idempotency_key")),
    )
    for columns in (("tenant", "stored_bytes"), ("tenant", "status", "created_at"), ("tenant", "created_at", "id")):
        op.create_index(op.f(f"ix_tunings_{'_'.join(columns)}"), "tunings", list(columns))
    op.create_table(
        "tuning_trials",
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("tuning_id", sa.String(80), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("candidate", sa.Integer, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("job", packed, nullable=False),
        sa.Column("expected_s", sa.Float, nullable=False),
        _moment("created_at", nullable=False),
        _moment("started_at"),
        _moment("finished_at"),
        _moment("not_before"),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("agent_id", sa.String(80)),
        sa.Column("instance", sa.String(64)),
        sa.Column("lease", sa.String(80)),
        _moment("lease_until"),
        _moment("lapsed_at"),
        sa.Column("record", packed),
        sa.Column("outcome", sa.String(8)),
        sa.Column("gpu_seconds", sa.Float, nullable=False, server_default="0"),
        sa.Column("told", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "tuning_id", "number", name=op.f("pk_tuning_trials")),
        sa.UniqueConstraint(
            "tenant", "tuning_id", "candidate", name=op.f("uq_tuning_trials_tenant_tuning_id_candidate")
        ),
        sa.UniqueConstraint("tenant", "lease", name=op.f("uq_tuning_trials_tenant_lease")),
        sa.ForeignKeyConstraint(
            ["tenant", "tuning_id"], ["tunings.tenant", "tunings.id"], ondelete="CASCADE",
            name=op.f("fk_tuning_trials_tenant_tuning_id"),
        ),
    )  # fmt: skip
    op.create_index(op.f("ix_tuning_trials_tenant_status"), "tuning_trials", ["tenant", "status"])
