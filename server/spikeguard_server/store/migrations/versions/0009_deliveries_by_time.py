"""The delivery log by time, for what is let go of it."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("deliveries_at_idx", "deliveries", ["at"])
