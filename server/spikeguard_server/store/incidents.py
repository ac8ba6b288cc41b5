"""Incidents with their revisions and precursors, between rows and the domain's record.

Law: the row is the fold of the incident's events and is written whole; revisions and copied
samples are only ever added.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_core.events import Precursor, Trend
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_protocol import BatchRange, IncidentState, Kind, Outcome, SegmentId
from spikeguard_server.store.causes import explained_columns, first_layer_of, ranking_of
from spikeguard_server.store.detectors import Place
from spikeguard_server.store.stored_text import storable
from spikeguard_server.store.tables import core as tables

MOST_REVISIONS: Final = 500  # of an incident, from its beginning and from its end, that are shown
MOST_PRECURSORS: Final = 1000  # of an incident, that are shown
MOST_DOUBTFUL: Final = 1000  # incidents of a run that cast doubt on its targets, the newest


@dataclass(frozen=True, slots=True)
class Attempts:
    """The ids of a run's attempts by their numbers, and back."""

    ids: Mapping[int, str]

    def number(self, attempt: str) -> int:
        return next(number for number, id in self.ids.items() if id == attempt)

    def segment(self, attempt: int, segment: int) -> SegmentId:
        return SegmentId(self.ids[attempt], segment)


def attempts_by_number(connection: sql.Connection, run_id: UUID) -> Attempts:
    c = tables.attempts.c
    rows = connection.execute(sql.select(c.number, c.id).where(c.run_id == run_id))
    return Attempts({row.number: row.id for row in rows})


def attempts_of_runs(
    connection: sql.Connection, run_ids: Collection[UUID]
) -> Mapping[UUID, Attempts]:
    """The same of several runs, in one query."""
    c, found = tables.attempts.c, {run_id: dict[int, str]() for run_id in run_ids}
    query = sql.select(c.run_id, c.number, c.id).where(c.run_id.in_(run_ids))
    for row in connection.execute(query) if run_ids else ():
        found[row.run_id][row.number] = row.id
    return {run_id: Attempts(ids) for run_id, ids in found.items()}


def find_incident(
    connection: sql.Connection, run_id: UUID, number: int, attempts: Attempts
) -> Incident | None:
    """The incident as the domain sees it."""
    c = tables.incidents.c
    row = connection.execute(
        sql.select(tables.incidents).where(c.run_id == run_id, c.number == number)
    ).one_or_none()
    return None if row is None else incident_of(row, attempts)


def doubtful_incidents(
    connection: sql.Connection, run_id: UUID, attempts: Attempts
) -> list[Incident]:
    """Incidents that are open, or ended without a word about the weights; the newest
    `MOST_DOUBTFUL`."""
    c = tables.incidents.c
    unforgiven = sql.or_(c.outcome.is_(None), c.outcome == Outcome.RUN_ENDED.value)
    rows = connection.execute(
        sql.select(tables.incidents)
        .where(c.run_id == run_id, unforgiven)
        .order_by(c.number.desc())
        .limit(MOST_DOUBTFUL)
    )
    return [incident_of(row, attempts) for row in rows]


def incident_of(row: Any, attempts: Attempts) -> Incident:
    """A row of `incidents` as the domain sees it."""
    trend = None
    if row.trend_step is not None:
        trend = Trend(
            row.trend_step, row.trend_level, row.trend_slope, row.trend_scale, row.trend_band
        )
    recurred = None
    if row.recurred_attempt is not None:
        recurred = attempts.segment(row.recurred_attempt, row.recurred_segment)
    return Incident(
        number=row.number,
        state=IncidentState(row.state),
        segment=attempts.segment(row.attempt, row.segment),
        onset_step=row.onset_step,
        onset_batches=_range(row.onset_first, row.onset_end),
        detected_step=row.detected_step,
        peak_step=row.peak_step,
        newest_step=row.newest_step,
        kind=Kind(row.kind),
        confidence=row.confidence,
        reason=row.reason,
        signal=row.signal,
        pre_loss=row.pre_loss,
        peak_loss=row.peak_loss,
        excess=row.excess,
        trend=trend,
        dropped=row.dropped,
        settled=row.settled,
        recurrences=row.recurrences,
        first_peak_step=row.first_peak_step,
        worst_z=dict(zip(row.z_names, row.z_values, strict=True)),
        first_moves=dict(zip(row.move_names, row.move_steps, strict=True)),
        closed_step=row.closed_step,
        outcome=None if row.outcome is None else Outcome(row.outcome),
        anomalous_step=row.anomalous_step,
        recurred_segment=recurred,
        recurred_step=row.recurred_step,
        recurred_batches=_range(row.recurred_first, row.recurred_end),
        causes=ranking_of(row),
        first_layer=first_layer_of(row),
    )


def save_incident(
    connection: sql.Connection,
    run_id: UUID,
    incident: Incident,
    attempts: Attempts,
    now: datetime,
) -> None:
    """Write the incident as it stands; `now` is when it opened or closed, if it just did."""
    closed = incident.state is IncidentState.CLOSED
    fixed = {"opened_at": now, "revisions": 0, "commands": 0, "report_failures": 0}
    changing = _columns(incident, attempts)
    changing["closed_at"] = now if closed else None
    written = insert(tables.incidents).values(run_id=run_id, **changing, **fixed)
    connection.execute(
        written.on_conflict_do_update(index_elements=["run_id", "number"], set_=changing)
    )


