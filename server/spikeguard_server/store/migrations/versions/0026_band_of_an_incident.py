"""The half width of the band that an incident was opened by; before, it was three deviations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("incidents", sa.Column("trend_band", postgresql.DOUBLE_PRECISION()))
    op.execute("UPDATE incidents SET trend_band = 3 WHERE trend_step IS NOT NULL")
