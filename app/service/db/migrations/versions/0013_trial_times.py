"""What a trial measured, beside its record, for whoever watches a tuning or lists many."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tuning_trials", sa.Column("step_time_s", sa.Float))
