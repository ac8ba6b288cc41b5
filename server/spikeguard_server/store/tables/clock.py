"""The tables of the database's clock: its last known time, and its jumps.

Invariants: part of the one schema (`tables.metadata`) and of its laws. Both are reference tables,
written once a minute and once a jump.
"""

from __future__ import annotations

import sqlalchemy as sql

from spikeguard_server.store.tables.core import Float, Time, _key, _needed, metadata

clock = sql.Table(  # one row
    "clock",
    metadata,
    _key("id"),
    _needed("seen_at", Time),  # by a server, a minute ago at most while one runs
    _needed("ahead_s", Float),  # the jumps that were seen, added up
)

clock_jumps = sql.Table(
    "clock_jumps",
    metadata,
    _key("number"),  # from 1, in the order in which they were seen
    _needed("before", Time),  # what the clock would have said
    _needed("after", Time),  # what it said
)
