"""Judges what a change did to the loss, once the run has trained on from it: notes, and commands,
whose notes are hidden.

Listed without a lock, then one note a transaction under its run's lock, so that any number of
replicas may judge.

A rollback is judged from the step that it went back to, in the segment that it opened, against the
branch that it undid, on the batches that both trained on; where no batch is known to be the same,
and for every other change, against the trend. While a spike was open there is no trend at that
step: then it is the one that the spike itself is judged by. A command of an incident is judged by
how the incident goes on, and this is told beside it; one of a run itself is judged by this alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sql

from spikeguard_core.detection.sample import Sample
from spikeguard_core.diagnosis.change_effect import (
    BEFORE,
    Changed,
    Effect,
    ExpectedEffect,
    branch_effect,
    changes_words,
    effect_of,
    judged_after,
    learning_rate_change,
    told_effect,
)
from spikeguard_core.diagnosis.lineage import Lineage, lineage_of
from spikeguard_core.events import Trend
from spikeguard_core.lifecycle.command_life import CommandEvent
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_protocol import (
    RUN_ITSELF,
    CommandId,
    CommandState,
    Rollback,
    SegmentId,
    SegmentPoint,
    Signal,
)
from spikeguard_server.entities import CommandRow
from spikeguard_server.ingest.detection import past_monitor
from spikeguard_server.log_format import add_context
from spikeguard_server.store import audit
from spikeguard_server.store.chunks import SegmentKey, read_curves
from spikeguard_server.store.commands import cures_applied, move_command, read_command
from spikeguard_server.store.engine import database_now
from spikeguard_server.store.incidents import attempts_by_number, date_report, read_incident
from spikeguard_server.store.notes import (
    MOST_COMPARED_STEPS,
    SOURCE,
    drop_note,
    due_note,
    later_change,
    settle_note,
    show_note,
)
from spikeguard_server.store.paging import Row
from spikeguard_server.store.runs import (
    ENDED,
    Place,
    RunRow,
    current_line,
    lock_run,
    segments_of,
    stretches,
)

WENT_BACK: Final = "the run went back to before it"


class RunHistory:
    """A run's line of training, as it is at hand under its lock."""

    def __init__(self, connection: sql.Connection, run: RunRow) -> None:
        self.connection, self.run = connection, run
        self.attempts = attempts_by_number(connection, run.run_id)
        self.segments = segments_of(connection, run.run_id)
        instead = self.segments[-1].id if self.segments else None
        self.lineage = current_line(run, self.segments, instead)
        self.over = run.state == ENDED

    def point(self, note: Row) -> SegmentPoint:
        return SegmentPoint(self.attempts.segment(note.attempt, note.segment), note.step)

    def samples(self, first: int, last: int, lineage: Lineage | None = None) -> Iterator[Sample]:
        """Those of steps [first, last] of a `lineage`, in their order: of the one that the present
        weights descend from where none is given."""
        found = stretches(lineage or self.lineage, self.segments, first, last)
        for row, begin, end in sorted(found, key=lambda stretch: stretch[1]):
            key = SegmentKey(self.run.run_id, row.attempt, row.id.number)
            yield from read_curves(self.connection, key, begin, end).samples()

    def values(self, signal: Signal, first: int, last: int) -> list[tuple[int, float]]:
        """Steps in [first, last] with what was measured there."""
        found = ((sample.step, sample.values.get(signal)) for sample in self.samples(first, last))
        return [(step, value) for step, value in found if value is not None]

    def newest_step(self) -> int:
        """The newest step of the line that is trained now; -1 where none is known."""
        line = self.lineage.last_steps
        steps = [row.last_step for row in self.segments if line.get(row.id, -1) is None]
        return max((step for step in steps if step is not None), default=-1)

    def undone_by(self, opened: SegmentId, target: int, last: int) -> list[Sample]:
        """Steps up to `last` that had been trained behind `target` before a rollback opened segment
        `opened`."""
        parents = {row.id: row.parent for row in self.segments}
        before = [*parents][: [*parents].index(opened)]
        if not before:
            return []
        return list(self.samples(target + 1, last, lineage_of(parents, before[-1])))

    def trend_at(self, point: SegmentPoint) -> Trend | None:
        """Where the loss was heading at `point`; None where too little was known, or a spike was
        open."""
        attempt = self.attempts.numbers[point.segment.attempt]
        here = Place(attempt, point.segment.number, point.step)
        past = past_monitor(self.connection, self.run.run_id, here)
        return None if past is None else past.heading(point.step)


def judge_note(connection: sql.Connection, due: Row) -> None:
    """Look at a note that was due when it was listed."""
    run = lock_run(connection, due.run_id)
    note = due_note(connection, due)
    if run is None or note is None:
        return
    add_context(run=str(run.id))
    history = RunHistory(connection, run)
    if note.source == SOURCE:
        _judge_command(history, note)
    elif note.source == "attempt" and note.due_step == note.step + 1:
        _compare(history, note)
    elif history.over or (run.last_step or 0) >= note.due_step:
        settle_note(history.connection, note, _effect_of_note(history, note))


