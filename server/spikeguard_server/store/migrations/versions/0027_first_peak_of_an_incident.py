"""The step of the peak before any command; of an incident that had come back already, its peak."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("incidents", sa.Column("first_peak_step", sa.BigInteger()))
