"""The tables of runs and of what was measured, decided and written down of them: columns and keys.

What else holds of them (indexes, what refers to what, triggers) stands in the schema,
`migrations/versions`; parents come before what refers to them. Every key of what belongs to a run
begins with `run_id`, which is made from (project, name), so that the tables can be distributed by
it and no lock spans runs. Measured floats are float8, never JSON, because NaN and infinities are
data. A chunk holds some steps of one segment, one array a signal; every step lies in one chunk.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from uuid import UUID, uuid5

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql

from spikeguard_protocol import STANDARD_SIGNALS, RunId

metadata = sql.MetaData()

NAMESPACE = UUID("6b0f7a1e-9d0c-5e0b-8f3a-3c5b1f0a7d42")
FLEET = UUID(int=0)  # stands for the run in audit entries that belong to none

Count = sql.BigInteger
Float = postgresql.DOUBLE_PRECISION
Time = sql.DateTime(timezone=True)
Names, Floats, Steps = (postgresql.ARRAY(kind) for kind in (sql.Text, Float, sql.BigInteger))


@lru_cache(maxsize=8192)  # every message of a live run asks
def run_key(run: RunId) -> UUID:
    """The key of a run; a function of its name, so that no index across runs has to guard it."""
    return uuid5(NAMESPACE, f"{run.project}/{run.name}")


def of_run(name: str, *columns: sql.Column[Any]) -> sql.Table:
    """A table of what belongs to a run, whose key begins with the run's."""
    return sql.Table(name, metadata, sql.Column("run_id", sql.Uuid, primary_key=True), *columns)


def key(name: str, kind: type[sql.types.TypeEngine[int]] = sql.Integer) -> sql.Column[int]:
    return sql.Column(name, kind, primary_key=True, autoincrement=False)


def needed(name: str, kind: Any) -> sql.Column[Any]:
    return sql.Column(name, kind, nullable=False)


projects = sql.Table(
    "projects",
    metadata,
    sql.Column("name", sql.Text, primary_key=True),
    needed("created_at", Time),
)

runs = of_run(
    "runs",
    needed("project", sql.Text),
    needed("name", sql.Text),
    needed("created_at", Time),
    needed("state", sql.Text),  # live, silent, ended
    needed("attempts", sql.Integer),  # started so far
    needed("incidents", sql.Integer),  # opened so far
    sql.Column("open_incident", sql.Integer),
    needed("last_message_at", Time),  # below: where the newest attempt stands
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
)

attempts = of_run(
    "attempts",
    key("number"),  # from 1, in the order of registration
    needed("id", sql.Text),  # 16 hexadecimal digits
    sql.Column("parent_attempt", sql.Text),
    sql.Column("parent_segment", Count),
    sql.Column("parent_step", Count),
    needed("started_at", Time),
    needed("last_message_at", Time),
    needed("alive_at", Time),  # when its newest record was made
    sql.Column("ended_at", Time),
    sql.Column("end_reason", sql.Text),
    needed("lost", sql.Boolean),  # silent for so long that its orders count as unknown
    needed("last_sequence", Count),
    needed("world_size", Count),
    needed("capabilities", Names),
    needed("agent_version", sql.Text),
    sql.Column("tokens_per_step", Count),
    needed("settings", postgresql.JSONB),  # text to text
    needed("links", postgresql.JSONB),  # name to address
    needed("dropped_samples", Count),  # by declared gaps
    sql.Column("curves_dropped_at", Time),  # it had been quiet for longer than samples are kept
)

segments = of_run(
    "segments",
    key("attempt"),
    key("segment", Count),
    needed("reason", sql.Text),
    # the parent's attempt is an id: it may never have reached us
    sql.Column("parent_attempt", sql.Text),
    sql.Column("parent_segment", Count),
    sql.Column("parent_step", Count),
    needed("position", Count),
    sql.Column("command", sql.Text),
    needed("opened_at", Time),
    sql.Column("first_step", Count),
    sql.Column("last_step", Count),
    sql.Column("compacted_to", Count),  # no small chunks lie before it
)


