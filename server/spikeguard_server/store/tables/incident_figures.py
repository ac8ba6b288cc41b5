"""The table of closed incidents' figures, which Prometheus adds up.

Invariants: part of the one schema (`tables.metadata`). One row an incident, written once with its
first post-mortem and never changed, also where the run is deleted: what is counted from it only
ever grows. The rows are narrow, so that all of them are counted at every scrape.
"""

from __future__ import annotations

import sqlalchemy as sql

from spikeguard_server.store.tables.core import Count, Float, Time, _key, _needed, _run, metadata

incident_figures = sql.Table(
    "incident_figures",
    metadata,
    _run(),
    _key("incident"),
    _needed("project", sql.Text),
    _needed("written_at", Time),
    _needed("detection_steps", Count),  # from the onset to the detection
    sql.Column("detection_s", Float),
    sql.Column("decision_s", Float),  # from the first proposal to the first decision
    sql.Column("decided_by", sql.Text),  # person, policy
    sql.Column("recovery_steps", Count),  # from the onset to the close, of those that recovered
    sql.Column("recovery_s", Float),
    sql.Column("outcome", sql.Text),  # of those that recovered
    _needed("lost_steps", Count),
    sql.Column("lost_s", Float),
    sql.Column("lost_money", Float),
    _needed("saved_steps", Count),  # that a restart from disk would have trained again
    sql.Column("saved_s", Float),
    sql.Column("saved_money", Float),
    _needed("currency", sql.Text),
)
