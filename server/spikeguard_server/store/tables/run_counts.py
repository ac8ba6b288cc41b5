"""The table of deleted runs; part of the one schema (`tables.metadata`)."""

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
