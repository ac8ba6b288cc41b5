"""Tags of runs, as they are read and written.

Invariants: whoever writes holds the run's lock.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import aggregate_order_by, insert

from spikeguard_server.store.tables.core import Names, run_tags, runs

_T = run_tags.c


def tags_of_row() -> sql.ScalarSelect[Any]:
    """The tags of a row of `runs`, in order."""
    listed = sql.func.array_agg(aggregate_order_by(_T.tag, _T.tag), type_=Names)
    found = sql.select(sql.func.coalesce(listed, sql.cast([], Names)))
    return found.where(_T.run_id == runs.c.run_id).correlate(runs).scalar_subquery()


def has_tag(tag: str) -> sql.ColumnElement[bool]:
    """Whether a row of `runs` has it."""
    return sql.exists().where(_T.run_id == runs.c.run_id, _T.tag == tag)


def read_tags(connection: sql.Connection, run_id: UUID) -> list[str]:
    """The tags of a run, in order."""
    query = sql.select(_T.tag).where(_T.run_id == run_id).order_by(_T.tag)
    return list(connection.execute(query).scalars())


def write_tags(connection: sql.Connection, run_id: UUID, add: Collection[str]) -> None:
    """Give a run some tags, one at least."""
    rows = [{"run_id": run_id, "tag": tag} for tag in sorted(add)]
    connection.execute(insert(run_tags).values(rows).on_conflict_do_nothing())
