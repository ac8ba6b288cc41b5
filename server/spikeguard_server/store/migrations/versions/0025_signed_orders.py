"""The signature that an approval came with, for jobs that take no order without."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("commands", sa.Column("signature", sa.Text))
