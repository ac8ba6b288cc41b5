"""The table of tags, by which people find runs.

Invariants: part of the one schema (`tables.metadata`) and of its laws. Beside `runs`, whose rows
change with every message.
"""

from __future__ import annotations

import sqlalchemy as sql

from spikeguard_server.store.tables.core import _of, _run, metadata

run_tags = sql.Table(
    "run_tags",
    metadata,
    _run(),
    sql.Column("tag", sql.Text, primary_key=True),
    _of("runs"),
)
