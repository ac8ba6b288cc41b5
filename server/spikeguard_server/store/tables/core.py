"""Every table of the database, and nothing about what is done with them.

Law: every key, unique constraint and foreign key of what belongs to a run begins with `run_id`,
which is made from (project, name), so that the tables can be distributed by it and no lock spans
runs. Measured floats are float8, never JSON, because NaN and infinities are data. Rows that change
with every message carry no index on what changes and leave half of their page free (HOT updates).
`projects`, `policies` and `tokens` belong to no run and are written rarely: reference tables.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from uuid import UUID, uuid5

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql

from spikeguard_protocol import STANDARD_SIGNALS, RunId
from spikeguard_server.store.tables.actors import behind, identified

metadata = sql.MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(referred_table_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)

NAMESPACE = UUID("6b0f7a1e-9d0c-5e0b-8f3a-3c5b1f0a7d42")
FLEET = UUID(int=0)  # stands for the run in audit entries that belong to none
MAX_STATE_BYTES = 256 * 1024  # of a detector's state; a few thousand are usual
HOT = {"fillfactor": 50}

Count = sql.BigInteger
Float = postgresql.DOUBLE_PRECISION
Time = sql.DateTime(timezone=True)
Names, Floats, Steps = (postgresql.ARRAY(kind) for kind in (sql.Text, Float, sql.BigInteger))


@lru_cache(maxsize=8192)  # every message of a live run asks
def run_key(run: RunId) -> UUID:
    """The key of a run; a function of its name, so that no index across runs has to guard it."""
    return uuid5(NAMESPACE, f"{run.project}/{run.name}")


def _run() -> sql.Column[UUID]:
    return sql.Column("run_id", sql.Uuid, primary_key=True)


def _key(name: str, kind: type[sql.types.TypeEngine[int]] = sql.Integer) -> sql.Column[int]:
    return sql.Column(name, kind, primary_key=True, autoincrement=False)


def _needed(name: str, kind: Any, **options: Any) -> sql.Column[Any]:
    return sql.Column(name, kind, nullable=False, **options)


def _where(condition: str) -> dict[str, Any]:
    """Of an index: only of such rows."""
    return {"postgresql_where": sql.text(condition)}


_PARENTS = {  # table -> (our columns, its key)
    "runs": (("run_id",), ("run_id",)),
    "attempts": (("run_id", "attempt"), ("run_id", "number")),
    "segments": (("run_id", "attempt", "segment"), ("run_id", "attempt", "segment")),
    "incidents": (("run_id", "incident"), ("run_id", "number")),
    "commands": (("run_id", "incident", "command"), ("run_id", "incident", "number")),
}


def _of(parent: str) -> sql.ForeignKeyConstraint:
    """The row belongs to one of `parent`."""
    ours, theirs = _PARENTS[parent]
    return sql.ForeignKeyConstraint(ours, [f"{parent}.{name}" for name in theirs])


projects = sql.Table(
    "projects",
    metadata,
    sql.Column("name", sql.Text, primary_key=True),
    _needed("created_at", Time),
)

runs = sql.Table(
    "runs",
    metadata,
    _run(),
    _needed("project", sql.Text),
    _needed("name", sql.Text),
    _needed("created_at", Time),
    _needed("state", sql.Text),  # live, silent, ended
    _needed("attempts", sql.Integer),  # started so far
    _needed("incidents", sql.Integer),  # opened so far
    sql.Column("open_incident", sql.Integer),
    _needed("last_message_at", Time),  # below: where the newest attempt stands
    sql.Column("current_attempt", sql.Integer),
    sql.Column("current_segment", Count),
    sql.Column("last_step", Count),
    sql.Column("position", Count),  # the next in the data order
    *(sql.Column(name, Float) for name in ("last_loss", "last_grad_norm")),
    sql.Column("last_z", Float),  # deviations of that loss above its trend
    sql.Column("own_z", sql.Text),  # the same of the user's own signals, as JSON, by name
    sql.Column("own_names", sql.Text),  # of all of these that came so far, as JSON
    sql.Column("tokens_per_second", Float),
    sql.Column("followed_to", Count),  # the last step that a closed incident still waits for
    sql.Index(None, "project", "name"),
    sql.Index(None, "created_at", "run_id"),
    sql.Index("runs_unended_idx", "run_id", **_where("state <> 'ended'")),
    postgresql_with=HOT,
)

attempts = sql.Table(
    "attempts",
    metadata,
    _run(),
    _key("number"),  # from 1, in the order of registration
    _needed("id", sql.Text),  # 16 hexadecimal digits
    sql.Column("parent_attempt", sql.Text),
    sql.Column("parent_segment", Count),
    sql.Column("parent_step", Count),
    _needed("started_at", Time),
    _needed("last_message_at", Time),
    _needed("alive_at", Time),  # when its newest record was made
    sql.Column("ended_at", Time),
    sql.Column("end_reason", sql.Text),
    _needed("lost", sql.Boolean),  # silent for so long that its orders count as unknown
    _needed("last_sequence", Count),
    _needed("world_size", Count),
    _needed("capabilities", Names),
    _needed("agent_version", sql.Text),
    sql.Column("tokens_per_step", Count),
    _needed("settings", postgresql.JSONB),  # text to text
    _needed("links", postgresql.JSONB),  # name to address
    _needed("dropped_samples", Count),  # by declared gaps
    sql.UniqueConstraint("run_id", "id"),
    _of("runs"),
    sql.Index("attempts_dropped_idx", "dropped_samples", **_where("dropped_samples > 0")),
    postgresql_with=HOT,
)

segments = sql.Table(
    "segments",
    metadata,
    _run(),
    _key("attempt"),
    _key("segment", Count),
    _needed("reason", sql.Text),
    # the parent's attempt is an id: it may never have reached us
    sql.Column("parent_attempt", sql.Text),
    sql.Column("parent_segment", Count),
    sql.Column("parent_step", Count),
    _needed("position", Count),
    sql.Column("command", sql.Text),
    _needed("opened_at", Time),
    sql.Column("first_step", Count),
    sql.Column("last_step", Count),
    _needed("week", sql.Date),  # it was opened in: in its partitions its samples lie
    sql.Column("compacted_to", Count),  # no small chunks lie before it
    _of("attempts"),
    sql.Index("segments_week_idx", "week"),
    postgresql_with=HOT,
)


def _measured() -> list[sql.Column[Any]]:
    """The columns of one sample behind its key."""
    return [
        *(sql.Column(name, Float) for name in STANDARD_SIGNALS),
        sql.Column("extra_names", Names),
        sql.Column("extra_values", Floats),
        sql.Column("batch_first", Count),
        sql.Column("batch_end", Count),
    ]


layer_norms = sql.Table(
    "layer_norms",
    metadata,
    _run(),
    _key("attempt"),
    _key("segment", Count),
    _key("step", Count),
    sql.Column("signal", sql.Text, primary_key=True),
    sql.Column("week", sql.Date, primary_key=True),
    _needed("names", Names),
    _needed("norms", Floats),
    postgresql_partition_by="LIST (week)",
)

targets = sql.Table(
    "targets",
    metadata,
    _run(),
    sql.Column("name", sql.Text, primary_key=True),
    _needed("attempt", sql.Integer),
    _needed("segment", Count),
    _needed("step", Count),
    _needed("position", Count),
    _needed("medium", sql.Text),
    _needed("saved_at", Time),
    sql.Column("deleted_at", Time),
    sql.Column("damage", sql.Text),
    _of("attempts"),
)

detector_states = sql.Table(
    "detector_states",
    metadata,
    _run(),
    _needed("version", Count),  # counts the messages that moved the detector
    _needed("attempt", sql.Integer),  # the place the detector stands at
    _needed("segment", Count),
    _needed("step", Count),
    _needed("state", sql.LargeBinary),  # at `state_step`; the samples stored since lead on
    _needed("state_step", Count),
    _needed("anchor", Count),  # the newest version that more than samples led to
    _needed("failures", sql.Integer),  # messages in a row that detection failed on
    sql.CheckConstraint(f"octet_length(state) <= {MAX_STATE_BYTES}", name="size"),
    _of("runs"),
    postgresql_with=HOT,
)

detector_snapshots = sql.Table(
    "detector_snapshots",
    metadata,
    _run(),
    _key("attempt"),
    _key("segment", Count),
    _key("step", Count),
    _needed("state", sql.LargeBinary),
    _needed("at_target", sql.Boolean),
    sql.CheckConstraint(f"octet_length(state) <= {MAX_STATE_BYTES}", name="size"),
    _of("segments"),
)


incidents = sql.Table(
    "incidents",
    metadata,
    _run(),
    _key("number"),
    _needed("state", sql.Text),
    _needed("kind", sql.Text),
    sql.Column("outcome", sql.Text),
    sql.Column("cause", sql.Text),  # the likeliest
    _needed("attempt", sql.Integer),
    _needed("segment", Count),
    _needed("onset_step", Count),
    _needed("record", sql.JSON),  # the rest of it as the domain has it, in the protocol's encoding
    _needed("opened_at", Time),
    sql.Column("closed_at", Time),
    _needed("revisions", sql.Integer),
    _needed("commands", sql.Integer),
    sql.Column("followed_to", Count),  # samples are kept up to this step after the close
    sql.Column("report_due_at", Time),  # when what its post-mortem says is to be settled (anew)
    sql.Column("reported_at", Time),  # when it was settled last
    _needed("report_failures", sql.Integer),
    _of("runs"),
    sql.Index("incidents_report_due_idx", "report_due_at", **_where("report_due_at IS NOT NULL")),
    sql.Index("incidents_one_open_key", "run_id", unique=True, **_where("state <> 'closed'")),
    sql.Index(None, "opened_at", "run_id", "number"),
    sql.Index("incidents_closed_idx", "kind", "outcome", **_where("outcome IS NOT NULL")),
    postgresql_with=HOT,
)

incident_revisions = sql.Table(
    "incident_revisions",
    metadata,
    _run(),
    _key("incident"),
    _key("number"),
    _needed("step", Count),
    _needed("at", Time),
    _needed("kind", sql.Text),
    _needed("confidence", Float),
    _needed("reason", sql.Text),
    _of("incidents"),
)

incident_samples = sql.Table(
    "incident_samples",
    metadata,
    _run(),
    _key("incident"),
    _key("attempt"),
    _key("segment", Count),
    _key("step", Count),
    *_measured(),
    _of("incidents"),
)

precursors = sql.Table(
    "precursors",
    metadata,
    _run(),
    _key("attempt"),
    _key("segment", Count),
    _key("step", Count),
    sql.Column("signal", sql.Text, primary_key=True),
    _needed("value", Float),
    _needed("z", Float),
    _needed("at", Time),
    sql.Column("incident", sql.Integer),
    _of("runs"),
    sql.Index(None, "run_id", "incident"),
)

commands = sql.Table(
    "commands",
    metadata,
    _run(),
    _key("incident"),  # 0: ordered of the run itself
    _key("number"),
    _needed("verb", sql.Text),
    _needed("arguments", postgresql.JSONB),  # as the protocol writes them
    _needed("state", sql.Text),
    _needed("revision", sql.Integer),
    _needed("reason", sql.Text),
    sql.Column("cause", sql.Text),  # the diagnosis that it was put down to; null: to none
    _needed("policy_version", sql.Integer),
    _needed("policy_scope", sql.Text, server_default="project"),  # whose: project, run
    _needed("attempt", sql.Integer),  # the fence
    sql.Column("replaces", sql.Integer),  # the command of this incident that it stands in for
    _needed("expires_at", Time),
    sql.Column("expires_at_step", Count),
    _needed("proposed_at", Time),
    sql.Column("proposed_by", sql.Text),  # a person; the policy leaves it out
    sql.Column("decided_at", Time),
    sql.Column("decided_by", sql.Text),
    sql.Column("decided_step", Count),  # where the run stood then, or when nobody had in time
    _needed("automatic", sql.Boolean),  # the policy decided, no person did
    sql.Column("decision_reason", sql.Text),
    sql.Column("delivered_at", Time),
    sql.Column("finished_at", Time),
    sql.Column("applied_step", Count),
    sql.Column("result", sql.Text),
    sql.Column("end_reason", sql.Text),  # why it ended without reaching the job
    sql.Column("judgement", sql.Text),
    _of("runs"),
    sql.Index(
        "commands_unfinished_idx",
        "run_id",
        "incident",
        "number",
        **_where("state IN ('proposed', 'approved', 'delivered')"),
    ),
    sql.Index("commands_verb_state_idx", "verb", "state"),
    sql.Index("commands_automatic_idx", "decided_at", **_where("automatic")),
)

command_revisions = sql.Table(
    "command_revisions",
    metadata,
    _run(),
    _key("incident"),
    _key("command"),
    _key("number"),
    _needed("at", Time),
    _needed("verb", sql.Text),
    _needed("arguments", postgresql.JSONB),
    _needed("reason", sql.Text),
    _needed("policy_version", sql.Integer),
    _needed("policy_scope", sql.Text, server_default="project"),  # whose: project, run
    _of("commands"),
)

reports = sql.Table(
    "reports",
    metadata,
    _run(),
    _key("incident"),
    sql.Column("format", sql.Text, primary_key=True),  # md, html, json
    _needed("body", sql.LargeBinary),
    _needed("written_at", Time),  # the incident's `reported_at` when it was drawn
    _needed("drawn_at", Time),
    _of("incidents"),
)

audit = sql.Table(
    "audit",
    metadata,
    _run(),  # FLEET for what belongs to no run
    _key("number", Count),
    _needed("at", Time),
    _needed("actor", sql.Text),
    _needed("action", sql.Text),
    _needed("subject", sql.Text),  # for people; programs read the three columns below
    sql.Column("project", sql.Text),  # of what belongs to no run
    *(sql.Column(name, sql.Integer) for name in ("incident", "command")),  # 0: of the run itself
    sql.Column("before", sql.Text),
    sql.Column("after", sql.Text),
    sql.Column("reason", sql.Text),
    _needed("changes", postgresql.JSONB, server_default="[]"),  # field, before, after
    *identified(),
)

tokens = sql.Table(
    "tokens",
    metadata,
    sql.Column("id", Count, sql.Identity(always=True), primary_key=True),
    _needed("hash", sql.LargeBinary),  # SHA-256 of the secret
    _needed("role", sql.Text),
    sql.Column("project", sql.Text),  # null: every project
    sql.Column("run", sql.Text),  # its name in that project, role agent only; null: every run
    *behind(),
    _needed("created_at", Time),
    _needed("created_by", sql.Text),
    sql.Column("expires_at", Time),
    sql.Column("revoked_at", Time),
    sql.UniqueConstraint("hash"),
)
