"""Who is told when nobody answers, and what the shadow would have done."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TIME = sa.DateTime(timezone=True)
COMMAND = ["commands.run_id", "commands.incident", "commands.number"]


def _needed(name: str, kind: object) -> sa.Column[object]:
    return sa.Column(name, kind, nullable=False)  # type: ignore[arg-type]


def _key() -> list[sa.Column[object]]:
    return [
        _needed("run_id", sa.Uuid()),
        sa.Column("incident", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("command", sa.Integer, autoincrement=False, nullable=False),
    ]


def upgrade() -> None:
    op.create_table(
        "escalations",
        *_key(),
        _needed("level", sa.Integer),
        _needed("began_at", TIME),
        sa.Column("next_at", TIME),
        sa.ForeignKeyConstraint(
            ["run_id", "incident", "command"], COMMAND, name="escalations_commands_fkey"
        ),
        sa.PrimaryKeyConstraint("run_id", "incident", "command", name="escalations_pkey"),
    )
    op.create_index(
        "escalations_next_idx",
        "escalations",
        ["next_at"],
        postgresql_where=sa.text("next_at IS NOT NULL"),
    )
    op.create_table(
        "shadow_decisions",
        *_key(),
        _needed("verb", sa.Text),
        _needed("revision", sa.Integer),
        _needed("step", sa.BigInteger),
        _needed("cost_steps", sa.BigInteger),
        _needed("policy_version", sa.Integer),
        _needed("reason", sa.Text),
        _needed("at", TIME),
        sa.ForeignKeyConstraint(
            ["run_id", "incident", "command"], COMMAND, name="shadow_decisions_commands_fkey"
        ),
        sa.PrimaryKeyConstraint("run_id", "incident", "command", name="shadow_decisions_pkey"),
    )
