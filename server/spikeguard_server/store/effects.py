"""The expected and the measured effect of a command on the loss, kept as a hidden note.

Invariants: the caller holds the run's lock. One row a command, in the table of notes, under the
command's public id; it is due once the command was carried out, and settled once like any note.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.diagnosis.change_effect import (
    Effect,
    ExpectedEffect,
    judged_after,
    told_effect,
)
from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_protocol import RUN_ITSELF, Rollback
from spikeguard_server.entities import CommandRow
from spikeguard_server.store.detectors import Place
from spikeguard_server.store.notes import NewNote, add_note
from spikeguard_server.store.runs import RunRow
from spikeguard_server.store.tables import core as tables
from spikeguard_server.store.tables.people import notes

SOURCE: Final = "command"
MOST_COMPARED_STEPS: Final = 1000  # of a branch that a rollback undid
_N, _C, _S = notes.c, tables.commands.c, tables.segments.c


def expect_effect(
    connection: sql.Connection, run: RunRow, command: CommandRow, by: str, now: datetime, *,
    expected: ExpectedEffect | None = None, size: float | None = None,
) -> None:  # fmt: skip
    """Keep what whoever ordered `command` expects of it."""
    note = NewNote(
        SOURCE, by, run.last_step or 0, str(command.id), expected=expected,
        expected_size=size, shown=False,
    )  # fmt: skip
    add_note(connection, run.run_id, note, now)


def await_effect(
    connection: sql.Connection, run: RunRow, command: CommandRow, place: Place, applied_step: int,
    now: datetime,
) -> None:  # fmt: skip
    """The command was carried out at `place`. A rollback is looked at once the run has trained
    again on what it undid, up to a bound."""
    goes_on = again = applied_step
    if isinstance(command.action, Rollback):
        goes_on = again = command.action.step
        if command.incident != RUN_ITSELF:
            again = min(applied_step, goes_on + MOST_COMPARED_STEPS)
    mine = _mine(run.run_id, str(command.id))
    if connection.execute(sql.select(_N.number).where(mine)).one_or_none() is None:
        expect_effect(connection, run, command, command.decided_by or "the policy", now)
    connection.execute(
        sql.update(notes).where(mine).values(
            attempt=place.attempt, segment=place.segment, step=goes_on,
            due_step=max(again, goes_on + judged_after(goes_on)),
        )
    )  # fmt: skip


def effects_of(connection: sql.Connection, run_id: UUID, ids: list[str]) -> dict[str, sql.Row[Any]]:
    """What was expected of some commands and what they did, by their ids."""
    rows = connection.execute(
        sql.select(notes).where(_N.run_id == run_id, _N.source == SOURCE, _N.text.in_(ids))
    )
    return {row.text: row for row in rows}


def with_effects(connection: sql.Connection, commands: Sequence[CommandRow]) -> list[CommandRow]:
    """The same commands of one run, those that were carried out with their effect in words."""
    done = [str(one.id) for one in commands if one.state in EXECUTED]
    found = effects_of(connection, commands[0].run_id, done) if done else {}
    return [
        replace(one, effect=outcome_words(row), effect_known=is_measured(row))
        if (row := found.get(str(one.id))) is not None
        else one
        for one in commands
    ]


def is_measured(row: sql.Row[Any]) -> bool:
    """Whether the effect of a change is known; `row`: of the notes."""
    return row.due_step is None and row.effect is not None


def outcome_words(row: sql.Row[Any]) -> str:
    """What became of a change, or why that is not known; `row`: of the notes."""
    if row.due_step is not None:
        return f"not judged before step {row.due_step:,}"
    if row.effect is None:
        return f"not known: {row.unknown or 'the run had no steps to judge it by'}"
    expected = None if row.expected is None else ExpectedEffect(row.expected)
    effect = Effect(row.judged_step, row.effect, row.effect_error, row.effect_batches)
    return told_effect(expected, row.expected_size, effect)


def _mine(run_id: UUID, id: str) -> sql.ColumnElement[bool]:
    return sql.and_(_N.run_id == run_id, _N.source == SOURCE, _N.text == id)
