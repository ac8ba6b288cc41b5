"""Where each cause shows in what was measured: its steps, a ratio, a rank."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

STEPS = postgresql.ARRAY(sa.BigInteger)


def upgrade() -> None:
    for name, kind in (
        ("cause_first_steps", STEPS),
        ("cause_last_steps", STEPS),
        ("cause_ratios", postgresql.ARRAY(postgresql.DOUBLE_PRECISION)),
        ("cause_ranks", postgresql.ARRAY(sa.Integer)),
    ):
        op.add_column("incidents", sa.Column(name, kind))
