"""The table of follow-ups.

Invariants: part of the one schema (`tables.metadata`) and of its laws. What a post-mortem asks for
has a row a rule, so that writing it again makes no second one.
"""

from __future__ import annotations

import sqlalchemy as sql

from spikeguard_server.store.tables.core import Time, _key, _needed, _of, _run, _where, metadata

followups = sql.Table(
    "followups",
    metadata,
    _run(),
    _key("incident"),
    _key("number"),  # from 1, within the incident
    sql.Column("rule", sql.Text),  # that asks for it; null: a person does
    _needed("text", sql.Text),
    _needed("state", sql.Text),  # open, done, dropped
    sql.Column("owner", sql.Text),  # null: nobody's
    _needed("revision", sql.Integer),  # from 1, one more with every change by people
    _needed("created_at", Time),
    _needed("created_by", sql.Text),
    _needed("changed_at", Time),
    _needed("changed_by", sql.Text),
    sql.UniqueConstraint("run_id", "incident", "rule"),
    _of("incidents"),
    sql.Index("followups_open_idx", "run_id", "created_at", **_where("state = 'open'")),
)
