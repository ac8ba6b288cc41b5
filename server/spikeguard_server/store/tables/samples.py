"""The tables of what was measured: samples in chunks, partitions by week.

Law: part of the one schema (`tables.metadata`) and of its laws. A chunk holds some steps of one
segment, one array a signal; every step of a segment lies in one chunk. They, and the norms by
layer, are partitioned by the week that their segment was opened in, so that old ones go by whole
partitions.
"""

from __future__ import annotations

import sqlalchemy as sql

from spikeguard_protocol import STANDARD_SIGNALS
from spikeguard_server.store.tables.core import (
    Count,
    Floats,
    Names,
    Steps,
    _key,
    _needed,
    _run,
    metadata,
)

BY_WEEK = "LIST (week)"

weeks = sql.Table(
    "weeks",
    metadata,
    sql.Column("starts", sql.Date, primary_key=True),  # a Monday, UTC
    sql.Column("dropped_at", sql.DateTime(timezone=True)),
)


chunks = sql.Table(
    "chunks",
    metadata,
    _run(),
    _key("attempt"),
    _key("segment", Count),
    _key("first_step", Count),
    sql.Column("week", sql.Date, primary_key=True),
    _needed("last_step", Count),
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
    postgresql_partition_by=BY_WEEK,
)

# A view: every step of every chunk as a row of its own, for people and for tests.
samples = sql.table(
    "samples",
    *(sql.column(name) for name in ("run_id", "attempt", "segment", "step", *STANDARD_SIGNALS)),
    *(sql.column(name) for name in ("extra_names", "extra_values", "batch_first", "batch_end")),
)
