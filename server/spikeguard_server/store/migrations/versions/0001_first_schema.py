"""The first schema."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

REFUSE_CHANGE = """
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the audit is append-only: % refused', TG_OP
    USING ERRCODE = 'insufficient_privilege';
END $$
"""
APPEND_ONLY = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()
"""


def _measured() -> list[sa.Column[Any]]:
    return [
        sa.Column("loss", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("loss_rank_max", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("grad_norm", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("grad_norm_at_step", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("param_norm", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("adam_v_norm", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("update_norm", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("update_norm_sampled", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("lr", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("tokens_per_second", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("step_time", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("update_dropped", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("extra_names", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("extra_values", postgresql.ARRAY(postgresql.DOUBLE_PRECISION()), nullable=True),
        sa.Column("batch_first", sa.BigInteger(), nullable=True),
        sa.Column("batch_end", sa.BigInteger(), nullable=True),
    ]


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("audit_pkey")),
    )
    op.create_table(
        "layer_norms",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("segment", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("signal", sa.Text(), nullable=False),
        sa.Column("names", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("norms", postgresql.ARRAY(postgresql.DOUBLE_PRECISION()), nullable=False),
        sa.PrimaryKeyConstraint(
            "run_id", "attempt", "segment", "step", "signal", name=op.f("layer_norms_pkey")
        ),
    )
    op.create_table(
        "policies",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("document", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("project", "version", name=op.f("policies_pkey")),
    )
    op.create_table(
        "projects",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("projects_pkey")),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("incidents", sa.Integer(), nullable=False),
        sa.Column("open_incident", sa.Integer(), nullable=True),
        sa.Column("last_message_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("current_attempt", sa.Integer(), nullable=True),
        sa.Column("current_segment", sa.BigInteger(), nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("position", sa.BigInteger(), nullable=True),
        sa.Column("last_loss", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("last_grad_norm", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("tokens_per_second", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("followed_to", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", name=op.f("runs_pkey")),
        postgresql_with={"fillfactor": 50},
    )
    op.create_index(op.f("runs_created_at_run_id_idx"), "runs", ["created_at", "run_id"])
    op.create_index(op.f("runs_project_name_idx"), "runs", ["project", "name"])
    op.create_index(
        "runs_unended_idx", "runs", ["run_id"], postgresql_where=sa.text("state <> 'ended'")
    )
    op.create_table(
        "samples",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("segment", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        *_measured(),
        sa.PrimaryKeyConstraint("run_id", "attempt", "segment", "step", name=op.f("samples_pkey")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("person", sa.Text(), nullable=True),
        sa.Column("parent", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("tokens_pkey")),
        sa.UniqueConstraint("hash", name=op.f("tokens_hash_key")),
    )
    op.create_table(
        "attempts",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("parent_attempt", sa.Text(), nullable=True),
        sa.Column("parent_segment", sa.BigInteger(), nullable=True),
        sa.Column("parent_step", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_message_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("alive_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column("lost", sa.Boolean(), nullable=False),
        sa.Column("last_sequence", sa.BigInteger(), nullable=False),
        sa.Column("world_size", sa.BigInteger(), nullable=False),
        sa.Column("capabilities", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("agent_version", sa.Text(), nullable=False),
        sa.Column("tokens_per_step", sa.BigInteger(), nullable=True),
        sa.Column("settings", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("dropped_samples", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("attempts_runs_fkey")),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("attempts_pkey")),
        sa.UniqueConstraint("run_id", "id", name=op.f("attempts_run_id_id_key")),
        postgresql_with={"fillfactor": 50},
    )
    op.create_table(
        "detector_states",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("segment", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint(
            "octet_length(state) <= 262144", name=op.f("detector_states_size_check")
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.run_id"], name=op.f("detector_states_runs_fkey")
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("detector_states_pkey")),
        postgresql_with={"fillfactor": 50},
    )
    op.create_table(
        "incidents",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("segment", sa.BigInteger(), nullable=False),
        sa.Column("onset_step", sa.BigInteger(), nullable=False),
        sa.Column("onset_first", sa.BigInteger(), nullable=True),
        sa.Column("onset_end", sa.BigInteger(), nullable=True),
        sa.Column("detected_step", sa.BigInteger(), nullable=False),
        sa.Column("newest_step", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("confidence", postgresql.DOUBLE_PRECISION(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("peak_step", sa.BigInteger(), nullable=False),
        sa.Column("peak_loss", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("excess", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.Column("signal", sa.Text(), nullable=False),
        sa.Column("pre_loss", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("trend_step", sa.BigInteger(), nullable=True),
        sa.Column("trend_level", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("trend_slope", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("trend_scale", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("dropped", sa.Boolean(), nullable=False),
        sa.Column("anomalous_step", sa.BigInteger(), nullable=True),
        sa.Column("recurrences", sa.Integer(), nullable=False),
        sa.Column("recurred_attempt", sa.Integer(), nullable=True),
        sa.Column("recurred_segment", sa.BigInteger(), nullable=True),
        sa.Column("recurred_step", sa.BigInteger(), nullable=True),
        sa.Column("recurred_first", sa.BigInteger(), nullable=True),
        sa.Column("recurred_end", sa.BigInteger(), nullable=True),
        sa.Column("z_names", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("z_values", postgresql.ARRAY(postgresql.DOUBLE_PRECISION()), nullable=False),
        sa.Column("move_names", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("move_steps", postgresql.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("closed_step", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revisions", sa.Integer(), nullable=False),
        sa.Column("commands", sa.Integer(), nullable=False),
        sa.Column("followed_to", sa.BigInteger(), nullable=True),
        sa.Column("report_due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("report_failures", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("incidents_runs_fkey")),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("incidents_pkey")),
        postgresql_with={"fillfactor": 50},
    )
    op.create_index(
        "incidents_report_due_idx",
        "incidents",
        ["report_due_at"],
        postgresql_where=sa.text("report_due_at IS NOT NULL"),
    )
    op.create_index(
        "incidents_one_open_key",
        "incidents",
        ["run_id"],
        unique=True,
        postgresql_where=sa.text("state <> 'closed'"),
    )
    op.create_index(
        op.f("incidents_opened_at_run_id_number_idx"),
        "incidents",
        ["opened_at", "run_id", "number"],
    )
    op.create_table(
        "precursors",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("segment", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("signal", sa.Text(), nullable=False),
        sa.Column("value", postgresql.DOUBLE_PRECISION(), nullable=False),
        sa.Column("z", postgresql.DOUBLE_PRECISION(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("incident", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=op.f("precursors_runs_fkey")),
        sa.PrimaryKeyConstraint(
            "run_id", "attempt", "segment", "step", "signal", name=op.f("precursors_pkey")
        ),
    )
    op.create_index(op.f("precursors_run_id_incident_idx"), "precursors", ["run_id", "incident"])
    op.create_table(
        "commands",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("incident", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("verb", sa.Text(), nullable=False),
        sa.Column("arguments", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("replaces", sa.Integer(), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at_step", sa.BigInteger(), nullable=True),
        sa.Column("proposed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("decided_by", sa.Text(), nullable=True),
        sa.Column("decided_step", sa.BigInteger(), nullable=True),
        sa.Column("automatic", sa.Boolean(), nullable=False),
        sa.Column("decision_reason", sa.Text(), nullable=True),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("applied_step", sa.BigInteger(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("judgement", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id", "incident"],
            ["incidents.run_id", "incidents.number"],
            name=op.f("commands_incidents_fkey"),
        ),
        sa.PrimaryKeyConstraint("run_id", "incident", "number", name=op.f("commands_pkey")),
    )
    op.create_index(
        "commands_unfinished_idx",
        "commands",
        ["run_id", "incident", "number"],
        postgresql_where=sa.text("state IN ('proposed', 'approved', 'delivered')"),
    )
    op.create_table(
        "incident_revisions",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("incident", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("confidence", postgresql.DOUBLE_PRECISION(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("peak_step", sa.BigInteger(), nullable=False),
        sa.Column("peak_loss", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("excess", postgresql.DOUBLE_PRECISION(), nullable=True),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id", "incident"],
            ["incidents.run_id", "incidents.number"],
            name=op.f("incident_revisions_incidents_fkey"),
        ),
        sa.PrimaryKeyConstraint(
            "run_id", "incident", "number", name=op.f("incident_revisions_pkey")
        ),
    )
    op.create_table(
        "incident_samples",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("incident", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("segment", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        *_measured(),
        sa.ForeignKeyConstraint(
            ["run_id", "incident"],
            ["incidents.run_id", "incidents.number"],
            name=op.f("incident_samples_incidents_fkey"),
        ),
        sa.PrimaryKeyConstraint(
            "run_id", "incident", "attempt", "segment", "step", name=op.f("incident_samples_pkey")
        ),
    )
    op.create_table(
        "reports",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("incident", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("written_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id", "incident"],
            ["incidents.run_id", "incidents.number"],
            name=op.f("reports_incidents_fkey"),
        ),
        sa.PrimaryKeyConstraint("run_id", "incident", "format", name=op.f("reports_pkey")),
    )
    op.create_table(
        "segments",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("segment", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("parent_attempt", sa.Text(), nullable=True),
        sa.Column("parent_segment", sa.BigInteger(), nullable=True),
        sa.Column("parent_step", sa.BigInteger(), nullable=True),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("command", sa.Text(), nullable=True),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id", "attempt"],
            ["attempts.run_id", "attempts.number"],
            name=op.f("segments_attempts_fkey"),
        ),
        sa.PrimaryKeyConstraint("run_id", "attempt", "segment", name=op.f("segments_pkey")),
        postgresql_with={"fillfactor": 50},
    )
    op.create_table(
        "targets",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("segment", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("medium", sa.Text(), nullable=False),
        sa.Column("saved_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id", "attempt"],
            ["attempts.run_id", "attempts.number"],
            name=op.f("targets_attempts_fkey"),
        ),
        sa.PrimaryKeyConstraint("run_id", "name", name=op.f("targets_pkey")),
    )
    op.create_table(
        "command_revisions",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("incident", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("command", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("verb", sa.Text(), nullable=False),
        sa.Column("arguments", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id", "incident", "command"],
            ["commands.run_id", "commands.incident", "commands.number"],
            name=op.f("command_revisions_commands_fkey"),
        ),
        sa.PrimaryKeyConstraint(
            "run_id", "incident", "command", "number", name=op.f("command_revisions_pkey")
        ),
    )
    op.create_table(
        "detector_snapshots",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("segment", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.Column("at_target", sa.Boolean(), nullable=False),
        sa.CheckConstraint(
            "octet_length(state) <= 262144", name=op.f("detector_snapshots_size_check")
        ),
        sa.ForeignKeyConstraint(
            ["run_id", "attempt", "segment"],
            ["segments.run_id", "segments.attempt", "segments.segment"],
            name=op.f("detector_snapshots_segments_fkey"),
        ),
        sa.PrimaryKeyConstraint(
            "run_id", "attempt", "segment", "step", name=op.f("detector_snapshots_pkey")
        ),
    )

    # In the row, so that an update stays on its page: a state of a few kB would move out of line.
    op.execute("ALTER TABLE detector_states ALTER COLUMN state SET STORAGE MAIN")
    op.execute(REFUSE_CHANGE)
    op.execute(APPEND_ONLY)
