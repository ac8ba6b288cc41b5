"""Turns the monitor's events into incidents, revisions, precursors and the samples that are kept.

The domain folds, this writes. Every event is told once, in order; the incident's row is written
once a message, its revisions all. A closed incident is never judged anew; its samples are kept for
`AFTERMATH_STEPS` past the peak, until the run ends or until `MOST_FOLLOWED` newer ones are
followed, and its post-mortem is written at the close and once more then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from spikeguard_core.diagnosis.cause.layers import clues_of_layers, first_layer
from spikeguard_core.diagnosis.cause.measured import LEAD
from spikeguard_core.events import Closed, Event, LoneValue, Opened, Precursor, Recurred
from spikeguard_core.lifecycle.command_life import (
    EVENT_OF_OUTCOME,
    EXECUTED,
    CommandEvent,
    can,
)
from spikeguard_core.lifecycle.command_outcome import (
    after_end,
    after_return,
    next_cure,
)
from spikeguard_core.lifecycle.incident import AFTERMATH_STEPS, Incident
from spikeguard_core.lifecycle.incident_life import fold
from spikeguard_core.suspicion import Ranking, again
from spikeguard_protocol import CommandState, IncidentId, Outcome, Verb, verb_of
from spikeguard_protocol.identity import MAX_STEP
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.store import audit
from spikeguard_server.store.commands import commands_of, move_command, own_rule_acts
from spikeguard_server.store.detectors import Place
from spikeguard_server.store.incidents import (
    add_precursor,
    claim_precursors,
    date_report,
    followed_incidents,
    update_incident,
)
from spikeguard_server.store.runs import current_line, segments_of, stretches
from spikeguard_server.store.samples import Stretch, keep_with_incident, read_layers

Said = Callable[[Verb, str | None], str | None]  # of a command, with the cure that followed

STEPS_BEFORE: Final = 200  # an onset, of which an incident keeps the samples
# Behind it, likewise: a post-mortem is made of all of them at once, and nothing else bounds how
# long an incident stays open.
KEPT_STEPS: Final = 10_000
# At once: of a run that spikes every 30 steps. One that goes back each time never comes to the end
# of what it follows, and each costs every message a statement.
MOST_FOLLOWED: Final = 20
ROWS: Final = 48  # of norms by layer, before the onset and from there on
LOOKED_AT: Final = 100  # steps past the onset that layers are read, and once more at the close


def write_events(intake: Intake, events: Iterable[Event]) -> None:
    """Write what `events` say, which were seen where the monitor stands now."""
    told = [event for event in events if not _warned(intake, event)]
    if not told:
        return
    incident, history = intake.incident, list[Incident]()
    fresh: Ranking = ()
    segment = intake.attempts.segment(
        intake.detection.place.attempt, intake.detection.place.segment
    )
    for event in told:
        intake.check_cost()
        event, before = _as_ended(intake, incident, event), incident
        incident = fold(incident, event, number=intake.run.incidents + 1, segment=segment)
        assert incident is not None
        fresh = getattr(event, "causes", ()) or fresh
        if isinstance(event, Closed) or event is told[-1]:
            incident, fresh = _with_layers(intake, incident, event, fresh), ()
        history.append(incident)
        if isinstance(event, Opened):
            _write(intake, history)
            _opened(intake, incident)
        elif isinstance(event, Closed):
            _write(intake, history)
            _closed(intake, incident)
        elif isinstance(event, Recurred):
            back = partial(after_return, step=event.onset_step, stayed=event.stayed)
            _judge(intake, incident, back, "recur")
        elif before is not None and before.kind is not incident.kind:
            _note(intake, incident, "revise", before.kind.value, incident.kind.value)
    _write(intake, history)


def _with_layers(intake: Intake, incident: Incident, event: Event, fresh: Ranking) -> Incident:
    """`incident` with its causes as the norms by layer around its onset have them, which never
    reach the monitor. `event` was just folded into it; `fresh`: causes since layers were counted
    last."""
    if not incident.causes:
        return incident
    first, onset, segment = incident.first_layer, incident.onset_step, incident.segment
    if event.step <= onset + LOOKED_AT or (isinstance(event, Closed) and first is None):
        place, around = (
            (intake.attempts.numbers[segment.attempt], segment.number),
            (onset - LEAD, ROWS),
        )
        rows = read_layers(intake.connection, intake.run_id, place, before=around, after=around)
        first = first_layer(rows, onset) if rows else None
    if first is None:
        return incident
    causes = again(fresh, clues_of_layers(first)) if fresh else incident.causes
    return replace(incident, first_layer=first, causes=causes)


def _as_ended(intake: Intake, incident: Incident | None, event: Event) -> Event:
    """A close as one that healed by itself is none where the job's emergency rule acted."""
    if incident is None or not isinstance(event, Closed) or event.outcome is not Outcome.HEALED:
        return event
    acts = own_rule_acts(intake.connection, intake.run_id, incident.onset_step, None)
    return replace(event, outcome=Outcome.RECOVERED) if acts else event


