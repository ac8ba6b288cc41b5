"""The two round trips of a message: one that locks and reads, one that writes and commits.

Law: any message may begin with `open_message`; only one that brings nothing but samples of a calm
run ends with `write_calm`. What is read is read after the lock was taken, in a statement of its
own: a join in the locking one would show what stood there before the wait for the lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol import Role, Samples
from spikeguard_server.store.chunks import PIECE_TYPES, WRITE_PIECE, piece_of
from spikeguard_server.store.detectors import STATE_COLUMNS, StateRow, state_row
from spikeguard_server.store.fast.pipeline import (
    BOOL,
    BYTES,
    COMMIT,
    FLOAT,
    INT,
    INT4,
    KEY,
    TEXT,
    TIME,
    ask,
    statement,
)
from spikeguard_server.store.runs import AttemptRow, RunRow

_RUN = tuple(RunRow.__dataclass_fields__)
_ATTEMPT = tuple(AttemptRow.__dataclass_fields__)

_LOCK = f"SELECT {', '.join(_RUN)} FROM runs WHERE run_id = %(run)s FOR NO KEY UPDATE"
_READ = f"""
SELECT clock_timestamp(),
       EXISTS (SELECT FROM commands WHERE run_id = %(run)s
               AND state IN ('proposed', 'approved_once', 'approved', 'delivered')),
       EXISTS (SELECT FROM attempts WHERE run_id = %(run)s AND id <> %(attempt)s
               AND ended_at IS NULL AND NOT lost),
       t.id, t.project, t.run,
       (SELECT s.last_step FROM segments s JOIN runs r USING (run_id)
        WHERE s.run_id = %(run)s AND s.attempt = a.number AND s.segment = r.current_segment),
       {", ".join(f"a.{name}" for name in _ATTEMPT)},
       {", ".join(f"d.{name}" for name in STATE_COLUMNS)},
       CASE WHEN d.anchor > %(known)s THEN d.state END,
       (coalesce(
           (SELECT o.document FROM run_policies o WHERE o.run_id = %(run)s
            ORDER BY o.version DESC LIMIT 1),
           (SELECT p.document FROM policies p WHERE p.project = %(of)s
            ORDER BY p.version DESC LIMIT 1)
       ) -> 'detection')::text
FROM (SELECT) AS one
LEFT JOIN attempts a ON a.run_id = %(run)s AND a.id = %(attempt)s
LEFT JOIN detector_states d ON d.run_id = %(run)s
LEFT JOIN tokens t ON t.hash = %(bearer)s AND t.role = '{Role.AGENT.value}'
     AND t.parent IS NULL AND t.revoked_at IS NULL
     AND (t.expires_at IS NULL OR t.expires_at > now())
"""


_ASKED = {"run": KEY, "attempt": TEXT, "known": INT, "bearer": BYTES, "of": TEXT}
_LOCKED, _FOUND = statement("lock", _LOCK, _ASKED), statement("read", _READ, _ASKED)


@dataclass(frozen=True, slots=True)
class Bearer:
    """Whose token the message came with."""

    token_id: int
    project: str | None  # None = every project
    run: str | None  # of that project; None = every run of it


@dataclass(frozen=True, slots=True)
class Opening:
    """A run under its lock, and what its next message is judged by."""

    now: datetime  # by the database's clock
    run: RunRow | None
    attempt: AttemptRow | None
    state: StateRow | None
    bearer: Bearer | None
    commands: bool  # whether any is unfinished
    others: bool  # whether another attempt has not ended
    newest_step: int | None  # of the attempt's segment, if that is the run's current one
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
    }  # fmt: skip
    locked, found = ask(connection, (_LOCKED, which), (_FOUND, which))
    now, commands, others, token, project, run, newest_step, *rest, detection = found[0]
    attempt_row, state = rest[: len(_ATTEMPT)], rest[len(_ATTEMPT) :]
    return Opening(
        now,
        RunRow(*locked[0]) if locked else None,
        None if attempt_row[0] is None else AttemptRow(*attempt_row),
        None if state[0] is None else state_row(state),
        None if token is None else Bearer(token, project, run),
        commands,
        others,
        newest_step,
        detection,
    )


_TELL = """
told AS (
    UPDATE attempts SET last_sequence = %(sequence)s, last_message_at = %(now)s,
           alive_at = %(alive_at)s, lost = %(lost)s
    WHERE run_id = %(run_id)s AND number = %(attempt)s
)
UPDATE runs SET state = %(run_state)s, last_message_at = %(now)s, last_step = %(last_step)s,
       position = %(position)s, last_loss = %(last_loss)s, last_grad_norm = %(last_grad_norm)s,
       last_z = %(last_z)s,
       tokens_per_second = %(tokens_per_second)s
WHERE run_id = %(run_id)s
"""
_EXTEND = """
extended AS (
    UPDATE segments SET first_step = least(first_step, %(first)s),
           last_step = greatest(last_step, %(last)s)
    WHERE run_id = %(run_id)s AND attempt = %(attempt)s AND segment = %(segment)s
)"""
_MOVE = """
moved AS (
    UPDATE detector_states SET version = %(version)s, step = %(at_step)s,
           state_step = %(state_step)s, anchor = %(anchor)s, failures = %(failures)s {state}
    WHERE run_id = %(run_id)s
)"""
_STORE = f"stored AS ({WRITE_PIECE})"
_TYPES = {
    **PIECE_TYPES,
    "sequence": INT, "now": TIME, "alive_at": TIME, "lost": BOOL, "run_state": TEXT,
    "last_step": INT, "position": INT, "last_loss": FLOAT, "last_grad_norm": FLOAT,
    "last_z": FLOAT,
    "tokens_per_second": FLOAT, "version": INT, "at_step": INT, "state_step": INT, "anchor": INT,
    "failures": INT4, "state": BYTES,
}  # fmt: skip
_WITH_STATE = _MOVE.format(state=", state = %(state)s")
_HEARTBEAT = statement("heartbeat", f"WITH {_TELL}", _TYPES)
_SAMPLES = statement(
    "samples", f"WITH {_STORE}, {_EXTEND}, {_MOVE.format(state='')}, {_TELL}", _TYPES
)
_SAMPLES_WITH_STATE = statement(
    "samples with state", f"WITH {_STORE}, {_EXTEND}, {_WITH_STATE}, {_TELL}", _TYPES
)


def write_calm(
    connection: sql.Connection,
    run: RunRow,
    attempt: AttemptRow,
    samples: Samples | None,
    state: StateRow | None,
) -> None:
    """Write everything that a calm message changed and commit, in one round trip."""
    values: dict[str, Any] = {
        "run_id": run.run_id, "attempt": attempt.number, "sequence": attempt.last_sequence,
        "now": attempt.last_message_at, "alive_at": attempt.alive_at, "lost": attempt.lost,
        "run_state": run.state,
        "last_step": run.last_step, "position": run.position, "last_loss": run.last_loss,
        "last_grad_norm": run.last_grad_norm, "last_z": run.last_z,
        "tokens_per_second": run.tokens_per_second,
    }  # fmt: skip
    wanted = _HEARTBEAT
    if samples is not None and state is not None:
        wanted = _SAMPLES if state.state is None else _SAMPLES_WITH_STATE
        values |= piece_of(samples) | {
            "segment": samples.segment,
            "version": state.version, "at_step": state.place.step, "state": state.state,
            "state_step": state.state_step, "anchor": state.anchor, "failures": state.failures,
        }  # fmt: skip
    ask(connection, (wanted, values), (COMMIT, {}))  # commit() would wait once more