layer_norms = of_run(
    "layer_norms",
    key("attempt"),
    key("segment", Count),
    key("step", Count),
    sql.Column("signal", sql.Text, primary_key=True),
    needed("names", Names),
    needed("norms", Floats),
)

targets = of_run(
    "targets",
    sql.Column("name", sql.Text, primary_key=True),
    needed("attempt", sql.Integer),
    needed("segment", Count),
    needed("step", Count),
    needed("position", Count),
    needed("medium", sql.Text),
    needed("saved_at", Time),
    sql.Column("deleted_at", Time),
    sql.Column("damage", sql.Text),
)

detector_states = of_run(
    "detector_states",
    needed("version", Count),  # counts the messages that moved the detector
    needed("attempt", sql.Integer),  # the place the detector stands at
    needed("segment", Count),
    needed("step", Count),
    needed("state", sql.LargeBinary),  # at `state_step`; the samples stored since lead on
    needed("state_step", Count),
    needed("anchor", Count),  # the newest version that more than samples led to
    needed("failures", sql.Integer),  # messages in a row that detection failed on
)

detector_snapshots = of_run(
    "detector_snapshots",
    key("attempt"),
    key("segment", Count),
    key("step", Count),
    needed("state", sql.LargeBinary),
    needed("at_target", sql.Boolean),
)


incidents = of_run(
    "incidents",
    key("number"),
    needed("state", sql.Text),
    needed("kind", sql.Text),
    sql.Column("outcome", sql.Text),
    sql.Column("cause", sql.Text),  # the likeliest
    needed("attempt", sql.Integer),
    needed("segment", Count),
    needed("onset_step", Count),
    needed("record", sql.JSON),  # the rest of it as the domain has it, in the protocol's encoding
    needed("opened_at", Time),
    sql.Column("closed_at", Time),
    needed("revisions", sql.Integer),
    needed("commands", sql.Integer),
    sql.Column("followed_to", Count),  # samples are kept up to this step after the close
    sql.Column("report_due_at", Time),  # when what its post-mortem says is to be settled (anew)
    sql.Column("reported_at", Time),  # when it was settled last
    needed("report_failures", sql.Integer),
)

incident_revisions = of_run(
    "incident_revisions",
    key("incident"),
    key("number"),
    needed("step", Count),
    needed("at", Time),
    needed("kind", sql.Text),
    needed("confidence", Float),
    needed("reason", sql.Text),
)

incident_stretches = of_run(  # whose samples outlive the run's others
    "incident_stretches",
    key("incident"),
    key("attempt"),
    key("segment", Count),
    needed("first_step", Count),
    needed("last_step", Count),
)

precursors = of_run(
    "precursors",
    key("attempt"),
    key("segment", Count),
    key("step", Count),
    sql.Column("signal", sql.Text, primary_key=True),
    needed("value", Float),
    needed("z", Float),
    needed("at", Time),
    sql.Column("incident", sql.Integer),
)

commands = of_run(
    "commands",
    key("incident"),  # 0: ordered of the run itself
    key("number"),
    needed("verb", sql.Text),
    needed("arguments", postgresql.JSONB),  # as the protocol writes them
    needed("state", sql.Text),
    needed("revision", sql.Integer),
    needed("reason", sql.Text),
    sql.Column("cause", sql.Text),  # the diagnosis that it was put down to; null: to none
    needed("policy_version", sql.Integer),
    needed("policy_scope", sql.Text),  # whose: project, run
    needed("attempt", sql.Integer),  # the fence
    sql.Column("replaces", sql.Integer),  # the command of this incident that it stands in for
    needed("expires_at", Time),
    sql.Column("expires_at_step", Count),
    needed("proposed_at", Time),
    sql.Column("proposed_by", sql.Text),  # a person; the policy leaves it out
    sql.Column("decided_at", Time),
    sql.Column("decided_by", sql.Text),
    sql.Column("decided_step", Count),  # where the run stood then, or when nobody had in time
    needed("automatic", sql.Boolean),  # the policy decided, no person did
    sql.Column("decision_reason", sql.Text),
    sql.Column("delivered_at", Time),
    sql.Column("finished_at", Time),
    sql.Column("applied_step", Count),
    sql.Column("result", sql.Text),
    sql.Column("end_reason", sql.Text),  # why it ended without reaching the job
    sql.Column("judgement", sql.Text),
)

