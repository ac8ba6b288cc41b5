"""Turns the monitor's events into incidents, revisions, precursors and the samples that are kept.

The domain folds, this writes. Every event is told once, in order; the incident's row is written
once a message, its revisions all. A closed incident is never judged anew; its samples are kept for
`AFTERMATH_STEPS` past the peak, until the run ends or until `MOST_FOLLOWED` newer ones are
followed, and its post-mortem is written at the close and once more then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from spikeguard_core.diagnosis.cause.layers import clues_of_layers, first_layer
from spikeguard_core.diagnosis.cause.measured import LEAD
from spikeguard_core.events import (
    Closed,
    Event,
    Judgement,
    LoneValue,
    Opened,
    Precursor,
    Recurred,
)
from spikeguard_core.lifecycle.command_life import EVENT_OF_OUTCOME, EXECUTED, CommandEvent, can
from spikeguard_core.lifecycle.command_outcome import after_end, after_return, next_cure
from spikeguard_core.lifecycle.incident import AFTERMATH_STEPS, Incident
from spikeguard_core.lifecycle.incident_life import fold
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_core.suspicion import Ranking, again
from spikeguard_protocol import CommandState, IncidentState, Outcome, Verb, verb_of
from spikeguard_protocol.identity import MAX_STEP
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.log_format import add_context
from spikeguard_server.store.commands import commands_of, move_command, own_rule_acts
from spikeguard_server.store.incidents import (
    add_precursor,
    claim_precursors,
    date_report,
    followed_incidents,
    update_incident,
)
from spikeguard_server.store.runs import Place, current_line, segments_of, stretches
from spikeguard_server.store.samples import keep_with_incident, read_layers

_log = logging.getLogger(__name__)
Said = Callable[[Verb, str | None], str | None]  # of a command, with the cure that followed

STEPS_BEFORE: Final = 200  # an onset, of which an incident keeps the samples
# Behind it, likewise: a post-mortem is made of all of them at once, and nothing else bounds how
# long an incident stays open.
KEPT_STEPS: Final = 10_000
# At once: of a run that spikes every 30 steps. One that goes back each time never comes to the end
# of what it follows, and each costs every message a statement.
MOST_FOLLOWED: Final = 20
ROWS: Final = 48  # of norms by layer, before the onset and from there on
PATIENCE: Final = 3  # messages in a row that detection fails on
LOOKED_AT: Final = 100  # steps past the onset that layers are read, and once more at the close


def write_events(intake: Intake, events: Iterable[Event]) -> None:
    """Write what `events` say, which were seen where the monitor stands now."""
    told = list[Event]()
    for event in events:
        if isinstance(event, Precursor):
            place, open_incident = intake.detection.place, intake.run.open_incident
            add_precursor(intake.connection, intake.run_id, place, event, open_incident, intake.now)
        elif not isinstance(event, LoneValue):  # which the samples show
            told.append(event)
    if not told:
        return
    incident, history = intake.incident, list[Incident]()
    fresh: Ranking = ()
    segment = intake.attempts.segment(intake.detection.row.attempt, intake.detection.row.segment)
    for event in told:
        before = incident
        if (
            incident is not None
            and isinstance(event, Closed)
            and event.outcome is Outcome.HEALED
            and own_rule_acts(intake.connection, intake.run_id, incident.onset_step, None)
        ):  # where the job's emergency rule acted, it did not heal by itself
            event = replace(event, outcome=Outcome.RECOVERED)
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
            was, kind, why = before.kind.value, incident.kind.value, incident.reason
            intake.record("revise", why, incident=incident.number, before=was, after=kind)
    _write(intake, history)


def _with_layers(intake: Intake, incident: Incident, event: Event, fresh: Ranking) -> Incident:
    """`incident` with its causes as the norms by layer around its onset have them, which never
    reach the monitor. `event` was just folded into it; `fresh`: causes since layers were counted
    last."""
    if not incident.causes:
        return incident
    first, onset, segment = incident.first_layer, incident.onset_step, incident.segment
    if event.step <= onset + LOOKED_AT or (isinstance(event, Closed) and first is None):
        place = (intake.attempts.numbers[segment.attempt], segment.number)
        around = (onset - LEAD, ROWS)
        rows = read_layers(intake.connection, intake.run_id, place, before=around, after=around)
        first = first_layer(rows, onset) if rows else None
    if first is None:
        return incident
    causes = again(fresh, clues_of_layers(first)) if fresh else incident.causes
    return replace(incident, first_layer=first, causes=causes)


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
    # The stretches that led to the onset, through the segments before if need be.
    rows, first = segments_of(intake.connection, intake.run_id), incident.onset_step - STEPS_BEFORE
    found = stretches(current_line(None, rows, incident.segment), rows, first, MAX_STEP)
    lead_up = [(row.attempt, row.id.number, begin, end) for row, begin, end in found]
    keep_with_incident(intake.connection, intake.run_id, incident.number, lead_up)
    kind = incident.kind.value
    intake.record("open", incident.reason, incident=incident.number, after=kind)


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
    date_report(intake.connection, intake.run_id, incident.number)
    run, to = intake.run, incident.peak_step + AFTERMATH_STEPS
    if incident.outcome is not Outcome.RUN_ENDED and (run.last_step or 0) < to:  # more will follow
        update_incident(intake.connection, (intake.run_id, incident.number), followed_to=to)
        run.followed_to = max(to, run.followed_to or 0)


def _judge(intake: Intake, incident: Incident, said: Said, action: str) -> None:
    """Record of every applied command what became of it, as far as what followed tells."""
    commands = commands_of(intake.connection, intake.run_id, incident.number)
    done = [(c.number, c.verb, str(c.id)) for c in commands if c.state in EXECUTED]
    for command in commands:
        judgement = said(verb_of(command.action), next_cure(command.number, done))
        if command.state is CommandState.APPLIED and judgement is not None:
            move_command(intake.connection, command, CommandEvent.JUDGE, judgement, intake.now)
    after = (incident.outcome or incident.kind).value
    intake.record(action, incident.reason, incident=incident.number, after=after)


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


def go_on_without(intake: Intake) -> None:
    """Go past a message that detection failed on: a run must not be blocked by our fault. Its
    samples are not judged; the detector goes on from what it knew before, and begins anew after
    `PATIENCE` such messages."""
    detection, step = intake.detection, max((last for _, last in intake.stored.values()), default=0)
    detection.row.failures += 1
    if detection.row.failures >= PATIENCE:
        detection.monitor = Monitor(detection.monitor.choice)
    detection.enter(replace(detection.place, step=max(step, detection.row.step)))
    if detection.row.failures == 1:
        said = f"steps up to {step} were stored and not judged: {intake.failure}"
        intake.record("detection.failed", said)
    if detection.row.failures != PATIENCE:
        return
    said = f"it failed on {PATIENCE} messages in a row and learns the run anew: {intake.failure}"
    intake.record("detection.restarted", said)
    incident = intake.incident
    if incident is None:
        return
    judgement = Judgement(incident.kind, incident.confidence, "detection failed and began anew")
    try:
        with intake.connection.begin_nested():
            write_events(intake, [Closed(step, Outcome.RUN_ENDED, judgement)])
    except Exception:
        add_context(incident=incident.number)
        _log.exception("incident %s of %s cannot be closed", incident.number, intake.run.id)


def take_over(intake: Intake) -> None:
    """Another release wrote the detector's state, so the run was learned anew from its samples. An
    incident that is open goes on if this release sees it too; else it closes."""
    intake.detection.relearned = False
    step = intake.detection.place.step
    intake.record("detection.relearned", f"another release judged the run up to step {step}")
    incident, monitor = intake.incident, intake.detection.monitor
    if incident is None:
        monitor.end()  # of what only this release holds to be open nobody was told
    elif monitor.open:
        for command in commands_of(intake.connection, intake.run_id, incident.number):
            if command.state in EXECUTED and command.applied_step is not None:  # in no sample
                intake.detection.moved().intervened(command.applied_step, command.verb)
    else:
        reason = "the release of the server that took the run over does not see it"
        judgement = Judgement(incident.kind, incident.confidence, reason)
        undone = incident.state is IncidentState.OPEN
        outcome = Outcome.WITHDRAWN if undone else Outcome.RUN_ENDED
        write_events(intake, [Closed(intake.detection.place.step, outcome, judgement)])