def _warned(intake: Intake, event: Event) -> bool:
    """Write a precursor; False for an event of an incident."""
    intake.check_cost()
    if isinstance(event, LoneValue):  # the samples show it
        return True
    if not isinstance(event, Precursor):
        return False
    add_precursor(
        intake.connection, intake.run_id, intake.detection.place, event,
        intake.run.open_incident, intake.now,
    )  # fmt: skip
    return True


def _write(intake: Intake, history: list[Incident]) -> None:
    """Write the newest record of one incident with the revisions that led to it."""
    if history:
        intake.save(history[-1], history)
        history.clear()


def _opened(intake: Intake, incident: Incident) -> None:
    intake.run.incidents = intake.run.open_incident = incident.number
    onset = Place(
        intake.attempts.numbers[incident.segment.attempt],
        incident.segment.number,
        incident.onset_step,
    )
    claim_precursors(intake.connection, intake.run_id, incident.number, onset, STEPS_BEFORE)
    lead_up = _lead_up(intake, incident)
    keep_with_incident(intake.connection, intake.run_id, incident.number, lead_up)
    _note(intake, incident, "open", None, incident.kind.value)


def _closed(intake: Intake, incident: Incident) -> None:
    """Nothing may be carried out for its sake any more, and what was is judged."""
    assert incident.outcome is not None
    intake.run.open_incident = None
    keep_stored(intake, incident)
    event = EVENT_OF_OUTCOME[incident.outcome]
    for command in commands_of(intake.connection, intake.run_id, incident.number):
        if can(command.state, event):
            move_command(intake.connection, command, event, incident.reason, intake.now)
    end = partial(after_end, outcome=incident.outcome, reason=incident.reason)
    _judge(intake, incident, end, "close")
    begin_aftermath(intake, incident)


def _judge(intake: Intake, incident: Incident, said: Said, action: str) -> None:
    """Record of every applied command what became of it, as far as what followed tells."""
    commands = commands_of(intake.connection, intake.run_id, incident.number)
    done = [(c.number, c.verb, str(c.id)) for c in commands if c.state in EXECUTED]
    for command in commands:
        judgement = said(verb_of(command.action), next_cure(command.number, done))
        if command.state is CommandState.APPLIED and judgement is not None:
            move_command(intake.connection, command, CommandEvent.JUDGE, judgement, intake.now)
    outcome = None if incident.outcome is None else incident.outcome.value
    _note(intake, incident, action, None, outcome or incident.kind.value)


def _note(intake: Intake, incident: Incident, action: str, before: str | None, after: str) -> None:
    audit.append(
        intake.connection, intake.run_id, actor=audit.SERVER, action=action,
        subject=str(IncidentId(intake.run.id, incident.number)), incident=incident.number,
        before=before, after=after, reason=incident.reason,
    )  # fmt: skip


def _lead_up(intake: Intake, incident: Incident) -> list[Stretch]:
    """The stretches that led to the onset, through the segments before if need be."""
    rows, first = segments_of(intake.connection, intake.run_id), incident.onset_step - STEPS_BEFORE
    line = current_line(None, rows, incident.segment)
    found = stretches(line, rows, first, MAX_STEP)
    return [(row.attempt, row.id.number, begin, end) for row, begin, end in found]


def keep_stored(intake: Intake, incident: Incident) -> None:
    """Keep what this message stored with the incident, unless it tells of another attempt."""
    if intake.current:
        _keep(intake, incident.number, incident.newest_onset_step + KEPT_STEPS)


def _keep(intake: Intake, incident: int, to: int) -> None:
    """Keep the samples that this message stored, up to step `to`, with an incident."""
    number = intake.attempt.number
    kept = [
        (number, segment, first, min(last, to))
        for segment, (first, last) in intake.stored.items()
        if first <= to
    ]
    keep_with_incident(intake.connection, intake.run_id, incident, kept)


def begin_aftermath(intake: Intake, incident: Incident) -> None:
    """The incident closed: report it, and keep what follows unless nothing will."""
    date_report(intake.connection, intake.run_id, incident.number)
    run, to = intake.run, incident.peak_step + AFTERMATH_STEPS
    if incident.outcome is Outcome.RUN_ENDED or (run.last_step or 0) >= to:
        return
    update_incident(intake.connection, (intake.run_id, incident.number), followed_to=to)
    run.followed_to = max(to, run.followed_to or 0)


def keep_aftermath(intake: Intake) -> None:
    """Keep what this message stored with the incidents that are followed."""
    run = intake.run
    if not intake.current:
        return
    followed = followed_incidents(intake.connection, intake.run_id)
    waiting = followed[-MOST_FOLLOWED:]
    for number, _ in followed[:-MOST_FOLLOWED]:
        _finish(intake, number)
    for number, to in waiting:
        _keep(intake, number, to)
        if (run.last_step or 0) >= to:
            _finish(intake, number)
    run.followed_to = max((to for _, to in waiting if to > (run.last_step or 0)), default=None)


def end_aftermath(intake: Intake) -> None:
    """The run ended: what is kept by now is all there will be."""
    if intake.run.followed_to is None:
        return
    for number, _ in followed_incidents(intake.connection, intake.run_id):
        _finish(intake, number)
    intake.run.followed_to = None


def _finish(intake: Intake, number: int) -> None:
    update_incident(intake.connection, (intake.run_id, number), followed_to=None)
    date_report(intake.connection, intake.run_id, number)
