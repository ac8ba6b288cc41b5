"""The tables of policies: of a project, and of a run where a run has its own.

Law: part of the one schema (`tables.metadata`) and of its laws. A row, once written, never changes.
"""

from __future__ import annotations

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql

from spikeguard_server.store.tables.core import Time, _key, _needed, _of, _run, metadata

policies = sql.Table(
    "policies",
    metadata,
    sql.Column("project", sql.Text, primary_key=True),
    _key("version"),  # the highest is in force
    _needed("document", postgresql.JSONB),
    _needed("at", Time),
    _needed("actor", sql.Text),
)

run_policies = sql.Table(
    "run_policies",
    metadata,
    _run(),
    _key("version"),  # the highest is in force
    sql.Column("document", postgresql.JSONB),  # null: the project's again
    _needed("at", Time),
    _needed("actor", sql.Text),
    _of("runs"),
)
