"""Detector states of runs as bytes, and their snapshots in history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_server.store.engine import Statement
from spikeguard_server.store.tables import core as tables


@dataclass(frozen=True, slots=True)
class Place:
    """A step of a segment, by the numbers of the database."""

    attempt: int
    segment: int
    step: int


@dataclass(slots=True)
class StateRow:
    """Where the detector stands, and what to reach it from. Changed in place.

    `state` is what it knew at `state_step` of the segment; the samples stored since lead to `step`.
    None: not to be written, or not read because the reader has a version from `anchor` on, from
    which samples alone lead here too.
    """

    version: int = 0  # of the row: counts the messages that moved it
    attempt: int = 0
    segment: int = 0
    step: int = 0
    state_step: int = 0
    anchor: int = 0  # the newest version that more than samples led to
    failures: int = 0  # messages in a row that detection failed on
    state: bytes | None = None


_S = tables.detector_states.c
STATE_COLUMNS = ("version", "attempt", "segment", "step", "state_step", "anchor", "failures")
_LOAD = sql.select(
    *(_S[name] for name in STATE_COLUMNS),
    sql.case((_S.anchor > sql.bindparam("known", type_=sql.BigInteger), _S.state)).label("state"),
).where(_S.run_id == sql.bindparam("key"))  # fmt: skip


def load_state(connection: sql.Connection, run_id: UUID, known: int) -> StateRow | None:
    """The state of the run, without its bytes for whoever has version `known` of it."""
    row = connection.execute(_LOAD, {"key": run_id, "known": known}).one_or_none()
    return None if row is None else StateRow(**row._mapping)


_SAVED = (*STATE_COLUMNS, "state")
_SAVE = f"""
INSERT INTO detector_states ({", ".join(_SAVED)}, run_id)
VALUES ({"%s, " * len(_SAVED)}%s)
ON CONFLICT (run_id)
DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _SAVED)}
"""
_MOVE = f"""
UPDATE detector_states SET {", ".join(f"{name} = %s" for name in STATE_COLUMNS)} WHERE run_id = %s
"""
_position, _whole = attrgetter(*STATE_COLUMNS), attrgetter(*_SAVED)


def update_of_state(run_id: UUID, row: StateRow) -> Statement:
    """The statement that writes where the detector stands, and its bytes if there are any."""
    if row.state is None:
        return _MOVE, (*_position(row), run_id)
    return _SAVE, (*_whole(row), run_id)


_KEEP = """
INSERT INTO detector_snapshots (run_id, attempt, segment, step, state, at_target)
VALUES (%(run_id)s, %(attempt)s, %(segment)s, %(step)s, %(state)s, %(at_target)s)
ON CONFLICT (run_id, attempt, segment, step)
DO UPDATE SET at_target = detector_snapshots.at_target OR excluded.at_target
"""


def snapshot(run_id: UUID, place: Place, state: bytes, *, at_target: bool) -> Statement:
    """The statement that keeps `state` as what the detector knew at `place`."""
    row = {
        "run_id": run_id, "attempt": place.attempt, "segment": place.segment,
        "step": place.step, "state": state, "at_target": at_target,
    }  # fmt: skip
    return _KEEP, row


def nearest_snapshot(
    connection: sql.Connection, run_id: UUID, line: Sequence[Place]
) -> tuple[int, int, bytes] | None:
    """The newest snapshot at or before the first place of `line` that has one:
    (index of the place, its step, its bytes)."""
    c = tables.detector_snapshots.c
    newest = sql.select(c.step, c.state).where(c.run_id == run_id).order_by(c.step.desc()).limit(1)
    for index, at in enumerate(line):
        here = (c.attempt == at.attempt, c.segment == at.segment, c.step <= at.step)
        if (row := connection.execute(newest.where(*here)).one_or_none()) is not None:
            return index, row.step, row.state
    return None


SNAPSHOT_STEPS: Final = 1000  # between two snapshots of a run's detector
# Kept of a run's snapshots, in this order: the newest, those at a target or where a segment begins,
# the rest. Between two of them samples lead on, so fewer cost time and no knowledge.
SNAPSHOTS_KEPT: Final = 500
_THIN = """
DELETE FROM detector_snapshots WHERE run_id = %(run_id)s AND (attempt, segment, step) IN (
    SELECT attempt, segment, step FROM (
        SELECT attempt, segment, step,
               at_target OR step = min(step) OVER (PARTITION BY attempt, segment) AS wanted,
               row_number() OVER (ORDER BY attempt DESC, segment DESC, step DESC) AS age
        FROM detector_snapshots WHERE run_id = %(run_id)s
    ) AS known
    ORDER BY age <= %(kept)s / 4 DESC, wanted DESC, age OFFSET %(kept)s
)
"""


def thinning(run_id: UUID) -> Statement:
    """The statement that deletes snapshots of the run beyond `SNAPSHOTS_KEPT`."""
    return _THIN, {"run_id": run_id, "kept": SNAPSHOTS_KEPT}
