"""The whole schema of the first release.

Until then it is `store/tables/schema.sql`. The release puts a copy beside this file, which never
changes: a migration that read what goes on changing would make another database with every release.
What changes after a release is a migration of its own behind this one.

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
    store = Path(__file__).parents[2]
    op.execute((store / "tables/schema.sql").read_text())