command_revisions = of_run(
    "command_revisions",
    key("incident"),
    key("command"),
    key("number"),
    needed("at", Time),
    needed("verb", sql.Text),
    needed("arguments", postgresql.JSONB),
    needed("reason", sql.Text),
    needed("policy_version", sql.Integer),
    needed("policy_scope", sql.Text),  # whose: project, run
)

reports = of_run(
    "reports",
    key("incident"),
    sql.Column("format", sql.Text, primary_key=True),  # md, html, json
    needed("body", sql.LargeBinary),
    needed("written_at", Time),  # the incident's `reported_at` when it was drawn
    needed("drawn_at", Time),
)

audit = of_run(
    "audit",  # FLEET for what belongs to no run
    key("number", Count),
    needed("at", Time),
    needed("actor", sql.Text),
    needed("action", sql.Text),
    needed("subject", sql.Text),  # for people; programs read the three columns below
    sql.Column("project", sql.Text),  # of what belongs to no run
    *(sql.Column(name, sql.Integer) for name in ("incident", "command")),  # 0: of the run itself
    sql.Column("before", sql.Text),
    sql.Column("after", sql.Text),
    sql.Column("reason", sql.Text),
    needed("changes", postgresql.JSONB),  # field, before, after
    sql.Column("actor_kind", sql.Text),  # ActorKind
    sql.Column("token", sql.BigInteger),  # the grant, not the session
    sql.Column("session", sql.BigInteger),
    sql.Column("known_by", sql.Text),  # KnownBy: how a person is known
)

chunks = of_run(
    "chunks",
    key("attempt"),
    key("segment", Count),
    key("first_step", Count),
    needed("last_step", Count),
    # An array is null where nobody measured.
    sql.Column("steps", Steps),  # null: every step from the first to the last
    *(sql.Column(name, Floats) for name in STANDARD_SIGNALS),
    sql.Column("extra_names", Names),
    sql.Column("extra_values", Floats),  # all steps of the first name, then of the second ...
    # ranges of batches: that of step i is [even_first + i * even_size, + even_size), or
    sql.Column("even_first", Count),
    sql.Column("even_size", Count),
    sql.Column("batch_first", Steps),
    sql.Column("batch_end", Steps),
)

batch_details = of_run(
    "batch_details",
    key("attempt"),
    key("segment", Count),
    key("step", Count),
    key("rank", Count),
    needed("detail", sql.Text),  # the record's JSON, which has words for what is not finite
)

run_tags = of_run("run_tags", sql.Column("tag", sql.Text, primary_key=True))

deleted_runs = of_run(  # the newest deletion under a name
    "deleted_runs",
    needed("project", sql.Text),
    needed("name", sql.Text),
    needed("deleted_at", Time),
    # A run that begins under the name again counts on from here, so that no id comes twice.
    needed("attempts", sql.Integer),
    needed("incidents", sql.Integer),
    needed("detector_version", Count),
    needed("curves_left", sql.Boolean),  # whether samples of it are still to be removed
)

deleted_totals = sql.Table(  # what counters had from runs that are deleted: a counter never falls
    "deleted_totals",
    metadata,
    sql.Column("counter", sql.Text, primary_key=True),  # closed, finished, dropped
    sql.Column("first", sql.Text, primary_key=True),  # kind, or verb; empty for dropped samples
    sql.Column("second", sql.Text, primary_key=True),  # outcome, or state; empty likewise
    needed("count", Count),
)
