"""After an incident closes: copies its last samples, and schedules the post-mortem.

Law: a closed incident is never judged anew; its samples are kept for `AFTERMATH_STEPS` past the
peak, until the run ends or until `MOST_FOLLOWED` newer ones are followed, and its post-mortem is
written at the close and once more then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from spikeguard_core.lifecycle.damage import AFTERMATH_STEPS
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_protocol import STANDARD_SIGNALS, Outcome
from spikeguard_server.ingest.message_context import Intake, StoredSteps
from spikeguard_server.store.incidents import follow_incident, followed_incidents
from spikeguard_server.store.reports import want_report
from spikeguard_server.store.samples import copy_to_incident

# A spike of two steps has the 200 before it copied, with all of the job's own signals.
MOST_COPIED: Final = 2_000_000  # values of a message, 16 MB
# At once: of a run that spikes every 30 steps. One that goes back each time never comes to the end
# of what it follows, and each has a copy of every step.
MOST_FOLLOWED: Final = 20


def keep_samples(
    intake: Intake, incident: int, stretches: Iterable[StoredSteps], *, fresh: bool = False
) -> None:
    """Keep the samples of `stretches` with an incident, as far as the message has room to copy.
    `fresh`: it has none yet."""
    own = intake.run.own_names or ""  # stand beside the values in every row
    width = len(STANDARD_SIGNALS) + own.count(",") + len(own) // 8
    intake.copied += copy_to_incident(
        intake.connection, intake.run_id, incident,
        [(s.attempt, s.segment, s.first, s.last) for s in stretches],
        most=MOST_COPIED // width - intake.copied, fresh=fresh,
    )  # fmt: skip


def begin_aftermath(intake: Intake, incident: Incident) -> None:
    """The incident closed: report it, and keep what follows unless nothing will."""
    want_report(intake.connection, intake.run_id, incident.number, intake.now)
    run, to = intake.run, incident.peak_step + AFTERMATH_STEPS
    if incident.outcome is Outcome.RUN_ENDED or (run.last_step or 0) >= to:
        return
    follow_incident(intake.connection, intake.run_id, incident.number, to)
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
        keep_samples(intake, number, [replace(s, last=min(s.last, to)) for s in _until(intake, to)])
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


def _until(intake: Intake, step: int) -> list[StoredSteps]:
    return [stretch for stretch in intake.stored if stretch.first <= step]


def _finish(intake: Intake, number: int) -> None:
    follow_incident(intake.connection, intake.run_id, number, None)
    want_report(intake.connection, intake.run_id, number, intake.now)
