"""The tables of counts of new runs, of deleted runs, and of what deleted runs had counted.

Invariants: part of the one schema (`tables.metadata`) and of its laws. `new_runs` is a reference
table: it is written once a run, and counted over all runs of a token or a project.
"""

from __future__ import annotations

import sqlalchemy as sql

from spikeguard_server.store.tables.core import Count, Time, _needed, _run, _where, metadata

new_runs = sql.Table(  # that began in the last day: what quotas count
    "new_runs",
    metadata,
    _run(),
    _needed("project", sql.Text),
    sql.Column("token_id", Count),  # whose first message made it
    _needed("began_at", Time),
    sql.Index(None, "project", "began_at"),
    sql.Index(None, "token_id", "began_at"),
)

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
