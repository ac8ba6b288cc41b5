"""The whole schema of the first release.

Until then it is `store/tables/schema.sql`, and the revision names its text: a database that was
made of another is refused. The release puts a copy beside this file, which never changes: a
migration that read what goes on changing would make another database with every release. What
changes after a release is a migration of its own behind this one.

Roles are no part of the schema: whoever migrates owns what is made here, and `spikeguard migrate`
grants the server's role what it needs, anew each time (`store/schema.py`, decision 23).
"""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from alembic import op

SCHEMA = (Path(__file__).parents[2] / "tables/schema.sql").read_text()
revision = f"0001_{crc32(SCHEMA.encode()):08x}"
down_revision = None


def upgrade() -> None:
    op.execute(SCHEMA)
