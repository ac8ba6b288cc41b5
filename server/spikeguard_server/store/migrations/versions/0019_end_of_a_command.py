"""Why a command ended that never reached the job, beside the state that it ended in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("commands", sa.Column("end_reason", sa.Text))
