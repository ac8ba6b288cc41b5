"""The whole schema of the first release; its SQL stands beside it, by subject.

Frozen: `store/tables` goes on changing, and a migration that read it would make another database
with every release. What changes after a release is a migration of its own behind this one. What the
columns mean stands in `store/tables`.

Roles are no part of the schema: whoever migrates owns what is made here, and `spikeguard migrate`
grants the server's role what it needs, anew each time (`store/schema.py`, decision 23).
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0001_schema"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(Path(__file__).with_suffix(".sql").read_text())
