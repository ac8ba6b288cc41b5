"""Links with which one decision can be made without signing in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "approval_links",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("incident", sa.Integer(), nullable=False),
        sa.Column("command", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("person", sa.Text()),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True)),
        sa.Column("used_by", sa.Text()),
        sa.Column("used_from", sa.Text()),
        sa.ForeignKeyConstraint(
            ["run_id", "incident", "command"],
            ["commands.run_id", "commands.incident", "commands.number"],
            name="approval_links_commands_fkey",
        ),
        sa.PrimaryKeyConstraint("run_id", "id", name="approval_links_pkey"),
    )
