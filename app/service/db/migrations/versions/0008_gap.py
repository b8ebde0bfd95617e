"""How sure the answer of a plan is, beside it, and an index of when jobs ended, for whoever counts them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("plans", sa.Column("gap", sa.Float))
    op.create_index(op.f("ix_jobs_finished_at"), "jobs", ["finished_at"])
