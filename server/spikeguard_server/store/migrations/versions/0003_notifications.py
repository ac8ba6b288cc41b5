"""Whom to tell of what, what waits to be told, and what was told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
NAMES = postgresql.ARRAY(sa.Text)
JSON = postgresql.JSONB(astext_type=sa.Text())


def _run() -> sa.Column[object]:
    return sa.Column("run_id", sa.Uuid(), nullable=False)


def _needed(name: str, kind: object) -> sa.Column[object]:
    return sa.Column(name, kind, nullable=False)  # type: ignore[arg-type]


def _number() -> sa.Column[int]:
    return sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False)


def upgrade() -> None:
    _of_projects()
    _of_runs()
    op.create_table(
        "deliveries",
        _run(),
        _number(),
        _needed("at", TIME),
        _needed("project", sa.Text),
        sa.Column("incident", sa.Integer),
        sa.Column("channel", sa.Text),
        _needed("topics", NAMES),
        _needed("result", sa.Text),
        _needed("reason", sa.Text),
        sa.Column("took_ms", postgresql.DOUBLE_PRECISION()),
        sa.PrimaryKeyConstraint("run_id", "id", name="deliveries_pkey"),
    )
    op.create_index("deliveries_project_at_idx", "deliveries", ["project", "at"])


def _of_projects() -> None:
    op.create_table(
        "channels",
        _needed("project", sa.Text),
        _needed("name", sa.Text),
        _needed("kind", sa.Text),
        _needed("target", JSON),
        _needed("rules", JSON),
        _needed("changed_at", TIME),
        _needed("changed_by", sa.Text),
        sa.PrimaryKeyConstraint("project", "name", name="channels_pkey"),
    )
    op.create_table(
        "silences",
        _needed("project", sa.Text),
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("run", sa.Text),
        sa.Column("incident", sa.Integer),
        _needed("begins_at", TIME),
        _needed("ends_at", TIME),
        _needed("reason", sa.Text),
        _needed("created_at", TIME),
        _needed("created_by", sa.Text),
        sa.Column("ended_by", sa.Text),
        sa.PrimaryKeyConstraint("project", "number", name="silences_pkey"),
    )


def _of_runs() -> None:
    op.create_table(
        "notices",
        _run(),
        _number(),
        _needed("at", TIME),
        _needed("topic", sa.Text),
        sa.Column("incident", sa.Integer),
        sa.Column("command", sa.Integer),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="notices_runs_fkey"),
        sa.PrimaryKeyConstraint("run_id", "id", name="notices_pkey"),
    )
    op.create_table(
        "conversations",
        _run(),
        sa.Column("incident", sa.Integer, autoincrement=False, nullable=False),
        _needed("channel", sa.Text),
        _needed("project", sa.Text),
        _needed("pending", NAMES),
        _needed("version", sa.BigInteger),
        sa.Column("due_at", TIME),
        sa.Column("leased_until", TIME),
        _needed("failures", sa.Integer),
        _needed("told", sa.Integer),
        sa.Column("told_at", TIME),
        sa.Column("held_for", sa.Text),
        _needed("over", sa.Boolean),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="conversations_runs_fkey"),
        sa.PrimaryKeyConstraint("run_id", "incident", "channel", name="conversations_pkey"),
    )
    op.create_index(
        "conversations_due_idx",
        "conversations",
        ["due_at"],
        postgresql_where=sa.text("due_at IS NOT NULL"),
    )
    op.create_index(
        "conversations_silent_idx",
        "conversations",
        ["run_id"],
        postgresql_where=sa.text("incident = 0 AND NOT over"),
    )
