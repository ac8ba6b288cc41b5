"""An audit entry says which settings changed, from what to what."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    changes = sa.Column("changes", postgresql.JSONB, nullable=False, server_default="[]")
    op.add_column("audit", changes)
