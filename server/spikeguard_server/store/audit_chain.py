"""The audit as its digests cover it: entries in the order of their chains, and the newest of each.

Law: reads only, by names and functions of Postgres' own alone, so that no function of the database
stands between the rows and whoever checks them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.audit.chain import ChainedEntry

FETCHED: Final = 1000  # entries at once
# As the trigger `chain_audit` writes it: each column that is not null, but the digest.
_CONTENT = """
    (SELECT string_agg(format('%s=%s:%s', key, octet_length(value), value), E'\\n'
                       ORDER BY key COLLATE "C")
     FROM jsonb_each_text(to_jsonb(a) - 'digest') WHERE value IS NOT NULL)
"""
_PLAIN: Final = sql.text(
    "SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL timezone = 'UTC';"
    "SET LOCAL statement_timeout = 0"
)
_ENTRIES: Final = f"SELECT a.run_id, a.number, {_CONTENT} AS content, a.digest FROM public.audit a"
_HEADS: Final = sql.text(
    "SELECT DISTINCT ON (run_id) run_id, number, at, digest FROM audit"
    " WHERE digest IS NOT NULL AND at > :since ORDER BY run_id, number DESC"
)
_NAMES: Final = sql.text(
    "SELECT run_id, project || '/' || name FROM public.deleted_runs"
    " UNION ALL SELECT run_id, project || '/' || name FROM public.runs"
)


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The newest entry of a run's chain."""

    run_id: UUID
    number: int
    at: datetime
    digest: bytes


def read_plainly(connection: sql.Connection) -> None:
    """Let this transaction see one state, and resolve names in Postgres' own schema alone."""
    connection.execute(sql.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
    connection.execute(_PLAIN)


def read_chains(
    connection: sql.Connection, run_id: UUID | None = None
) -> Iterator[tuple[UUID, Iterator[ChainedEntry]]]:
    """Run by run its entries by number; of one run alone, where one is named."""
    where = "" if run_id is None else " WHERE a.run_id = :run_id"
    query = sql.text(f"{_ENTRIES}{where} ORDER BY a.run_id, a.number")
    values = {} if run_id is None else {"run_id": run_id}
    rows = connection.execution_options(yield_per=FETCHED).execute(query, values)
    for key, entries in groupby(rows, key=attrgetter("run_id")):
        yield key, (ChainedEntry(row.number, row.content, row.digest) for row in entries)


def run_names(connection: sql.Connection) -> dict[UUID, str]:
    """What the runs are called, deleted ones too."""
    return {row[0]: row[1] for row in connection.execute(_NAMES)}


def heads_since(connection: sql.Connection, since: datetime) -> Sequence[ChainHead]:
    """The newest entry of every run that has one later than `since`."""
    return [ChainHead(*row) for row in connection.execute(_HEADS, {"since": since})]
