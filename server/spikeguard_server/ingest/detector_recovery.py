"""Recovers a detector whose state cannot be used: detection failed, or another release wrote it.

A message on which the domain fails is stored and acknowledged like any other, because a run must
not be blocked by our fault. Its samples are not judged; the detector goes on from what it knew
before, and after `PATIENCE` such messages in a row it begins anew. Both stand in the run's audit.

Where another release wrote the state, the run is learned anew from its samples, and the audit says
so. An incident that is open goes on if this release sees it too; else it closes.
"""

from __future__ import annotations

import logging
from typing import Final
from uuid import UUID

from spikeguard_core.events import Closed, Judgement
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_protocol import CommandState, IncidentState, Outcome
from spikeguard_server.errors import ServiceError
from spikeguard_server.ingest.detection import Detection, thaw
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.ingest.spikes import write_events
from spikeguard_server.log_format import add_context
from spikeguard_server.store.commands import commands_of
from spikeguard_server.store.detectors import Place, StateRow

PATIENCE: Final = 3
_log = logging.getLogger(__name__)


def detection_in(run_id: UUID, row: StateRow | None) -> Detection:
    """The detection of a message that detection failed on, as it stands in the row."""
    monitor = Monitor()
    if row is None:
        return Detection(run_id, monitor)
    if row.state is not None:  # without the samples since: one of them may be what fails
        try:
            monitor = thaw(row.state)
        except ServiceError:
            raise
        except Exception:
            _log.exception("the detector's state cannot be read")
    return Detection.of(run_id, monitor, row)


def go_on_without(intake: Intake, failure: str) -> None:
    """Note that detection failed on this message, and go past it."""
    detection, step = intake.detection, max((last for _, last in intake.stored.values()), default=0)
    monitor = detection.monitor
    if detection.failures + 1 >= PATIENCE:
        monitor = Monitor(monitor.choice)
    detection.monitor = monitor
    detection.failures += 1
    here = detection.place
    detection.enter(Place(here.attempt, here.segment, max(step, here.step)))
    if detection.failures == 1:
        intake.record(
            "detection.failed", f"steps up to {step} were stored and not judged: {failure}"
        )
    if detection.failures != PATIENCE:
        return
    said = f"it failed on {PATIENCE} messages in a row and learns the run anew: {failure}"
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


_DONE = (CommandState.APPLIED, CommandState.JUDGED)
NOT_SEEN = "the release of the server that took the run over does not see it"


def take_over(intake: Intake) -> None:
    """Bring what was learned anew and what is written in line, once."""
    intake.detection.relearned = False
    step = intake.detection.place.step
    intake.record("detection.relearned", f"another release judged the run up to step {step}")
    incident, monitor = intake.incident, intake.detection.monitor
    if incident is None:
        monitor.end()  # of what only this release holds to be open nobody was told
    elif monitor.open:
        for command in commands_of(intake.connection, intake.run_id, incident.number):
            if command.state in _DONE and command.applied_step is not None:  # it is in no sample
                intake.detection.moved().intervened(command.applied_step, command.verb)
    else:
        judgement = Judgement(incident.kind, incident.confidence, NOT_SEEN)
        undone = incident.state is IncidentState.OPEN
        outcome = Outcome.WITHDRAWN if undone else Outcome.RUN_ENDED
        write_events(intake, [Closed(intake.detection.place.step, outcome, judgement)])
