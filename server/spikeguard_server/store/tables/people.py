"""The tables of what people set, say and are told: policies, notes, responses, notifications.

`channels`, `silences`, `policies` and `tokens` belong to no run and are written rarely: reference
tables. `notices` is the outbox: its rows are written in the transaction of what they tell of and
taken out when they have become a conversation's.
"""

from __future__ import annotations

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql

from spikeguard_server.store.tables.core import (
    Count,
    Float,
    Names,
    Time,
    key,
    metadata,
    needed,
    of_run,
)

tokens = sql.Table(
    "tokens",
    metadata,
    sql.Column("id", Count, sql.Identity(always=True), primary_key=True),
    needed("hash", sql.LargeBinary),  # SHA-256 of the secret
    needed("role", sql.Text),
    sql.Column("project", sql.Text),  # null: every project
    sql.Column("run", sql.Text),  # its name in that project, role agent only; null: every run
    sql.Column("name", sql.Text),  # what it is for
    sql.Column("person", sql.Text),  # who stands behind what is done with it
    sql.Column("known_by", sql.Text),  # of a session: KnownBy
    sql.Column("parent", sql.BigInteger),  # the token that a session was opened with
    sql.Column("made_with", sql.BigInteger),  # the grant that stands behind it
    sql.Column("signed_in_at", sql.DateTime(timezone=True)),  # of a session: its person
    sql.Column("subject", sql.Text),  # the account at the identity provider that it stands for
    needed("created_at", Time),
    needed("created_by", sql.Text),
    sql.Column("expires_at", Time),
    sql.Column("revoked_at", Time),
)

policies = sql.Table(
    "policies",
    metadata,
    sql.Column("project", sql.Text, primary_key=True),
    key("version"),  # the highest is in force
    needed("document", postgresql.JSONB),
    needed("at", Time),
    needed("actor", sql.Text),
)

run_policies = of_run(
    "run_policies",
    key("version"),  # the highest is in force
    sql.Column("document", postgresql.JSONB),  # null: the project's again
    needed("at", Time),
    needed("actor", sql.Text),
)

notes = of_run(
    "notes",
    key("number"),  # from 1, within the run
    needed("source", sql.Text),  # person, attempt
    needed("at", Time),
    needed("actor", sql.Text),
    sql.Column("began", sql.Integer),  # the attempt that began with it, of source attempt
    sql.Column("attempt", sql.Integer),  # the last step before it; null: the run had none
    sql.Column("segment", Count),
    needed("step", Count),
    needed("text", sql.Text),
    sql.Column("reason", sql.Text),
    needed("changes", postgresql.JSONB),  # field, before, after
    sql.Column("expected", sql.Text),  # lower, higher, none
    sql.Column("expected_size", Float),  # nats
    needed("shown", sql.Boolean),  # False: a start that may turn out to have changed nothing
    sql.Column("due_step", Count),  # when it is looked at next; null: never again
    sql.Column("judged_at", Time),
    sql.Column("judged_step", Count),
    sql.Column("effect", Float),  # of the loss above its trend, nats
    sql.Column("effect_error", Float),  # half width of its 95 % interval
    # of a rollback: that kept and undone branch were compared on; null: held against the trend
    sql.Column("effect_batches", sql.Integer),
    sql.Column("unknown", sql.Text),  # why there is no effect to tell
)

responders = of_run(
    "responders",
    key("incident"),
    sql.Column("acknowledged_at", Time),  # null: nobody looks at it
    sql.Column("acknowledged_by", sql.Text),
    sql.Column("assignee", sql.Text),
)

responses = of_run(
    "responses",
    key("incident"),
    key("number"),  # from 1, within the incident
    needed("at", Time),
    needed("person", sql.Text),
    needed("action", sql.Text),  # acknowledged, unacknowledged, assigned, unassigned, commented
    sql.Column("assignee", sql.Text),
    sql.Column("text", sql.Text),
)

channels = sql.Table(
    "channels",
    metadata,
    sql.Column("project", sql.Text, primary_key=True),
    sql.Column("name", sql.Text, primary_key=True),
    needed("kind", sql.Text),
    needed("target", postgresql.JSONB),  # addresses and keys: shown to nobody
    needed("rules", postgresql.JSONB),
    needed("changed_at", Time),
    needed("changed_by", sql.Text),
)

silences = sql.Table(
    "silences",
    metadata,
    sql.Column("project", sql.Text, primary_key=True),
    key("number"),
    sql.Column("run", sql.Text),  # null: every run of the project
    sql.Column("incident", sql.Integer),  # null: every one of the run
    needed("begins_at", Time),
    needed("ends_at", Time),
    needed("reason", sql.Text),
    needed("created_at", Time),
    needed("created_by", sql.Text),
    sql.Column("ended_by", sql.Text),  # who took it back before its time
)

notices = of_run(
    "notices",
    sql.Column("id", Count, sql.Identity(always=True), primary_key=True),
    needed("at", Time),
    needed("topic", sql.Text),
    sql.Column("incident", sql.Integer),  # null: of the run itself
    sql.Column("command", sql.Integer),
)

conversations = of_run(
    "conversations",
    key("incident"),  # 0: of the run itself
    sql.Column("channel", sql.Text, primary_key=True),
    needed("project", sql.Text),
    needed("pending", Names),  # topics that wait to be told
    needed("version", Count),  # counts what was added to `pending`
    sql.Column("due_at", Time),  # null: nothing waits
    sql.Column("leased_until", Time),  # somebody is telling it now
    needed("failures", sql.Integer),  # in a row
    needed("given_up", sql.Boolean),  # a message was, and nothing has arrived on its channel since
    needed("told", sql.Integer),  # messages that arrived
    sql.Column("told_at", Time),
    sql.Column("held_for", sql.Text),  # the reason that was last logged for waiting
    needed("over", sql.Boolean),
)

deliveries = of_run(
    "deliveries",  # FLEET for a test, which belongs to none
    sql.Column("id", Count, sql.Identity(always=True), primary_key=True),
    needed("at", Time),
    needed("project", sql.Text),
    sql.Column("incident", sql.Integer),
    sql.Column("channel", sql.Text),  # null: there was none to tell
    needed("topics", Names),
    needed("result", sql.Text),  # sent, held, dropped, failed, given_up
    needed("reason", sql.Text),
    sql.Column("took_ms", postgresql.DOUBLE_PRECISION),
)

approval_links = of_run(
    "approval_links",
    sql.Column("id", sql.Text, primary_key=True),
    needed("incident", sql.Integer),
    needed("command", sql.Integer),
    needed("revision", sql.Integer),  # the one that was shown
    needed("channel", sql.Text),
    sql.Column("person", sql.Text),  # in whose name it decides; null: whoever says so
    needed("made_at", Time),
    needed("expires_at", Time),
    sql.Column("used_at", Time),
    sql.Column("used_by", sql.Text),
    sql.Column("used_from", sql.Text),  # address
)

escalations = of_run(
    "escalations",
    key("incident"),
    key("command"),
    needed("level", sql.Integer),  # told so far
    needed("began_at", Time),
    sql.Column("next_at", Time),  # null: answered, or everybody was told
)
