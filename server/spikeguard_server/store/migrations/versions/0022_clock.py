"""How the database's clock was last seen, and when it jumped."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "clock",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("seen_at", _TIME, nullable=False),
        sa.Column("ahead_s", sa.Double, nullable=False),
    )
    op.create_table(
        "clock_jumps",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("before", _TIME, nullable=False),
        sa.Column("after", _TIME, nullable=False),
    )
