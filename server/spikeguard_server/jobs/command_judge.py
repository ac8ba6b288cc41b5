"""Judges what a command did to the loss, as notes are judged.

A rollback is judged from the step that it went back to, in the segment that it opened, against the
branch that it undid, on the batches that both trained on; where no batch is known to be the same,
and for a lower learning rate or skipped batches, against the trend. While a spike was open there is
no trend at that step: then it is the one that the spike itself is judged by.

A command of an incident is judged by how the incident goes on, and this is told beside it; one of a
run itself is judged by this alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spikeguard_core.detection.sample import Sample
from spikeguard_core.diagnosis.change_effect import (
    BEFORE,
    Effect,
    ExpectedEffect,
    branch_effect,
    effect_of,
    effect_words,
    expectation_words,
    judged_after,
)
from spikeguard_core.events import Trend
from spikeguard_core.lifecycle.command_life import CommandEvent
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_protocol import (
    RUN_ITSELF,
    CommandId,
    CommandState,
    Rollback,
    SegmentPoint,
    Signal,
)
from spikeguard_server.entities import CommandRow
from spikeguard_server.jobs.run_history import (
    Row,
    RunHistory,
    newest_step,
    trend_at,
    undone_by,
    values_of,
)
from spikeguard_server.store import audit
from spikeguard_server.store.commands import cures_applied, find_command, move_command
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.incidents import date_report, find_incident
from spikeguard_server.store.notes import MOST_COMPARED_STEPS, settle_note
from spikeguard_server.store.runs import ENDED

WENT_BACK: Final = "the run went back to before it"


@dataclass(frozen=True, slots=True)
class _Start:
    """Where the steps begin that tell what a command did."""

    point: SegmentPoint  # the last step before them
    on_line: bool  # whether the present weights descend from them
    undone: Sequence[Sample] = ()  # what a rollback undid, from the onset on


def judge_command(history: RunHistory, note: Row) -> None:
    """Settle what became of the command that `note` is about, once enough steps followed it."""
    command = _command(history, note)
    now = database_now(history.connection)
    if command is None:
        settle_note(history.connection, note, "the command is gone", now)
        return
    start = _start(history, command, note)
    over = history.run.state == ENDED
    if start is None and not over:
        return  # the job has not told yet where it goes on
    if start is not None and start.on_line and not over and newest_step(history) < note.due_step:
        return
    found = _effect(history, command, start, note.due_step)
    settle_note(history.connection, note, found, now)
    if command.incident not in (RUN_ITSELF, history.run.open_incident):
        date_report(history.connection, history.run.run_id, command.incident)
    if command.incident == RUN_ITSELF and command.state is CommandState.APPLIED:
        _judge(history, command, note, found)


def _command(history: RunHistory, note: Row) -> CommandRow | None:
    id = CommandId.parse(note.text)
    return find_command(history.connection, history.run.run_id, id.incident.number, id.number)


def _start(history: RunHistory, command: CommandRow, note: Row) -> _Start | None:
    if not isinstance(command.action, Rollback):
        point = history.point(note)
        return _Start(point, history.lineage.holds(point))
    mine = [each for each in history.segments if each.command == str(command.id)]
    opened = mine[-1] if mine else None
    if opened is None or opened.parent is None:
        return None
    on_line = opened.id in history.lineage.last_steps
    target, incident = opened.parent.step, _incident(history, command)
    undone = [
        sample
        for sample in undone_by(history, opened.id, target, target + MOST_COMPARED_STEPS)
        if incident is None or sample.step >= incident.onset_step
    ]
    return _Start(opened.parent, on_line, undone)


def _effect(
    history: RunHistory, command: CommandRow, start: _Start | None, due_step: int
) -> Effect | str:
    """What it did to the loss up to `due_step`, or why nobody can tell."""
    if start is None:
        return "the run ended before it went on from there"
    if not start.on_line:
        return WENT_BACK
    began = start.point.step
    to = max(began + judged_after(began), due_step)
    applied = cures_applied(history.connection, history.run.run_id)
    behind = next((place for place, each in enumerate(applied, 1) if each.id == command.id), 0)
    for later in applied[behind:]:
        if later.applied_step is not None and later.applied_step <= to:
            return f"nobody can tell: {later.id} followed before its effect showed"
    paired = branch_effect(start.undone, list(history.samples(began + 1, to)))
    if paired is not None:
        return paired
    trend, heads = _trend(history, command, start.point)
    before = values_of(history, Signal.LOSS, heads - BEFORE + 1, heads)
    after = values_of(history, Signal.LOSS, began + 1, to)
    return effect_of(trend, began, before, after, heads=heads)


def _trend(
    history: RunHistory, command: CommandRow, point: SegmentPoint
) -> tuple[Trend | None, int]:
    """The trend that the loss is held against, and the step up to which it was drawn."""
    trend = trend_at(history, point)
    if trend is not None or command.incident == RUN_ITSELF:
        return trend, point.step
    incident = _incident(history, command)
    if incident is None or incident.trend is None:
        return None, point.step
    return incident.trend, min(incident.onset_step - 1, point.step)


def _incident(history: RunHistory, command: CommandRow) -> Incident | None:
    """That `command` is of; None where it is of the run itself."""
    return find_incident(history.connection, history.run.run_id, command.incident)


def _judge(history: RunHistory, command: CommandRow, note: Row, found: Effect | str) -> None:
    judgement = found_words(found, note.expected, note.expected_size)
    move_command(
        history.connection, command, CommandEvent.JUDGE,
        actor=audit.SERVER, reason=judgement, now=database_now(history.connection),
        judgement=judgement,
    )  # fmt: skip


def found_words(found: Effect | str, expected: str | None, size: float | None) -> str:
    """What became of it and of what was expected, in one sentence."""
    if isinstance(found, str):
        return f"not judged: {found}"
    if expected is None:
        return effect_words(found)
    return f"{effect_words(found)}; {expectation_words(ExpectedEffect(expected), size, found)}"