def _compare(history: RunHistory, note: Row) -> None:
    """Whether an attempt began with another learning rate as well; then its effect is due."""
    connection = history.connection
    if not history.lineage.holds(history.point(note)):
        if note.shown:
            settle_note(history.connection, note, WENT_BACK)
        else:
            drop_note(connection, note)
        return
    changes = [Changed(**stored) for stored in note.changes]
    before = [rate for _, rate in history.values(Signal.LR, note.step - 8, note.step)]
    after = [rate for _, rate in history.values(Signal.LR, note.step + 1, note.step + 8)]
    trained = any(row.attempt == note.began and row.last_step for row in history.segments)
    if not after and not trained and not history.over:
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


def _effect_of_note(history: RunHistory, note: Row) -> Effect | str:
    """What became of the change, or why nobody can tell."""
    to, point = note.step + judged_after(note.step), history.point(note)
    if not history.lineage.holds(point):
        return WENT_BACK
    mine = (history.connection, history.run.run_id)
    applied = (one for one in cures_applied(*mine) if note.step < (one.applied_step or 0) <= to)
    later = later_change(*mine, note.number, to) or next((str(one.id) for one in applied), None)
    if later is not None:
        return _overtaken(later)
    return _against_trend(history, history.trend_at(point), note.step, to, heads=note.step)


def _overtaken(by: str) -> str:
    return f"nobody can tell: {by} followed before its effect showed"


def _against_trend(
    history: RunHistory, trend: Trend | None, changed_at: int, to: int, *, heads: int
) -> Effect | str:
    """The effect of a change up to step `to`; `heads`: the step up to which the trend was drawn."""
    before = history.values(Signal.LOSS, heads - BEFORE + 1, heads)
    after = history.values(Signal.LOSS, changed_at + 1, to)
    return effect_of(trend, changed_at, before, after, heads=heads)


@dataclass(frozen=True, slots=True)
class _Start:
    """Where the steps begin that tell what a command did."""

    point: SegmentPoint  # the last step before them
    on_line: bool  # whether the present weights descend from them
    undone: Sequence[Sample] = ()  # what a rollback undid, from the onset on


def _judge_command(history: RunHistory, note: Row) -> None:
    """Settle what became of the command that `note` is about, once enough steps followed it."""
    connection, run = history.connection, history.run
    command = read_command(connection, CommandId.parse(note.text))
    start = _start(history, command, note)
    young = history.newest_step() < note.due_step
    if not history.over and (start is None or (start.on_line and young)):
        return  # the job has not told yet where it goes on, or how
    found = _effect_of_command(history, command, start, note.due_step)
    settle_note(history.connection, note, found)
    if command.incident not in (RUN_ITSELF, run.open_incident):
        date_report(connection, run.run_id, command.incident)
    if command.incident == RUN_ITSELF and command.state is CommandState.APPLIED:
        expected = None if note.expected is None else ExpectedEffect(note.expected)
        told = f"not judged: {found}"
        if isinstance(found, Effect):
            told = told_effect(expected, note.expected_size, found)
        move_command(connection, command, CommandEvent.JUDGE, told, database_now(connection))


def _start(history: RunHistory, command: CommandRow, note: Row) -> _Start | None:
    if not isinstance(command.action, Rollback):
        point = history.point(note)
        return _Start(point, history.lineage.holds(point))
    mine = (each for each in reversed(history.segments) if each.command == str(command.id))
    opened = next(mine, None)
    if opened is None or opened.parent is None:
        return None
    on_line = opened.id in history.lineage.last_steps
    target, incident = opened.parent.step, _incident(history, command)
    undone = [
        sample
        for sample in history.undone_by(opened.id, target, target + MOST_COMPARED_STEPS)
        if incident is None or sample.step >= incident.onset_step
    ]
    return _Start(opened.parent, on_line, undone)


def _effect_of_command(
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
            return _overtaken(str(later.id))
    paired = branch_effect(start.undone, list(history.samples(began + 1, to)))
    if paired is not None:
        return paired
    trend, heads = history.trend_at(start.point), began
    incident = _incident(history, command) if trend is None else None
    if incident is not None and incident.trend is not None:
        trend, heads = incident.trend, min(incident.onset_step - 1, began)
    return _against_trend(history, trend, began, to, heads=heads)


def _incident(history: RunHistory, command: CommandRow) -> Incident | None:
    """That `command` is of; None where it is of the run itself."""
    if command.incident == RUN_ITSELF:
        return None
    return read_incident(history.connection, command.id.incident).incident
