"""The states of an incident: its table of moves, and how the monitor's events update its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from enum import StrEnum

from spikeguard_core.diagnosis.classifier import ACTS
from spikeguard_core.diagnosis.evidence import REPLICAS_APART
from spikeguard_core.diagnosis.incident_tracker import CURES
from spikeguard_core.events import (
    Closed,
    Event,
    Judgement,
    LoneValue,
    Opened,
    Precursor,
    Recurred,
    Revised,
)
from spikeguard_core.lifecycle.command_life import next_state
from spikeguard_core.lifecycle.incident import Incident, lasting_cause, stands_out
from spikeguard_protocol import IncidentState, Kind, SegmentId, Verb
from spikeguard_protocol.phrases import CAUSE_WORDS


class IncidentEvent(StrEnum):
    """What can happen to an incident."""

    REVISE = "revise"  # looked at again
    ACT = "act"  # a command was applied
    RECUR = "recur"  # it came back
    CLOSE = "close"


INCIDENT_MOVES: Mapping[tuple[IncidentState, IncidentEvent], IncidentState] = {
    (IncidentState.OPEN, IncidentEvent.REVISE): IncidentState.OPEN,
    (IncidentState.OPEN, IncidentEvent.ACT): IncidentState.RECOVERING,
    (IncidentState.OPEN, IncidentEvent.RECUR): IncidentState.OPEN,
    (IncidentState.OPEN, IncidentEvent.CLOSE): IncidentState.CLOSED,
    (IncidentState.RECOVERING, IncidentEvent.REVISE): IncidentState.RECOVERING,
    (IncidentState.RECOVERING, IncidentEvent.ACT): IncidentState.RECOVERING,
    (IncidentState.RECOVERING, IncidentEvent.RECUR): IncidentState.OPEN,
    (IncidentState.RECOVERING, IncidentEvent.CLOSE): IncidentState.CLOSED,
}


def fold(
    incident: Incident | None, event: Event, *, number: int, segment: SegmentId
) -> Incident | None:
    """The open incident after `event`, which was seen in `segment`.

    `number` names the incident that an `Opened` makes. A `Precursor` changes nothing. Raise
    `IllegalMove` for an event after the close, `ValueError` for one that has no incident.
    """
    if isinstance(event, Opened):
        return _opened(event, number, segment)
    if isinstance(event, Precursor | LoneValue):
        return incident
    if incident is None:
        raise ValueError(f"{type(event).__name__} at step {event.step} belongs to no incident")
    if isinstance(event, Revised):
        return _revised(incident, event)
    if isinstance(event, Recurred):
        return _recurred(incident, event, segment)
    return _closed(incident, event)


def acted(incident: Incident, verb: Verb) -> Incident:
    """The incident once a command was applied, or the run was started again from before its onset,
    which is a rollback by hand: its effect is being judged from now on."""
    if verb not in CURES:
        return incident
    state = _after(incident, IncidentEvent.ACT)
    reason = f"nothing was trained since {ACTS[verb]} yet"
    return replace(incident, state=state, reason=reason, first_peak_step=_before_command(incident))


def _after(incident: Incident, event: IncidentEvent) -> IncidentState:
    return next_state("incident", INCIDENT_MOVES, incident.state, event)


def _opened(event: Opened, number: int, segment: SegmentId) -> Incident:
    own = {one.name for one in fields(Incident)}
    seen = {one.name: getattr(event, one.name) for one in fields(event) if one.name in own}
    peak = event.onset_step if event.peak_step is None else event.peak_step
    opened = Incident(
        number=number,
        state=IncidentState.OPEN,
        segment=segment,
        detected_step=event.step,
        newest_step=event.step,
        settled=False,
        zero=event.peak_loss == 0.0,
        worst_z={event.signal: event.z},
        anomalous_step=event.step,
        **{**seen, **asdict(event.judgement), "peak_step": peak},
    )
    return _judged(opened, event.step, event.judgement)


def _judged(incident: Incident, step: int, judgement: Judgement) -> Incident:
    """With the `judgement`, but that nothing is called recoverable whose cause does not heal."""
    cause = lasting_cause(incident.causes)
    stands = incident.state is IncidentState.OPEN and stands_out(incident, incident.excess)
    if judgement.kind is Kind.RECOVERABLE and stands and cause is not None:
        reason = f"{judgement.reason}; {CAUSE_WORDS[cause.cause]}, which training seldom heals"
        judgement = Judgement(Kind.LINGERING, cause.confidence, reason)
    return replace(incident, newest_step=step, **asdict(judgement))


def _revised(incident: Incident, event: Revised) -> Incident:
    state = _after(incident, IncidentEvent.REVISE)
    known = replace(incident, excess=event.excess, causes=event.causes or incident.causes)
    return replace(
        _judged(known, event.step, event.judgement),
        state=state,
        peak_step=incident.peak_step if event.peak_loss is None else event.peak_step,
        peak_loss=event.peak_loss,
        trend=event.trend or incident.trend,
        worst_z={**incident.worst_z, **event.worst_z},
        first_moves=_first_moves(incident, event.apart_since),
        settled=event.settled,
        anomalous_step=_anomalous_step(incident, event),
    )


def _before_command(incident: Incident) -> int:
    """The step of the peak before any command: a spike that comes back can come back higher."""
    known = incident.first_peak_step
    return incident.peak_step if known is None else known


def _first_moves(incident: Incident, apart_since: int | None) -> dict[str, int]:
    """Those of the opening, and since when ranks are apart, as long as they are."""
    rest = {name: step for name, step in incident.first_moves.items() if name != REPLICAS_APART}
    return rest if apart_since is None else {**rest, REPLICAS_APART: apart_since}


def _anomalous_step(incident: Incident, event: Revised) -> int:
    """The newest step whose loss still stood out, by what the record knows."""
    known = incident.anomalous_step or incident.onset_step
    if incident.state is IncidentState.RECOVERING:
        return known  # these steps are judged for the command's sake, in another segment
    if stands_out(incident, event.excess):
        return event.step
    return known if incident.recurrences else max(known, event.peak_step)  # one segment so far


def _recurred(incident: Incident, event: Recurred, segment: SegmentId) -> Incident:
    state = _after(incident, IncidentEvent.RECUR)
    known = replace(incident, excess=event.excess, causes=event.causes or incident.causes)
    return replace(
        _judged(known, event.step, event.judgement),
        state=state,
        settled=False,
        recurrences=incident.recurrences + 1,
        came_back=incident.came_back or not event.stayed,
        first_peak_step=_before_command(incident),
        anomalous_step=event.step,
        first_moves=_first_moves(incident, event.apart_since),
        recurred_segment=segment,
        recurred_step=event.onset_step,
        recurred_batches=incident.recurred_batches if event.stayed else event.onset_batches,
    )


def _closed(incident: Incident, event: Closed) -> Incident:
    closed = replace(
        incident,
        state=_after(incident, IncidentEvent.CLOSE),
        settled=True,
        closed_step=event.step,
        excess=event.excess,
        outcome=event.outcome,
        causes=event.causes or incident.causes,
    )
    return _judged(closed, event.step, event.judgement)
