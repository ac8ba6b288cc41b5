"""Adds the norms by layer around the onset to what is known of an incident's causes.

Law: the ranking comes with the monitor's events; layers are read from what is stored, since they
never reach the monitor. What is read is bounded, and nothing is read long after the onset, nor
again before a message told of more layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from spikeguard_core.diagnosis.cause.layers import FirstLayer, clues_of_layers, first_layer
from spikeguard_core.diagnosis.cause.measured import LEAD
from spikeguard_core.events import Closed, Event
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.suspicion import again
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.store.layers import read_layers

ROWS = 48  # of norms by layer, before the onset and from there on
LOOKED_AT = 100  # steps past the onset, and once more at the close
MOST_READS: Final = 4  # of one message: with 4,096 layers each takes 50 ms of a core


def explain(intake: Intake, incident: Incident, event: Event) -> Incident:
    """`incident` with its causes as its layers have them; `event` was just folded into it."""
    if not incident.causes:
        return incident
    first = incident.first_layer
    if event.step <= incident.onset_step + LOOKED_AT or (isinstance(event, Closed) and not first):
        first = _first_layer(intake, incident)
    if first is None:
        return incident
    fresh = getattr(event, "causes", ())
    causes = again(fresh, clues_of_layers(first)) if fresh else incident.causes
    return replace(incident, first_layer=first, causes=causes)


def _first_layer(intake: Intake, incident: Incident) -> FirstLayer | None:
    looked, at = intake.layers, (incident.number, incident.onset_step, incident.segment)
    if looked.at == at and not looked.more:
        return looked.first
    if looked.reads >= MOST_READS:
        return incident.first_layer
    looked.first, looked.at = _read_first(intake, incident), at
    looked.reads, looked.more = looked.reads + 1, False
    return looked.first


def _read_first(intake: Intake, incident: Incident) -> FirstLayer | None:
    onset, segment = incident.onset_step, incident.segment
    near = onset - LEAD
    rows = read_layers(
        intake.connection,
        intake.run_id,
        (intake.attempts.number(segment.attempt), segment.number),
        before=(near, ROWS),
        after=(near, ROWS),
    )
    return first_layer(rows, onset) if rows else None
