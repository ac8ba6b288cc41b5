"""The table of the content of batches near an onset, on the ranks that reported it.

Law: part of the one schema (`tables.metadata`) and of its laws. Rows near an incident stay as long
as it does; others only until the run is some steps further.
"""

from __future__ import annotations

import sqlalchemy as sql

from spikeguard_server.store.tables.core import Count, _key, _needed, _of, _run, metadata

batch_details = sql.Table(
    "batch_details",
    metadata,
    _run(),
    _key("attempt"),
    _key("segment", Count),
    _key("step", Count),
    _key("rank", Count),
    _needed("detail", sql.Text),  # the record's JSON, which has words for what is not finite
    _of("runs"),
)
