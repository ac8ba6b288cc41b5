"""Incidents with their revisions, precursors and people's responses (acknowledgements, assignments,
comments), between rows and the domain's record.

The row is the fold of the incident's events and is written whole; revisions are
only ever added. Everybody reads an incident as `IncidentRow`, from the one query of `rows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql
from psycopg.types.json import Json
from sqlalchemy.dialects.postgresql import insert

from spikeguard_core.events import Precursor
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_protocol import (
    IncidentId,
    IncidentState,
    Kind,
    Outcome,
    ResponseAction,
    RunId,
    SegmentId,
    from_json,
    to_json,
)
from spikeguard_server.entities import IncidentRow, ResponseRow, RevisionRow
from spikeguard_server.errors import NotFound
from spikeguard_server.store.engine import Prepared, row_as, write
from spikeguard_server.store.paging import Row
from spikeguard_server.store.runs import Place
from spikeguard_server.store.tables import core as tables

MOST_REVISIONS: Final = 500  # of an incident, from its beginning and from its end, that are shown
MOST_DOUBTFUL: Final = 1000  # incidents of a run that cast doubt on its targets, the newest


@dataclass(frozen=True, slots=True)
class Attempts:
    """The ids of a run's attempts by their numbers, and back."""

    ids: Mapping[int, str]
    numbers: Mapping[str, int]

    def segment(self, attempt: int, segment: int) -> SegmentId:
        return SegmentId(self.ids[attempt], segment)


_A: Final = tables.attempts.c
_ATTEMPTS: Final = Prepared(
    sql.select(_A.number, _A.id).where(_A.run_id == sql.bindparam("run_id"))
)


def attempts_by_number(connection: sql.Connection, run_id: UUID) -> Attempts:
    rows = _ATTEMPTS.rows(connection, run_id=run_id)
    return Attempts(dict(rows), {id: number for number, id in rows})


_I = tables.incidents.c
_ASKED_BY: Final = ("number", "state", "kind", "outcome", "onset_step")  # of the domain's record
_asked_by = attrgetter(*_ASKED_BY)
SELECT: Final[sql.Select[Any]] = sql.select(
    tables.incidents, tables.runs.c.project, tables.runs.c.name
).join(tables.runs, tables.runs.c.run_id == _I.run_id)  # of incidents with their run


_MINE: Final = SELECT.where(_I.run_id == sql.bindparam("key"))
_ONE: Final = Prepared(_MINE.where(_I.number == sql.bindparam("of")))
_UNFORGIVEN: Final = sql.or_(_I.outcome.is_(None), _I.outcome == Outcome.RUN_ENDED.value)
_DOUBTFUL: Final = Prepared(
    _MINE.where(_UNFORGIVEN).order_by(_I.number.desc()).limit(MOST_DOUBTFUL)
)


def rows(connection: sql.Connection, query: sql.Select[Any]) -> list[IncidentRow]:
    """The incidents that `query`, made of `SELECT`, asks for."""
    return list(map(incident_row, connection.execute(query)))


def incident_row(row: Any) -> IncidentRow:
    """A row of `SELECT`."""
    record = {**row.record, **dict(zip(_ASKED_BY, _asked_by(row), strict=True))}
    run = RunId(row.project, row.name)
    return row_as(IncidentRow, row, run=run, incident=from_json(Incident, record))


def read_incident(connection: sql.Connection, id: IncidentId) -> IncidentRow:
    """One incident; raise `NotFound` if there is none."""
    if found := _ONE.rows(connection, key=tables.run_key(id.run), of=id.number):
        return incident_row(found[0])
    raise NotFound(f"There is no incident {id}", f"`spikeguard incidents {id.run}` lists them")


def open_incident(connection: sql.Connection, run_id: UUID) -> IncidentRow | None:
    """The incident of a run that is not closed; there is one at most."""
    unclosed = SELECT.where(_I.run_id == run_id, _I.state != IncidentState.CLOSED.value)
    return next(iter(rows(connection, unclosed)), None)


def doubtful_incidents(connection: sql.Connection, run_id: UUID) -> list[Incident]:
    """Incidents that are open, or ended without a word about the weights; the newest
    `MOST_DOUBTFUL`."""
    return [incident_row(row).incident for row in _DOUBTFUL.rows(connection, key=run_id)]


def save_incident(
    connection: sql.Connection,
    run_id: UUID,
    incident: Incident,
    attempt: int,
    now: datetime,
    history: Sequence[Incident] = (),
) -> None:
    """Write the incident as it stands; `attempt`: number of the one it began in; `now` is when it
    opened or closed, if it just did; `history`: what it was held to be since it was saved last."""
    told = to_json(incident)
    columns = {name: told.pop(name, None) for name in _ASKED_BY}
    row = {
        **columns, "record": Json(told), "attempt": attempt, "segment": incident.segment.number,
        "cause": incident.causes[0].cause.value if incident.causes else None,
        "closed_at": now if incident.state is IncidentState.CLOSED else None,
        "run_id": run_id, "opened_at": now,
    }  # fmt: skip
    revisions = [
        (_REVISE, {
            "run_id": run_id, "incident": held.number, "at": now, "step": held.newest_step,
            "kind": held.kind.value, "confidence": held.confidence, "reason": held.reason,
        })
        for held in history
    ]  # fmt: skip
    write(connection, (_SAVE, row), *revisions)


