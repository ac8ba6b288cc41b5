"""Records changes made outside: reported by a person, or found at the start of an attempt.

Under the run's lock. A note lies on the line that is trained now, at a step that was trained, so
that there is a trend to judge it by.
"""

from __future__ import annotations

import sqlalchemy as sql

from spikeguard_core.diagnosis.change_effect import (
    ExpectedEffect,
    changes_between,
    changes_words,
    cut,
    judged_after,
    trained_with,
)
from spikeguard_protocol import AttemptStarted, RunId
from spikeguard_server.errors import Unprocessable
from spikeguard_server.identity.actors import Actor
from spikeguard_server.ingest.detection import load_detection
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.store import audit
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.notes import add_note
from spikeguard_server.store.runs import (
    Place,
    attempts_named,
    current_line,
    run_named,
    segments_of,
    stretches,
)


def tell_note(
    connection: sql.Connection, run: RunId, by: Actor, text: str, *, step: int | None = None,
    reason: str | None = None, expected: ExpectedEffect | None = None,
    expected_size: float | None = None,
) -> None:  # fmt: skip
    """Write down what a person says of a change after `step`, the newest where none is given.
    `expected_size`: nats."""
    row = run_named(connection, run, locked=True)
    key, newest = row.run_id, row.last_step or 0
    step = newest if step is None else step
    if step > newest:
        raise Unprocessable(
            f"The run stands at step {newest:,}, which lies before step {step:,}",
            "Give a step that was trained, or none for the newest",
            field="step",
        )
    segments = segments_of(connection, key)
    found = stretches(current_line(row, segments), segments, step, step)
    # None where it was not trained on the line that is trained now.
    place = next((Place(each.attempt, each.id.number, step) for each, *_ in found), None)
    number = add_note(
        connection, key, database_now(connection), place, source="person", actor=by, step=step,
        text=text, reason=reason, expected=expected, expected_size=expected_size,
        due_step=None if place is None else step + judged_after(step),
    )  # fmt: skip
    assert number is not None
    if place is not None:  # let the detector know why the loss may rise from there on
        detection = load_detection(connection, key)
        if not detection.relearned:  # else the next message takes the run over from an old release
            detection.moved().note_change(step)
            detection.save(connection)
    audit.append(
        connection, key, actor=by, action="noted", subject=str(run),
        after=f"note {number} at step {step}", reason=f"{text}: {reason}" if reason else text,
    )  # fmt: skip


def note_attempt(intake: Intake, started: AttemptStarted) -> None:
    """Note what the attempt trains with otherwise than the one that it goes on from.

    Its learning rate is compared once it has trained: until then, and where nothing else changed,
    the note is not shown.
    """
    parent = started.parent
    if parent is None or parent.segment.attempt == intake.attempt.id:
        return
    number = intake.attempts.numbers.get(parent.segment.attempt)
    if number is None:  # it never reached us
        return
    (told,) = attempts_named(intake.connection, intake.run_id, [number])
    before, now = (
        trained_with(
            said.settings, world_size=said.world_size, tokens_per_step=said.tokens_per_step
        )
        for said in (told, started)
    )
    changes = [cut(change) for change in changes_between(before, now)]
    add_note(
        intake.connection, intake.run_id, intake.now,
        Place(number, parent.segment.number, parent.step), changes, source="attempt",
        actor=audit.SERVER, step=parent.step, text=changes_words(changes),
        began=intake.attempt.number, shown=bool(changes), due_step=parent.step + 1,
    )  # fmt: skip
