"""A run that an older release of the server judged so far, in the hands of this one.

Law: what was told stays told, and nothing is told twice. The first replica of this release that
touches the run learns it anew and says so in the audit; from then on older replicas refuse the
run's messages. An incident that is open goes on if this release sees it too; else it closes.
"""

from __future__ import annotations

from collections.abc import Sequence

from spikeguard_protocol import CommandState, Outcome, verb_of
from spikeguard_server.domain.events import Closed, Event, Judgement
from spikeguard_server.domain.lifecycle.incident import Incident
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.ingest.spikes import tell
from spikeguard_server.store import audit
from spikeguard_server.store.commands import commands_of

_DONE = (CommandState.APPLIED, CommandState.JUDGED)
NOT_SEEN = "the release of the server that took the run over does not see it"


def take_over(intake: Intake) -> None:
    """Bring what was learned anew and what is written in line, once."""
    events, intake.detection.relearned = intake.detection.relearned, None
    if events is None:
        return
    audit.append(
        intake.connection, intake.run_id, actor=audit.SERVER, action="detection.relearned",
        subject=str(intake.run.id),
        reason=f"an older release judged the run up to step {intake.detection.place.step}",
    )  # fmt: skip
    incident, monitor = intake.incident, intake.detection.monitor
    if incident is None:
        monitor.end()  # of what only this release holds to be open nobody was told
    elif monitor.open:
        _tell_what_was_done(intake, incident)
    else:
        tell(intake, [_end_of(intake, incident, events)])


def _tell_what_was_done(intake: Intake, incident: Incident) -> None:
    """Commands are in no sample."""
    for command in commands_of(intake.connection, intake.run_id, incident.number):
        if command.state in _DONE and command.applied_step is not None:
            intake.detection.intervened(command.applied_step, verb_of(command.action))


def _end_of(intake: Intake, incident: Incident, events: Sequence[Event]) -> Closed:
    """As this release saw it end; without an end of its own it is withdrawn, or, where a command
    is being judged, left undecided."""
    closed = [e for e in events if isinstance(e, Closed) and e.step >= incident.onset_step]
    if closed:
        return closed[-1]
    done = any(
        command.state in _DONE
        for command in commands_of(intake.connection, intake.run_id, incident.number)
    )
    outcome = Outcome.RUN_ENDED if done else Outcome.WITHDRAWN
    judgement = Judgement(incident.kind, incident.confidence, NOT_SEEN)
    return Closed(intake.detection.place.step, outcome, judgement)
