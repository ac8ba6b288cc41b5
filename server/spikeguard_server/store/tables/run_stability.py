"""The table of what is told of a run's newest thousands of steps; part of the one schema.

Beside `runs`, whose rows change with every message. It holds nothing that the samples do not.
"""

from __future__ import annotations

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql

from spikeguard_server.store.tables.core import HOT, Count, _needed, _of, _run, metadata

run_stability = sql.Table(
    "run_stability",
    metadata,
    _run(),
    _needed("step", Count),  # the run's newest when it was worked out
    sql.Column("stability", postgresql.JSONB),  # null: too few steps
    _needed("trends", postgresql.JSONB),  # a list
    _of("runs"),
    postgresql_with=HOT,
)
