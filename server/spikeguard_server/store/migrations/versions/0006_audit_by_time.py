"""The audit by time, for whoever follows what happens to all runs."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("audit_at_idx", "audit", ["at"])
