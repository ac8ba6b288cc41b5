"""Changes of a run: told by people, found at an attempt's start, or ordered; and what they did.

The caller holds the run's lock. What was said stays; it is judged once. A command's expected and
measured effect is a hidden note under its public id, due once it was carried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_core.diagnosis.change_effect import (
    Changed,
    Effect,
    ExpectedEffect,
    judged_after,
    told_effect,
)
from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_protocol import RUN_ITSELF, Rollback
from spikeguard_server.entities import CommandRow
from spikeguard_server.store.paging import PageWanted, Row, read_page
from spikeguard_server.store.runs import ENDED, Place, RunRow
from spikeguard_server.store.tables import core as tables
from spikeguard_server.store.tables.core import notes

MAX_SHOWN: Final = 100  # of a run, that are shown with it
AT_ONCE: Final = 20  # that are looked at, before other work has its turn
_N = notes.c


def add_note(
    connection: sql.Connection, run_id: UUID, now: datetime, place: Place | None = None,
    changes: Sequence[Changed] = (), expected: ExpectedEffect | None = None, **columns: Any,
) -> int | None:  # fmt: skip
    """Write a note under the run's next number; None where the attempt's start is noted already.
    `place`: the last step before the change; None: the run had none."""
    newest = sql.select(sql.func.coalesce(sql.func.max(_N.number), 0) + 1)
    number = newest.where(_N.run_id == run_id).scalar_subquery()
    where = {"attempt": place.attempt, "segment": place.segment} if place else {}
    written = (
        insert(notes)
        .values(
            run_id=run_id, number=number, at=now, changes=_plain(changes),
            expected=expected and expected.value, **where, **{"shown": True, **columns},
        )
        .on_conflict_do_nothing()
        .returning(_N.number)
    )  # fmt: skip
    number_written: int | None = connection.execute(written).scalar_one_or_none()
    return number_written


def _plain(changes: Sequence[Changed]) -> list[dict[str, str | None]]:
    """As texts: a reader need not know what kind of setting it is."""
    return [
        {name: None if value is None else str(value) for name, value in asdict(change).items()}
        for change in changes
    ]


def due_notes(connection: sql.Connection) -> Sequence[Row]:
    """Run and number of notes whose step has come, or whose run is over, `AT_ONCE` of them; read
    without a lock."""
    r = tables.runs.c
    come = (_N.due_step <= r.last_step) | (r.state == ENDED)
    query: sql.Select[Any] = (
        sql.select(_N.run_id, _N.number)
        .join(tables.runs, r.run_id == _N.run_id)
        .where(_N.due_step.is_not(None), come)
        .order_by(sql.func.random())  # one that has to wait keeps no other waiting
    )
    return connection.execute(query.limit(AT_ONCE)).all()


def due_note(connection: sql.Connection, due: Row) -> Row | None:
    """The whole note, if it still is to be looked at."""
    mine = sql.select(notes).where(_this(due), _N.due_step.is_not(None))
    return connection.execute(mine).one_or_none()


def show_note(
    connection: sql.Connection, note: Row, text: str, changes: Sequence[Changed], due_step: int
) -> None:
    """An attempt's start did change something; its effect is due at a later step."""
    _update(connection, note, text=text, changes=_plain(changes), shown=True, due_step=due_step)


def drop_note(connection: sql.Connection, note: Row) -> None:
    """An attempt's start changed nothing."""
    connection.execute(sql.delete(notes).where(_this(note), ~_N.shown))


def settle_note(connection: sql.Connection, note: Row, found: Effect | str) -> None:
    """Write what became of the change; it is not looked at again."""
    if isinstance(found, str):
        _update(connection, note, due_step=None, unknown=found)
        return
    _update(
        connection, note, due_step=None, judged_step=found.step, effect=found.loss,
        effect_error=found.error, effect_batches=found.batches,
    )  # fmt: skip


def later_change(connection: sql.Connection, run_id: UUID, number: int, to_step: int) -> str | None:
    """What followed a note before `to_step` and changed the training as well, in words."""
    mine = sql.select(_N.step).where(_N.run_id == run_id, _N.number == number).scalar_subquery()
    later = (
        sql.select(_N.number)
        .where(_N.run_id == run_id, _N.number > number, _N.shown)
        .where(_N.step >= mine, _N.step < to_step)
        .order_by(_N.number)
    )
    found = connection.execute(later.limit(1)).scalar_one_or_none()
    return None if found is None else f"note {found}"


def _update(connection: sql.Connection, note: Row, **columns: Any) -> None:
    connection.execute(sql.update(notes).where(_this(note)).values(**columns))


def _this(note: Row) -> sql.ColumnElement[bool]:
    return sql.and_(_N.run_id == note.run_id, _N.number == note.number)


_NOTES = sql.select(notes, tables.attempts.c.id.label("attempt_id")).outerjoin(
    tables.attempts,
    (tables.attempts.c.run_id == _N.run_id) & (tables.attempts.c.number == _N.attempt),
)


def read_notes(
    connection: sql.Connection,
    run_id: UUID,
    page: PageWanted = PageWanted(limit=MAX_SHOWN),  # noqa: B008
) -> tuple[Sequence[Row], str | None]:
    """What was told of a run and found, newest first, and the cursor of the next page."""
    return read_page(connection, _NOTES.where(_N.run_id == run_id, _N.shown), (_N.number,), page)


SOURCE: Final = "command"
MOST_COMPARED_STEPS: Final = 1000  # of a branch that a rollback undid


def expect_effect(
    connection: sql.Connection, run: RunRow, command: CommandRow, by: str, now: datetime, *,
    expected: ExpectedEffect | None = None, size: float | None = None,
) -> None:  # fmt: skip
    """Keep what whoever ordered `command` expects of it."""
    add_note(
        connection, run.run_id, now, expected=expected, expected_size=size, source=SOURCE,
        actor=by, step=run.last_step or 0, text=str(command.id), shown=False,
    )  # fmt: skip


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
    mine = sql.and_(_N.run_id == run.run_id, _N.source == SOURCE, _N.text == str(command.id))
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
        replace(
            one,
            effect=outcome_words(row),
            effect_known=row.due_step is None and row.effect is not None,
        )
        if (row := found.get(str(one.id))) is not None
        else one
        for one in commands
    ]


def outcome_words(row: sql.Row[Any]) -> str:
    """What became of a change, or why that is not known; `row`: of the notes."""
    if row.due_step is not None:
        return f"not judged before step {row.due_step:,}"
    if row.effect is None:
        return f"not known: {row.unknown or 'the run had no steps to judge it by'}"
    expected = None if row.expected is None else ExpectedEffect(row.expected)
    effect = Effect(row.judged_step, row.effect, row.effect_error, row.effect_batches)
    return told_effect(expected, row.expected_size, effect)
