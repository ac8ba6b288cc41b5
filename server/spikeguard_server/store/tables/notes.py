"""The table of notes: changes made outside, reported by people or found at an attempt's start.

Invariants: part of the one schema (`tables.metadata`) and of its laws. What was said is never
changed; what became of it is written once.
"""

from __future__ import annotations

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql

from spikeguard_server.store.tables.core import (
    Count,
    Float,
    Time,
    _key,
    _needed,
    _of,
    _run,
    _where,
    metadata,
)

notes = sql.Table(
    "notes",
    metadata,
    _run(),
    _key("number"),  # from 1, within the run
    _needed("source", sql.Text),  # person, attempt
    _needed("at", Time),
    _needed("actor", sql.Text),
    sql.Column("began", sql.Integer),  # the attempt that began with it, of source attempt
    sql.Column("attempt", sql.Integer),  # the last step before it; null: the run had none
    sql.Column("segment", Count),
    _needed("step", Count),
    _needed("text", sql.Text),
    sql.Column("reason", sql.Text),
    _needed("changes", postgresql.JSONB),  # field, before, after
    sql.Column("expected", sql.Text),  # lower, higher, none
    sql.Column("expected_size", Float),  # nats
    _needed("shown", sql.Boolean),  # False: a start that may turn out to have changed nothing
    sql.Column("due_step", Count),  # when it is looked at next; null: never again
    sql.Column("judged_at", Time),
    sql.Column("judged_step", Count),
    sql.Column("effect", Float),  # of the loss above its trend, nats
    sql.Column("effect_error", Float),  # half width of its 95 % interval
    # of a rollback: that kept and undone branch were compared on; null: held against the trend
    sql.Column("effect_batches", sql.Integer),
    sql.Column("unknown", sql.Text),  # why there is no effect to tell
    sql.UniqueConstraint("run_id", "began"),
    _of("runs"),
    sql.Index("notes_due_idx", "run_id", **_where("due_step IS NOT NULL")),
)
