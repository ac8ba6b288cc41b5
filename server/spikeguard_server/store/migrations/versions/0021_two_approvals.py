"""How many people have to approve a command, and who was the first of two."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "commands", sa.Column("approvals", sa.SmallInteger, server_default="1", nullable=False)
    )
    op.add_column("commands", sa.Column("first_approved_at", sa.DateTime(timezone=True)))
    op.add_column("commands", sa.Column("first_approved_by", sa.Text))
    op.add_column("commands", sa.Column("first_approved_token", sa.BigInteger))
    op.add_column("commands", sa.Column("first_approved_known_by", sa.Text))
    # A release beside this one asks for fewer states, and this index answers it as well.
    op.drop_index("commands_unfinished_idx", "commands")
    op.create_index(
        "commands_unfinished_idx",
        "commands",
        ["run_id", "incident", "number"],
        postgresql_where=sa.text("state IN ('proposed', 'approved_once', 'approved', 'delivered')"),
    )
