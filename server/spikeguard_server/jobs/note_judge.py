"""Judges what a change did to the loss, once the run has trained on from it.

Listed without a lock, then one note a transaction under its run's lock, so that any number of
replicas may judge.
"""

from __future__ import annotations

from functools import partial
from threading import Event
from typing import Final

import sqlalchemy as sql

from spikeguard_core.diagnosis.change_effect import (
    BEFORE,
    Effect,
    changes_words,
    effect_of,
    judged_after,
    learning_rate_change,
)
from spikeguard_protocol import Signal
from spikeguard_server.jobs.command_judge import WENT_BACK, judge_command
from spikeguard_server.jobs.run_history import Row, RunHistory, trend_at, values_of
from spikeguard_server.log_format import add_context
from spikeguard_server.retries import survive_each
from spikeguard_server.store import audit
from spikeguard_server.store.commands import cures_applied
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.notes import (
    SOURCE,
    changes_of,
    drop_note,
    due_note,
    due_notes,
    later_change,
    settle_note,
    show_note,
)
from spikeguard_server.store.runs import ENDED, lock_run

AT_ONCE: Final = 20


def judge_notes(engine: sql.Engine, stopping: Event | None = None) -> None:
    """Look at what is due, one note after the other, `AT_ONCE` of them or until `stopping`."""
    with engine.connect() as connection:
        found = due_notes(connection, AT_ONCE)
    survive_each(
        found, partial(_look_at, engine), lambda due: f"note {due.number} of {due.run_id}", stopping
    )


def _look_at(engine: sql.Engine, due: Row) -> None:
    with engine.begin() as connection:
        run = lock_run(connection, due.run_id)
        note = due_note(connection, due)
        if run is None or note is None:
            return
        add_context(run=str(run.id))
        history = RunHistory(connection, run)
        if note.source == SOURCE:
            judge_command(history, note)
        elif note.source == "attempt" and note.due_step == note.step + 1:
            _compare(history, note)
        elif run.state == ENDED or (run.last_step or 0) >= note.due_step:
            found = _effect(history, note)
            settle_note(connection, note, found, database_now(connection))


def _compare(history: RunHistory, note: Row) -> None:
    """Whether an attempt began with another learning rate as well; then its effect is due."""
    connection = history.connection
    if not history.lineage.holds(history.point(note)):
        _leave(connection, note)
        return
    changes = changes_of(note.changes)
    before = [rate for _, rate in values_of(history, Signal.LR, note.step - 8, note.step)]
    after = [rate for _, rate in values_of(history, Signal.LR, note.step + 1, note.step + 8)]
    if not after and not _trained(history, note) and history.run.state != ENDED:
        return  # its newest step is still that of the attempt before
    rate = learning_rate_change(before, after[0]) if after else None
    if rate is not None:
        changes = [rate, *changes]
    if not changes:
        drop_note(connection, note)
        return
    text = changes_words(changes)
    show_note(connection, note, text, changes, note.step + judged_after(note.step))
    audit.append(
        connection, history.run.run_id, actor=audit.SERVER, action="noted",
        subject=str(history.run.id), after=f"note {note.number} at step {note.step}",
        reason=f"attempt {note.began} began with {text}",
    )  # fmt: skip


def _trained(history: RunHistory, note: Row) -> bool:
    """Whether the attempt that the note is about has told of a step."""
    return any(row.attempt == note.began and row.last_step for row in history.segments)


def _leave(connection: sql.Connection, note: Row) -> None:
    """The run does not go on from there any more."""
    if note.shown:
        settle_note(connection, note, WENT_BACK, database_now(connection))
    else:
        drop_note(connection, note)


def _effect(history: RunHistory, note: Row) -> Effect | str:
    """What became of the change, or why nobody can tell."""
    connection, run = history.connection, history.run
    to = note.step + judged_after(note.step)
    point = history.point(note)
    if not history.lineage.holds(point):
        return WENT_BACK
    overtaken = later_change(connection, run.run_id, note.number, to) or _command(history, note, to)
    if overtaken is not None:
        return f"nobody can tell: {overtaken} followed before its effect showed"
    trend = trend_at(history, point)
    before = values_of(history, Signal.LOSS, note.step - BEFORE + 1, note.step)
    after = values_of(history, Signal.LOSS, note.step + 1, to)
    return effect_of(trend, note.step, before, after)


def _command(history: RunHistory, note: Row, to: int) -> str | None:
    """The first command that was carried out after it and changes the training, by its id."""
    applied = cures_applied(history.connection, history.run.run_id)
    return next((str(one.id) for one in applied if note.step < (one.applied_step or 0) <= to), None)
