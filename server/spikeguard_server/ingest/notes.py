"""Records changes made outside: reported by a person, or found at the start of an attempt.

Under the run's lock. A note lies on the line that is trained now, at a step that was trained, so
that there is a trend to judge it by.
"""

from __future__ import annotations

from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.diagnosis.change_effect import (
    ExpectedEffect,
    Introduction,
    changes_between,
    changes_words,
    judged_after,
)
from spikeguard_protocol import AttemptStarted, RunId
from spikeguard_server.errors import Unprocessable
from spikeguard_server.identity.actors import Actor
from spikeguard_server.ingest.detection import load_detection
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.store import audit
from spikeguard_server.store.detectors import Place
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.incidents import Attempts, attempts_by_number
from spikeguard_server.store.notes import add_note, introduction_of
from spikeguard_server.store.runs import RunRow, run_named, segments_of
from spikeguard_server.store.situations import current_lineage


def tell_note(
    connection: sql.Connection, run: RunId, by: Actor, text: str, *, step: int | None = None,
    reason: str | None = None, expected: ExpectedEffect | None = None,
    expected_size: float | None = None,
) -> int:  # fmt: skip
    """Write down what a person says of a change after `step`, the newest where none is given;
    returns the note's number. `expected_size`: nats."""
    row = run_named(connection, run, locked=True)
    key, step = row.run_id, _step(row, step)
    place = _place(connection, row, attempts_by_number(connection, key), step)
    number = add_note(
        connection, key, database_now(connection), place, source="person", actor=by, step=step,
        text=text, reason=reason, expected=expected, expected_size=expected_size,
        due_step=None if place is None else step + judged_after(step),
    )  # fmt: skip
    assert number is not None
    if place is not None:
        _explain(connection, key, step)
    audit.append(
        connection, key, actor=by, action="noted", subject=str(run),
        after=f"note {number} at step {step}", reason=f"{text}: {reason}" if reason else text,
    )  # fmt: skip
    return number


def _explain(connection: sql.Connection, run_id: UUID, step: int) -> None:
    """Let the detector know why the loss may rise from `step` on."""
    detection = load_detection(connection, run_id, None)
    if not detection.relearned:  # else the next message takes the run over from an older release
        detection.note_change(step)
        detection.save(connection)


def _step(run: RunRow, asked: int | None) -> int:
    newest = run.last_step or 0
    if asked is not None and asked > newest:
        raise Unprocessable(
            f"The run stands at step {newest:,}, which lies before step {asked:,}",
            "Give a step that was trained, or none for the newest",
            field="step",
        )
    return newest if asked is None else asked


def _place(connection: sql.Connection, run: RunRow, attempts: Attempts, step: int) -> Place | None:
    """Where on the line that is trained now the step lies; None where it was not trained there."""
    if run.current_segment is None or run.current_attempt is None:
        return None
    lineage = current_lineage(connection, run, attempts)
    for row in segments_of(connection, run.run_id):
        if row.id not in lineage.last_steps or row.first_step is None or row.last_step is None:
            continue
        end = lineage.last_steps[row.id]
        last = row.last_step if end is None else min(end, row.last_step)
        if row.first_step <= step <= last:
            return Place(row.attempt, row.id.number, step)
    return None


def note_attempt(intake: Intake, started: AttemptStarted) -> None:
    """Note what the attempt trains with otherwise than the one that it goes on from.

    Its learning rate is compared once it has trained: until then, and where nothing else changed,
    the note is not shown.
    """
    parent = started.parent
    if parent is None or parent.segment.attempt == intake.attempt.id:
        return
    before = introduction_of(intake.connection, intake.run_id, parent.segment.attempt)
    if before is None:
        return
    number, told = before
    now = Introduction(started.world_size, started.tokens_per_step, started.settings)
    changes = changes_between(told, now)
    add_note(
        intake.connection, intake.run_id, intake.now,
        Place(number, parent.segment.number, parent.step), changes, source="attempt",
        actor=audit.SERVER, step=parent.step, text=changes_words(changes),
        began=intake.attempt.number, shown=bool(changes), due_step=parent.step + 1,
    )  # fmt: skip
