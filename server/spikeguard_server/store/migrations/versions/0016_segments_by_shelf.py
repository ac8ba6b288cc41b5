"""Who is on a shelf, found in an index: it is asked while whoever writes waits."""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("segments_shelf_idx", "segments", ["shelf"])
