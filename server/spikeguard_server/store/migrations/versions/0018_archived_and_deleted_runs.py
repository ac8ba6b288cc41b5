"""Runs that are archived or deleted, and what quotas of new runs count."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("runs", sa.Column("archived_at", TIME))
    op.create_table(
        "new_runs",
        sa.Column("run_id", sa.Uuid, primary_key=True),
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("token_id", sa.BigInteger),
        sa.Column("began_at", TIME, nullable=False),
    )
    op.create_index("new_runs_project_began_at_idx", "new_runs", ["project", "began_at"])
    op.create_index("new_runs_token_id_began_at_idx", "new_runs", ["token_id", "began_at"])
    op.create_table(
        "deleted_runs",
        sa.Column("run_id", sa.Uuid, primary_key=True),
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("deleted_at", TIME, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("incidents", sa.Integer, nullable=False),
        sa.Column("detector_version", sa.BigInteger, nullable=False),
        sa.Column("curves_left", sa.Boolean, nullable=False),
    )
    op.create_index(
        "deleted_runs_curves_left_idx", "deleted_runs", ["run_id"],
        postgresql_where=sa.text("curves_left"),
    )  # fmt: skip
