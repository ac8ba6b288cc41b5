"""The tables of deleted runs and of what counters had from them; part of the one schema."""

from __future__ import annotations

import sqlalchemy as sql

from spikeguard_server.store.tables.core import Count, Time, _needed, _run, _where, metadata

deleted_runs = sql.Table(  # the newest deletion under a name
    "deleted_runs",
    metadata,
    _run(),
    _needed("project", sql.Text),
    _needed("name", sql.Text),
    _needed("deleted_at", Time),
    # A run that begins under the name again counts on from here, so that no id comes twice.
    _needed("attempts", sql.Integer),
    _needed("incidents", sql.Integer),
    _needed("detector_version", Count),
    _needed("curves_left", sql.Boolean),  # whether samples of it are still to be removed
    sql.Index("deleted_runs_curves_left_idx", "run_id", **_where("curves_left")),
)

deleted_totals = sql.Table(  # what counters had from runs that are deleted: a counter never falls
    "deleted_totals",
    metadata,
    sql.Column("counter", sql.Text, primary_key=True),  # closed, finished, dropped
    sql.Column("first", sql.Text, primary_key=True),  # kind, or verb; empty for dropped samples
    sql.Column("second", sql.Text, primary_key=True),  # outcome, or state; empty likewise
    _needed("count", Count),
)
