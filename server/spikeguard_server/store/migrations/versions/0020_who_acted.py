"""Who stands behind an audit entry and behind a token."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("audit", sa.Column("actor_kind", sa.Text))
    op.add_column("audit", sa.Column("token", sa.BigInteger))
    op.add_column("audit", sa.Column("session", sa.BigInteger))
    op.add_column("audit", sa.Column("known_by", sa.Text))
    op.add_column("tokens", sa.Column("known_by", sa.Text))
    op.add_column("tokens", sa.Column("made_with", sa.BigInteger))
    op.add_column("tokens", sa.Column("signed_in_at", sa.DateTime(timezone=True)))
