"""The tables of who responds to an incident: who has it now, and what people did and said.

Invariants: part of the one schema (`tables.metadata`) and of its laws. A row of `responses` is
never changed.
"""

from __future__ import annotations

import sqlalchemy as sql

from spikeguard_server.store.tables.core import Time, _key, _needed, _of, _run, _where, metadata

responders = sql.Table(
    "responders",
    metadata,
    _run(),
    _key("incident"),
    sql.Column("acknowledged_at", Time),  # null: nobody looks at it
    sql.Column("acknowledged_by", sql.Text),
    sql.Column("assignee", sql.Text),
    sql.Column("assigned_at", Time),
    sql.Column("assigned_by", sql.Text),
    _of("incidents"),
    sql.Index("responders_assignee_idx", "assignee", **_where("assignee IS NOT NULL")),
)

responses = sql.Table(
    "responses",
    metadata,
    _run(),
    _key("incident"),
    _key("number"),  # from 1, within the incident
    _needed("at", Time),
    _needed("person", sql.Text),
    _needed("action", sql.Text),  # acknowledged, unacknowledged, assigned, unassigned, commented
    sql.Column("assignee", sql.Text),
    sql.Column("text", sql.Text),
    _of("incidents"),
)