_CHANGING: Final = (*_ASKED_BY, "record", "attempt", "segment", "cause", "closed_at")
_ROW: Final = (*_CHANGING, "run_id", "opened_at")
_SAVE: Final = f"""
INSERT INTO incidents ({", ".join(_ROW)})
VALUES ({", ".join(f"%({name})s" for name in _ROW)})
ON CONFLICT (run_id, number) DO UPDATE
SET {", ".join(f"{name} = excluded.{name}" for name in _CHANGING)}
"""
_REVISE: Final = """
INSERT INTO incident_revisions (run_id, incident, number, step, at, kind, confidence, reason)
SELECT %(run_id)s, %(incident)s, coalesce(max(number), 0) + 1, %(step)s, %(at)s, %(kind)s,
       %(confidence)s, %(reason)s
FROM incident_revisions WHERE run_id = %(run_id)s AND incident = %(incident)s
"""


def revisions_of(connection: sql.Connection, row: IncidentRow) -> list[RevisionRow]:
    """What an incident was held to be, oldest first, the first `MOST_REVISIONS` and the last: while
    a loss climbs there is one every few steps, for as long as the incident is open."""
    table = tables.incident_revisions
    c = table.c
    mine = (c.run_id == row.run_id) & (c.incident == row.number)
    newest = sql.select(sql.func.max(c.number)).where(mine).scalar_subquery()
    shown = (c.number <= MOST_REVISIONS) | (c.number > newest - MOST_REVISIONS)
    found = connection.execute(sql.select(table).where(mine, shown).order_by(c.number))
    return [row_as(RevisionRow, r, kind=Kind(r.kind)) for r in found]


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
    which = (incident, run_id, onset.attempt, onset.segment, onset.step - steps_before)
    write(connection, (_CLAIM, which))


_CLAIM: Final = """
UPDATE precursors SET incident = %s
WHERE run_id = %s AND attempt = %s AND segment = %s AND step >= %s AND incident IS NULL
"""


def unclaimed_precursors(
    connection: sql.Connection, run_id: UUID, since_step: int
) -> Sequence[Row]:
    """Attempt, its id, segment and step of warnings from `since_step` on that no incident
    followed."""
    return _UNCLAIMED.rows(connection, key=run_id, since=since_step)


_W: Final = tables.precursors.c
_UNCLAIMED: Final = Prepared(
    sql.select(_W.attempt, _A.id, _W.segment, _W.step)
    .join(tables.attempts, (_A.run_id == _W.run_id) & (_A.number == _W.attempt))
    .where(_W.run_id == sql.bindparam("key"), _W.incident.is_(None))
    .where(_W.step >= sql.bindparam("since"))
    .distinct()
    .limit(1000)
)


def followed_incidents(connection: sql.Connection, run_id: UUID) -> list[tuple[int, int]]:
    """(number, step up to which samples are kept) of closed incidents that still wait for some."""
    query = sql.select(_I.number, _I.followed_to).where(
        _I.run_id == run_id, _I.followed_to.is_not(None)
    )
    return [(row.number, row.followed_to) for row in connection.execute(query.order_by(_I.number))]


def date_report(connection: sql.Connection, run_id: UUID, number: int) -> None:
    """What the post-mortem of a closed incident says is as of now: it changed, or is new."""
    update_incident(connection, (run_id, number), reported_at=sql.func.clock_timestamp())


def take_uncounted(connection: sql.Connection, limit: int) -> Sequence[tuple[UUID, int]]:
    """Run and number of closed incidents that nobody has counted yet, and count as such from now
    on."""
    key = (_I.run_id, _I.number)
    some = sql.select(*key).where(_I.closed_at.is_not(None), ~_I.counted).limit(limit)
    mine = sql.tuple_(*key).in_(some.with_for_update(skip_locked=True))
    taken = sql.update(tables.incidents).where(mine).values(counted=True).returning(*key)
    return [(row.run_id, row.number) for row in connection.execute(taken)]


MAX_RESPONSES: Final = 200  # the newest of an incident
_P: Final = tables.responses.c


def update_incident(connection: sql.Connection, incident: tuple[UUID, int], **columns: Any) -> None:
    """Write what is no part of its record: who looks at it (`acknowledged_at`, `acknowledged_by`),
    whose it is (`assignee`), up to which step samples of it are still to come (`followed_to`)."""
    mine = sql.tuple_(_I.run_id, _I.number) == incident
    connection.execute(sql.update(tables.incidents).where(mine).values(**columns))


def add_response(
    connection: sql.Connection, run_id: UUID, incident: int, action: ResponseAction, person: str,
    **said: str | None,
) -> ResponseRow:  # fmt: skip
    """Write what a person did or `said`: `assignee`, `text`."""
    before = sql.select(sql.func.count()).where(_P.run_id == run_id, _P.incident == incident)
    written = sql.insert(tables.responses).values(
        run_id=run_id, incident=incident, number=before.scalar_subquery() + 1,
        at=sql.func.clock_timestamp(), person=person, action=action.value, **said,
    )  # fmt: skip
    return _response(connection.execute(written.returning(tables.responses)).one())


def read_responses(connection: sql.Connection, run_id: UUID, incident: int) -> list[ResponseRow]:
    """The newest responses to an incident, oldest first."""
    newest = sql.select(tables.responses).where(_P.run_id == run_id, _P.incident == incident)
    found = connection.execute(newest.order_by(_P.number.desc()).limit(MAX_RESPONSES)).all()
    return [_response(row) for row in reversed(found)]


def _response(row: Any) -> ResponseRow:
    return row_as(ResponseRow, row, action=ResponseAction(row.action))