def _columns(incident: Incident, attempts: Attempts) -> dict[str, Any]:
    trend, onset, again = incident.trend, incident.onset_batches, incident.recurred_batches
    recurred = incident.recurred_segment
    return {
        "number": incident.number,
        "state": incident.state.value,
        "attempt": attempts.number(incident.segment.attempt),
        "segment": incident.segment.number,
        "onset_step": incident.onset_step,
        "onset_first": onset.first if onset else None,
        "onset_end": onset.end if onset else None,
        "detected_step": incident.detected_step,
        "newest_step": incident.newest_step,
        **_spike(incident),
        "signal": incident.signal,
        "pre_loss": incident.pre_loss,
        "trend_step": trend.step if trend else None,
        "trend_level": trend.level if trend else None,
        "trend_slope": trend.slope if trend else None,
        "trend_scale": trend.scale if trend else None,
        "trend_band": trend.band if trend else None,
        "dropped": incident.dropped,
        "anomalous_step": incident.anomalous_step,
        "recurrences": incident.recurrences,
        "first_peak_step": incident.first_peak_step,
        "recurred_attempt": attempts.number(recurred.attempt) if recurred else None,
        "recurred_segment": recurred.number if recurred else None,
        "recurred_step": incident.recurred_step,
        "recurred_first": again.first if again else None,
        "recurred_end": again.end if again else None,
        "z_names": list(incident.worst_z),
        "z_values": list(incident.worst_z.values()),
        "move_names": list(incident.first_moves),
        "move_steps": list(incident.first_moves.values()),
        **explained_columns(incident),
        "closed_step": incident.closed_step,
        "outcome": None if incident.outcome is None else incident.outcome.value,
    }


def _spike(incident: Incident) -> dict[str, Any]:
    return {
        "kind": incident.kind.value,
        "confidence": incident.confidence,
        "reason": storable(incident.reason),
        "peak_step": incident.peak_step,
        "peak_loss": incident.peak_loss,
        "excess": incident.excess,
        "settled": incident.settled,
    }


def add_revisions(
    connection: sql.Connection, run_id: UUID, history: Sequence[Incident], now: datetime
) -> None:
    """Keep what one incident was held to be, step by step."""
    if not history:
        return
    c, incident = tables.incidents.c, history[0].number
    newest = connection.execute(
        sql.update(tables.incidents)
        .where(c.run_id == run_id, c.number == incident)
        .values(revisions=c.revisions + len(history))
        .returning(c.revisions)
    ).scalar_one()
    fixed = {"run_id": run_id, "incident": incident, "at": now}
    rows = [
        {**fixed, "number": number, "step": held.newest_step, **_spike(held)}
        for number, held in enumerate(history, newest - len(history) + 1)
    ]
    connection.execute(sql.insert(tables.incident_revisions), rows)


def shown_revisions(written: int) -> sql.ColumnElement[bool]:
    """Which of the revisions that an incident has come to anybody is shown: while a loss climbs
    there is one every few steps, for as long as the incident is open."""
    number = tables.incident_revisions.c.number
    return (number <= MOST_REVISIONS) | (number > written - MOST_REVISIONS)


def add_precursor(
    connection: sql.Connection,
    run_id: UUID,
    place: Place,
    precursor: Precursor,
    incident: int | None,
    now: datetime,
) -> None:
    connection.execute(
        insert(tables.precursors)
        .values(
            run_id=run_id, attempt=place.attempt, segment=place.segment, step=precursor.step,
            signal=precursor.signal, value=precursor.value, z=precursor.z, at=now,
            incident=incident,
        )
        .on_conflict_do_nothing()
    )  # fmt: skip


def claim_precursors(
    connection: sql.Connection, run_id: UUID, incident: int, onset: Place, steps_before: int
) -> None:
    """Warnings shortly before the onset belong to the incident that followed."""
    c = tables.precursors.c
    connection.execute(
        sql.update(tables.precursors)
        .where(c.run_id == run_id, c.attempt == onset.attempt, c.segment == onset.segment)
        .where(c.step >= onset.step - steps_before, c.incident.is_(None))
        .values(incident=incident)
    )


def unclaimed_precursors(
    connection: sql.Connection, run_id: UUID, since_step: int
) -> list[tuple[int, int, int]]:
    """(attempt, segment, step) of warnings from `since_step` on that no incident followed."""
    c = tables.precursors.c
    rows = connection.execute(
        sql.select(c.attempt, c.segment, c.step)
        .where(c.run_id == run_id, c.incident.is_(None), c.step >= since_step)
        .distinct()
        .limit(1000)
    )
    return [(row.attempt, row.segment, row.step) for row in rows]


def follow_incident(connection: sql.Connection, run_id: UUID, number: int, to: int | None) -> None:
    """Samples are kept with the closed incident up to step `to`; None = no longer."""
    c = tables.incidents.c
    connection.execute(
        sql.update(tables.incidents)
        .where(c.run_id == run_id, c.number == number)
        .values(followed_to=to)
    )


def followed_incidents(connection: sql.Connection, run_id: UUID) -> list[tuple[int, int]]:
    """(number, step up to which samples are kept) of closed incidents that still wait for some."""
    c = tables.incidents.c
    rows = connection.execute(
        sql.select(c.number, c.followed_to)
        .where(c.run_id == run_id, c.followed_to.is_not(None))
        .order_by(c.number)
    )
    return [(row.number, row.followed_to) for row in rows]


def warned_step(connection: sql.Connection, run_id: UUID, since: Place) -> int | None:
    """The first warning of a segment from step `since` on that no incident followed yet."""
    c = tables.precursors.c
    step: int | None = connection.execute(
        sql.select(sql.func.min(c.step))
        .where(c.run_id == run_id, c.incident.is_(None), c.attempt == since.attempt)
        .where(c.segment == since.segment, c.step >= since.step)
    ).scalar_one()
    return step


def _range(first: int | None, end: int | None) -> BatchRange | None:
    return None if first is None or end is None else BatchRange(first, end)
