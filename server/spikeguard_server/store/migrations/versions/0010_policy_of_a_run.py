"""A policy of a run's own, and which of the two a proposal was made by."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "run_policies",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("version", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("document", postgresql.JSONB),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="run_policies_runs_fkey"),
        sa.PrimaryKeyConstraint("run_id", "version", name="run_policies_pkey"),
    )
    for table in ("commands", "command_revisions", "shadow_decisions"):
        op.add_column(
            table,
            sa.Column("policy_scope", sa.Text, nullable=False, server_default="project"),
        )
