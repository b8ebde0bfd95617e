"""The first tables: jobs and their events, plans, calibrations, observations, keys, each row with its tenant."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _key(name: str, *, length: int = 80) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=False)


def _moment(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _primary(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=op.f(f"pk_{table}"))


def _reference(table: str, column: str, *, to: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_tenant_{column}")
    return sa.ForeignKeyConstraint(["tenant", column], [f"{to}.tenant", f"{to}.id"], name=name, ondelete="CASCADE")


def _index(table: str, *columns: str) -> None:
    op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, list(columns))


def upgrade() -> None:
    _create_jobs()
    _create_plans()
    _create_measurements()
    op.create_table(
        "keys",
        _key("tenant", length=64),
        _key("id"),
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("secret_sha256", sa.String(64), nullable=False),
        _moment("created_at"),
        _moment("revoked_at", nullable=True),
        _primary("keys", "tenant", "id"),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_keys_secret_sha256")),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        _key("tenant", length=64),
        _key("id"),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        _moment("created_at"),
        _moment("started_at", nullable=True),
        _moment("finished_at", nullable=True),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("time_limit_s", sa.Float, nullable=False),
        sa.Column("owner", sa.String(80)),
        _moment("lease_until", nullable=True),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
        sa.Column("error", sa.Text),
        _primary("jobs", "tenant", "id"),
    )
    _index("jobs", "status", "created_at")
    op.create_table(
        "job_events",
        _key("tenant", length=64),
        _key("job_id"),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("type", sa.String(16), nullable=False),
        _moment("at"),
        sa.Column("evaluated", sa.Float),
        sa.Column("best_s", sa.Float),
        sa.Column("bound_s", sa.Float),
        _primary("job_events", "tenant", "job_id", "seq"),
        _reference("job_events", "job_id", to="jobs"),
    )


def _create_plans() -> None:
    op.create_table(
        "plans",
        _key("tenant", length=64),
        _key("id"),
        _moment("created_at"),
        sa.Column("request_digest", sa.String(80), nullable=False),
        sa.Column("live_digest", sa.String(80)),
        sa.Column("response", sa.Text),
        sa.Column("headline", sa.Text),
        _primary("plans", "tenant", "id"),
        sa.UniqueConstraint("tenant", "live_digest", name=op.f("uq_plans_tenant_live_digest")),
        _reference("plans", "id", to="jobs"),
    )
    _index("plans", "tenant", "created_at", "id")
    op.create_table(
        "ranked_plans",
        _key("tenant", length=64),
        _key("plan_id"),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        _primary("ranked_plans", "tenant", "plan_id", "rank"),
        _reference("ranked_plans", "plan_id", to="plans"),
    )
    op.create_table(
        "idempotency_keys",
        _key("tenant", length=64),
        _key("key", length=255),
        sa.Column("body_sha256", sa.String(64), nullable=False),
        _key("plan_id"),
        _moment("created_at"),
        _primary("idempotency_keys", "tenant", "key"),
        _reference("idempotency_keys", "plan_id", to="plans"),
    )


def _create_measurements() -> None:
    op.create_table(
        "calibrations",
        _key("tenant", length=64),
        _key("id"),
        _moment("created_at"),
        sa.Column("gpu", sa.String(64), nullable=False),
        sa.Column("gpus_per_node", sa.Integer),
        sa.Column("document", sa.Text, nullable=False),
        _primary("calibrations", "tenant", "id"),
    )
    _index("calibrations", "tenant", "gpu", "gpus_per_node", "created_at")
    op.create_table(
        "observations",
        _key("tenant", length=64),
        _key("id"),
        _moment("created_at"),
        sa.Column("plan_id", sa.String(80)),
        sa.Column("rank", sa.Integer),
        sa.Column("document", sa.Text, nullable=False),
        _primary("observations", "tenant", "id"),
    )
    _index("observations", "tenant", "created_at")


def downgrade() -> None:
    for table in (
        "keys", "observations", "calibrations", "idempotency_keys", "ranked_plans", "plans", "job_events", "jobs",
    ):  # fmt: skip
        op.drop_table(table)
