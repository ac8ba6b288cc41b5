"""The tables of notifications: channels, the outbox, the delivery log, silences.

Law: part of the one schema (`tables.metadata`) and of its laws. `channels` and `silences` belong to
no run and are written rarely: reference tables. `notices` is the outbox: its rows are written in
the transaction of what they tell of and taken out when they have become a conversation's.
"""

from __future__ import annotations

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql

from spikeguard_server.store.tables.core import (
    Count,
    Names,
    Time,
    _key,
    _needed,
    _of,
    _run,
    audit,
    metadata,
)

channels = sql.Table(
    "channels",
    metadata,
    sql.Column("project", sql.Text, primary_key=True),
    sql.Column("name", sql.Text, primary_key=True),
    _needed("kind", sql.Text),
    _needed("target", postgresql.JSONB),  # addresses and keys: shown to nobody
    _needed("rules", postgresql.JSONB),
    _needed("changed_at", Time),
    _needed("changed_by", sql.Text),
)

silences = sql.Table(
    "silences",
    metadata,
    sql.Column("project", sql.Text, primary_key=True),
    _key("number"),
    sql.Column("run", sql.Text),  # null: every run of the project
    sql.Column("incident", sql.Integer),  # null: every one of the run
    _needed("begins_at", Time),
    _needed("ends_at", Time),
    _needed("reason", sql.Text),
    _needed("created_at", Time),
    _needed("created_by", sql.Text),
    sql.Column("ended_by", sql.Text),  # who took it back before its time
)

notices = sql.Table(
    "notices",
    metadata,
    _run(),
    sql.Column("id", Count, sql.Identity(always=True), primary_key=True),
    _needed("at", Time),
    _needed("topic", sql.Text),
    sql.Column("incident", sql.Integer),  # null: of the run itself
    sql.Column("command", sql.Integer),
    _of("runs"),
)

conversations = sql.Table(
    "conversations",
    metadata,
    _run(),
    _key("incident"),  # 0: of the run itself
    sql.Column("channel", sql.Text, primary_key=True),
    _needed("project", sql.Text),
    _needed("pending", Names),  # topics that wait to be told
    _needed("version", Count),  # counts what was added to `pending`
    sql.Column("due_at", Time),  # null: nothing waits
    sql.Column("leased_until", Time),  # somebody is telling it now
    _needed("failures", sql.Integer),  # in a row
    _needed("given_up", sql.Boolean),  # a message was, and nothing has arrived on its channel since
    _needed("told", sql.Integer),  # messages that arrived
    sql.Column("told_at", Time),
    sql.Column("held_for", sql.Text),  # the reason that was last logged for waiting
    _needed("over", sql.Boolean),
    _of("runs"),
    sql.Index(
        "conversations_due_idx",
        "due_at",
        postgresql_where=sql.text("due_at IS NOT NULL"),
    ),
    sql.Index(
        "conversations_silent_idx",
        "run_id",
        postgresql_where=sql.text("incident = 0 AND NOT over"),
    ),
)

deliveries = sql.Table(
    "deliveries",
    metadata,
    _run(),  # FLEET for a test, which belongs to none
    sql.Column("id", Count, sql.Identity(always=True), primary_key=True),
    _needed("at", Time),
    _needed("project", sql.Text),
    sql.Column("incident", sql.Integer),
    sql.Column("channel", sql.Text),  # null: there was none to tell
    _needed("topics", Names),
    _needed("result", sql.Text),  # sent, held, dropped, failed, given_up
    _needed("reason", sql.Text),
    sql.Column("took_ms", postgresql.DOUBLE_PRECISION),
    sql.Index(None, "project", "at"),
)

approval_links = sql.Table(
    "approval_links",
    metadata,
    _run(),
    sql.Column("id", sql.Text, primary_key=True),
    _needed("incident", sql.Integer),
    _needed("command", sql.Integer),
    _needed("revision", sql.Integer),  # the one that was shown
    _needed("channel", sql.Text),
    sql.Column("person", sql.Text),  # in whose name it decides; null: whoever says so
    _needed("made_at", Time),
    _needed("expires_at", Time),
    sql.Column("used_at", Time),
    sql.Column("used_by", sql.Text),
    sql.Column("used_from", sql.Text),  # address
    _of("commands"),
)

escalations = sql.Table(
    "escalations",
    metadata,
    _run(),
    _key("incident"),
    _key("command"),
    _needed("level", sql.Integer),  # told so far
    _needed("began_at", Time),
    sql.Column("next_at", Time),  # null: answered, or everybody was told
    _of("commands"),
    sql.Index(
        "escalations_next_idx",
        "next_at",
        postgresql_where=sql.text("next_at IS NOT NULL"),
    ),
)

sql.Index("audit_at_idx", audit.c.at)  # for whoever follows what happens to all runs
