"""Detector states of runs as bytes, and their snapshots in history; and the opening of a message's
transaction: it locks the run and reads all that the message needs, in one round trip.

What is read is read after the lock was taken, in a statement of its own: a join in the locking one
would show what stood there before the wait for the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.diagnosis.lineage import lineage_of
from spikeguard_protocol import Role
from spikeguard_server.store.engine import Statement, ask
from spikeguard_server.store.runs import AttemptRow, Place, RunRow, segments_of
from spikeguard_server.store.tables import core as tables


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


def line_to(connection: sql.Connection, run_id: UUID, place: Place, most: int) -> list[Place]:
    """The places that history went through to get to `place`, newest first; `most` at most."""
    tree = {row.id: row for row in segments_of(connection, run_id)}
    here = (place.attempt, place.segment)
    found = [id for id, row in tree.items() if (row.attempt, id.number) == here]
    if not found:
        return []
    line = lineage_of({id: row.parent for id, row in tree.items()}, found[0]).last_steps
    steps = {id: place.step if last is None else last for id, last in line.items() if id in tree}
    return [Place(tree[id].attempt, id.number, step) for id, step in steps.items()][:most]


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


_RUN = tuple(RunRow.__dataclass_fields__)
_ATTEMPT = tuple(AttemptRow.__dataclass_fields__)

_LOCK = f"SELECT {', '.join(_RUN)} FROM runs WHERE run_id = %(run)s FOR NO KEY UPDATE"
_READ = f"""
SELECT clock_timestamp(),
       EXISTS (SELECT FROM commands WHERE run_id = %(run)s
               AND state IN ('proposed', 'approved', 'delivered')),
       EXISTS (SELECT FROM attempts WHERE run_id = %(run)s AND id <> %(attempt)s
               AND ended_at IS NULL AND NOT lost),
       t.id, t.project, t.run,
       (SELECT coalesce(s.last_step, -1) FROM segments s JOIN runs r USING (run_id)
        WHERE s.run_id = %(run)s AND s.attempt = a.number AND s.segment = r.current_segment
        AND r.current_attempt = a.number),
       {", ".join(f"a.{name}" for name in _ATTEMPT)},
       {", ".join(f"d.{name}" for name in STATE_COLUMNS)},
       CASE WHEN d.anchor > %(known)s THEN d.state END,
       (coalesce(
           (SELECT p.document FROM policies p WHERE p.project = %(of)s AND p.run_id = %(run)s
            ORDER BY p.version DESC LIMIT 1),
           (SELECT p.document FROM policies p WHERE p.project = %(of)s AND p.run_id = %(fleet)s
            ORDER BY p.version DESC LIMIT 1)
       ) -> 'detection')::text
FROM (SELECT) AS one
LEFT JOIN attempts a ON a.run_id = %(run)s AND a.id = %(attempt)s
LEFT JOIN detector_states d ON d.run_id = %(run)s
LEFT JOIN tokens t ON t.hash = %(bearer)s AND t.role = '{Role.AGENT.value}'
     AND t.parent IS NULL AND t.revoked_at IS NULL
     AND (t.expires_at IS NULL OR t.expires_at > now())
"""


@dataclass(frozen=True, slots=True)
class Opening:
    """A run under its lock, and what its next message is judged by."""

    now: datetime  # by the database's clock
    run: RunRow | None
    attempt: AttemptRow | None
    state: StateRow | None
    bearer: tuple[str | None, str | None] | None  # project and run of a token that works; None: all
    commands: bool  # whether any is unfinished
    others: bool  # whether another attempt has not ended
    newest_step: int | None  # stored of the segment that is trained, if in this attempt; -1: none
    detection: str | None  # JSON: what the policy in force says of it


def open_message(
    connection: sql.Connection,
    run_id: UUID,
    project: str,
    attempt: str,
    known: int,
    bearer: bytes | None,
) -> Opening:
    """Lock the run and read what there is, in one round trip.

    `known`: the detector's version that the caller has. `bearer`: hash of the token's secret.
    """
    which = {
        "run": run_id, "attempt": attempt, "known": known, "bearer": bearer, "of": project,
        "fleet": tables.FLEET,
    }  # fmt: skip
    locked, found = ask(connection, (_LOCK, which), (_READ, which))
    now, commands, others, token, project, run, newest_step, *rest, detection = found[0]
    attempt_row, state = rest[: len(_ATTEMPT)], rest[len(_ATTEMPT) :]
    return Opening(
        now,
        RunRow(*locked[0]) if locked else None,
        None if attempt_row[0] is None else AttemptRow(*attempt_row),
        None if state[0] is None else StateRow(*state),
        None if token is None else (project, run),
        commands,
        others,
        newest_step,
        detection,
    )
