"""What is kept with an incident, as a post-mortem needs it: rows in their order.

Law: reads only, and only what outlives the samples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_server.store.samples import MEASURED
from spikeguard_server.store.tables import core as tables

AT_ONCE: Final = 2000  # samples


def kept_samples(connection: sql.Connection, run_id: UUID, number: int) -> Iterator[sql.Row[Any]]:
    """The copied samples with the reason of their segment, in the order of training; read
    `AT_ONCE` at a time, since a row may have some 140 values."""
    c, s = tables.incident_samples.c, tables.segments.c
    place = (c.attempt, c.segment, c.step)
    query: sql.Select[Any] = (
        sql.select(*place, s.reason, *(c[name] for name in MEASURED))
        .join(
            tables.segments,
            sql.and_(s.run_id == c.run_id, s.attempt == c.attempt, s.segment == c.segment),
        )
        .where(c.run_id == run_id, c.incident == number)
        .order_by(*place)
        .limit(AT_ONCE)
    )
    after: tuple[int, ...] = (-1, -1, -1)
    while rows := connection.execute(query.where(sql.tuple_(*place) > after)).all():
        yield from rows
        after = tuple(rows[-1][:3])


def attempts_named(
    connection: sql.Connection, run_id: UUID, numbers: Collection[int], columns: Sequence[str]
) -> Sequence[sql.Row[Any]]:
    """`columns` of the attempts of these numbers, oldest first."""
    c = tables.attempts.c
    return connection.execute(
        sql.select(*(c[name] for name in columns))
        .where(c.run_id == run_id, c.number.in_(numbers))
        .order_by(c.number)
    ).all()


def tokens_per_step_of(
    connection: sql.Connection, run_id: UUID, numbers: Collection[int]
) -> int | None:
    """As the newest of these attempts that knew it said."""
    c = tables.attempts.c
    newest = (
        sql.select(c.tokens_per_step)
        .where(c.run_id == run_id, c.number.in_(numbers), c.tokens_per_step.is_not(None))
        .order_by(c.number.desc())
        .limit(1)
    )
    tokens: int | None = connection.execute(newest).scalar_one_or_none()
    return tokens
