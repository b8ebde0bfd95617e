"""Trials of a best plan's run-time knobs, beside those of plans."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tuning_trials", sa.Column("knobs", sa.Text))
