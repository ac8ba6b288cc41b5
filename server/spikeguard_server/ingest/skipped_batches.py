"""What agents tell of batches that they left out.

Law: stored in the message's transaction. A post-mortem that was written before is written anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spikeguard_protocol import BatchesSkipped, CommandId, ProtocolError
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.store.incidents import find_incident
from spikeguard_server.store.reports import want_report
from spikeguard_server.store.skipped import store_skipped

MAX_NUMBER = 2**31 - 1


def take_skipped(intake: Intake, records: Sequence[BatchesSkipped]) -> None:
    """Store `records`; a command of another run is none that anybody here knows."""
    if not records:
        return
    incidents = {record.command: _incident(intake, record.command) for record in records}
    known = [r if incidents[r.command] is not None else replace(r, command=None) for r in records]
    if not store_skipped(intake.connection, intake.run_id, known, intake.now):
        return
    for number in sorted({number for number in incidents.values() if number is not None}):
        closed = find_incident(intake.connection, intake.run_id, number, intake.attempts)
        if closed is not None and closed.outcome is not None:
            want_report(intake.connection, intake.run_id, number, intake.now)


def _incident(intake: Intake, command: str | None) -> int | None:
    """The number of the incident that `command` belongs to."""
    try:
        named = CommandId.parse(command or "")
    except ProtocolError:
        return None
    mine = named.incident.run == intake.run.id
    return named.incident.number if mine and named.incident.number <= MAX_NUMBER else None
