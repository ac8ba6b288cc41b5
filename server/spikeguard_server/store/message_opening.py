"""Opens a message's transaction: locks the run and reads all that it needs, in one round trip.

What is read is read after the lock was taken, in a statement of its own: a join in the locking one
would show what stood there before the wait for the lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol import Role
from spikeguard_server.store.detectors import STATE_COLUMNS, StateRow
from spikeguard_server.store.engine import ask
from spikeguard_server.store.runs import AttemptRow, RunRow
from spikeguard_server.store.tables.core import FLEET

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
        "fleet": FLEET,
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
