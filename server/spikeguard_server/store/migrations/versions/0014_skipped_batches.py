"""Which batches were left out, by every rank, and what lay in them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "skipped_batches",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("batch_first", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("rank", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("batch_end", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Text(), nullable=False),
        sa.Column("segment", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("command", sa.Text()),
        sa.Column("names", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("names_cut", sa.BigInteger(), nullable=False),
        sa.Column("told_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="skipped_batches_runs_fkey"),
        sa.PrimaryKeyConstraint("run_id", "batch_first", "rank", name="skipped_batches_pkey"),
    )
    op.create_index(
        "skipped_batches_run_id_told_at_batch_first_rank_idx",
        "skipped_batches",
        ["run_id", "told_at", "batch_first", "rank"],
    )
