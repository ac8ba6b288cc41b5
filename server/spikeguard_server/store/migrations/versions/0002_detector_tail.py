"""The detector's state is written now and then; the samples stored since lead on from there."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("detector_states", sa.Column("state_step", sa.BigInteger))
    op.add_column("detector_states", sa.Column("anchor", sa.BigInteger))
    op.add_column("detector_states", sa.Column("failures", sa.Integer))
    op.execute("UPDATE detector_states SET state_step = step, anchor = version, failures = 0")
    for name in ("state_step", "anchor", "failures"):
        op.alter_column("detector_states", name, nullable=False)
