"""What the detector of a run knows, as bytes, and the places in history it was kept at.

Law: bytes in, bytes out; nobody here looks inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any
from uuid import UUID

import sqlalchemy as sql

from spikeguard_server.store.fast.pipeline import BOOL, BYTES, INT, INT4, KEY, later, statement
from spikeguard_server.store.tables import core as tables


@dataclass(frozen=True, slots=True)
class Place:
    """A step of a segment, by the numbers of the database."""

    attempt: int
    segment: int
    step: int


@dataclass(frozen=True, slots=True)
class StateRow:
    """Where the detector stands, and what to reach it from.

    `state` is what it knew at `state_step` of the place's segment; the samples stored since lead to
    `place`. None: not to be written, or not read because the reader has a version from `anchor` on,
    from which samples alone lead here too.
    """

    version: int  # of the row: counts the messages that moved it
    place: Place
    state_step: int
    anchor: int  # the newest version that more than samples led to
    failures: int  # messages in a row that detection failed on
    state: bytes | None


_S = tables.detector_states.c
STATE_COLUMNS = ("version", "attempt", "segment", "step", "state_step", "anchor", "failures")
_LOAD = sql.select(
    *(_S[name] for name in STATE_COLUMNS),
    sql.case((_S.anchor > sql.bindparam("known", type_=sql.BigInteger), _S.state)).label("state"),
).where(_S.run_id == sql.bindparam("key"))  # fmt: skip


def load_state(connection: sql.Connection, run_id: UUID, known: int) -> StateRow | None:
    """The state of the run, without its bytes for whoever has version `known` of it."""
    row = connection.execute(_LOAD, {"key": run_id, "known": known}).one_or_none()
    return None if row is None else state_row(row)


def state_row(row: Sequence[Any]) -> StateRow:
    """A row of `STATE_COLUMNS` and the state."""
    version, attempt, segment, step, state_step, anchor, failures, state = row
    return StateRow(version, Place(attempt, segment, step), state_step, anchor, failures, state)


_TYPES = {
    "run_id": KEY, "version": INT, "attempt": INT4, "segment": INT, "step": INT, "state_step": INT,
    "anchor": INT, "failures": INT4, "state": BYTES,
}  # fmt: skip
_SAVED = (*STATE_COLUMNS, "state")
_SAVE = statement(
    "save detector",
    f"""
    INSERT INTO detector_states (run_id, {", ".join(_SAVED)})
    VALUES (%(run_id)s, {", ".join(f"%({name})s" for name in _SAVED)})
    ON CONFLICT (run_id)
    DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _SAVED)}
    """,
    _TYPES,
)
_MOVE = statement(
    "move detector",
    f"""
    UPDATE detector_states SET {", ".join(f"{name} = %({name})s" for name in STATE_COLUMNS)}
    WHERE run_id = %(run_id)s
    """,
    _TYPES,
)


def save_state(connection: sql.Connection, run_id: UUID, row: StateRow) -> None:
    """Write where the detector stands, and its bytes if there are any."""
    values = {
        "version": row.version, "attempt": row.place.attempt, "segment": row.place.segment,
        "step": row.place.step, "state_step": row.state_step, "anchor": row.anchor,
        "failures": row.failures, "run_id": run_id, "state": row.state,
    }  # fmt: skip
    later(connection, _MOVE if row.state is None else _SAVE, values)


def detectors_on(connection: sql.Connection, week: date) -> list[UUID]:
    """Runs whose detector is reached from its bytes by samples that lie in the week."""
    g = tables.segments.c
    here = (g.run_id == _S.run_id) & (g.attempt == _S.attempt) & (g.segment == _S.segment)
    in_week = sql.exists().where(here, g.week == week)
    query = sql.select(_S.run_id).where(_S.state_step < _S.step, in_week)
    return list(connection.execute(query).scalars())


_KEEP = statement(
    "keep",
    """
    INSERT INTO detector_snapshots (run_id, attempt, segment, step, state, at_target)
    VALUES (%(run_id)s, %(attempt)s, %(segment)s, %(step)s, %(state)s, %(at_target)s)
    ON CONFLICT (run_id, attempt, segment, step)
    DO UPDATE SET at_target = detector_snapshots.at_target OR excluded.at_target
    """,
    {
        "run_id": KEY, "attempt": INT4, "segment": INT, "step": INT, "state": BYTES,
        "at_target": BOOL,
    },
)  # fmt: skip


def keep_snapshot(
    connection: sql.Connection, run_id: UUID, place: Place, state: bytes, *, at_target: bool
) -> None:
    """Keep `state` as what the detector knew at `place`."""
    row = {
        "run_id": run_id, "attempt": place.attempt, "segment": place.segment,
        "step": place.step, "state": state, "at_target": at_target,
    }  # fmt: skip
    later(connection, _KEEP, row)


def nearest_snapshot(
    connection: sql.Connection, run_id: UUID, place: Place
) -> tuple[int, bytes] | None:
    """The newest snapshot of the segment at or before the step: (its step, its bytes)."""
    c = tables.detector_snapshots.c
    row = connection.execute(
        sql.select(c.step, c.state)
        .where(c.run_id == run_id, c.attempt == place.attempt, c.segment == place.segment)
        .where(c.step <= place.step)
        .order_by(c.step.desc())
        .limit(1)
    ).one_or_none()
    return None if row is None else (row.step, row.state)


def runs_with_snapshots(connection: sql.Connection, beyond: int) -> list[UUID]:
    """Runs with more snapshots than that; read without a lock."""
    run_id = tables.detector_snapshots.c.run_id
    query = sql.select(run_id).group_by(run_id).having(sql.func.count() > beyond)
    return list(connection.execute(query).scalars())


def prune_snapshots(connection: sql.Connection, run_id: UUID, kept: int) -> int:
    """Delete the oldest beyond `kept`, but none at a target or at a segment's beginning."""
    c = tables.detector_snapshots.c
    first = (
        sql.select(sql.func.min(c.step))
        .where(c.run_id == run_id)
        .group_by(c.attempt, c.segment)
        .scalar_subquery()
    )
    surplus = (
        sql.select(c.attempt, c.segment, c.step)
        .where(c.run_id == run_id, c.at_target.is_(False), c.step.not_in(first))
        .order_by(c.attempt.desc(), c.segment.desc(), c.step.desc())
        .offset(kept)
    )
    done = connection.execute(
        sql.delete(tables.detector_snapshots)
        .where(c.run_id == run_id)
        .where(sql.tuple_(c.attempt, c.segment, c.step).in_(surplus))
    )
    return done.rowcount
