"""The table of batches that were left out: rank, command, names.

Law: part of the one schema (`tables.metadata`) and of its laws. One row for a rank and a first
position, however often it is told; it stays with the run, as the audit does.
"""

from __future__ import annotations

import sqlalchemy as sql

from spikeguard_server.store.tables.core import (
    Count,
    Names,
    Time,
    _key,
    _needed,
    _of,
    _run,
    metadata,
)

skipped_batches = sql.Table(
    "skipped_batches",
    metadata,
    _run(),
    _key("batch_first", Count),
    _key("rank", Count),
    _needed("batch_end", Count),
    _needed("attempt", sql.Text),  # an id: it may never have reached us
    _needed("segment", Count),
    _needed("step", Count),  # completed when it was passed over
    sql.Column("command", sql.Text),  # public id, where the agent knew it
    _needed("names", Names),
    _needed("names_cut", Count),
    _needed("told_at", Time),
    _of("runs"),
    sql.Index(None, "run_id", "told_at", "batch_first", "rank"),
)
