"""Incidents as the API shows them: the list, one with its evidence, its commands, its report.

Law: reads only. A proposal that can no longer be approved is shown as none, whatever the ticker
has got round to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol import STANDARD_SIGNALS, IncidentState, RunId
from spikeguard_server.errors import NotFound
from spikeguard_server.store.incidents import MOST_PRECURSORS, shown_revisions
from spikeguard_server.store.reads.history import PageWanted, Row
from spikeguard_server.store.reads.runs import cut, waiting
from spikeguard_server.store.tables.core import (
    attempts,
    command_revisions,
    commands,
    incident_revisions,
    incident_samples,
    incidents,
    precursors,
    reports,
    runs,
)
from spikeguard_server.store.tables.responses import responders

Key = tuple[UUID, int]  # run, incident
MOST_REVISIONS: Final = 20  # the newest of a command, which every list that names it carries

_HAD: Final = ("acknowledged_at", "acknowledged_by", "assignee", "assigned_at", "assigned_by")


@dataclass(frozen=True, slots=True)
class CommandFacts:
    """A command with what it said before."""

    row: Row
    revisions: Sequence[Row]


@dataclass(frozen=True, slots=True)
class EvidenceRows:
    """What was measured of an incident, beside its own row."""

    revisions: Sequence[Row]
    precursors: Sequence[Row]
    peaks: Mapping[str, float] = field(default_factory=dict)  # signal -> highest value copied
    has_report: bool = False


def list_incidents(
    connection: sql.Connection,
    page: PageWanted,
    *,
    project: str | None = None,
    run_id: UUID | None = None,
    states: Sequence[IncidentState] = (),
) -> tuple[Sequence[Row], str | None]:
    """Incidents, newest first, and the cursor of the next page."""
    order = (incidents.c.opened_at, incidents.c.run_id, incidents.c.number)
    query = incident_rows().order_by(*(column.desc() for column in order))
    if project is not None:
        query = query.where(runs.c.project == project)
    if run_id is not None:
        query = query.where(incidents.c.run_id == run_id)
    if states:
        query = query.where(incidents.c.state.in_([state.value for state in states]))
    if page.after is not None:
        query = query.where(sql.tuple_(*order) < page.after)
    found = connection.execute(query.limit(page.limit + 1)).all()
    return cut(found, page.limit, lambda r: (r.opened_at.isoformat(), r.run_id, r.number))


def list_incidents_by_attention(
    connection: sql.Connection,
    limit: int,
    *,
    project: str | None = None,
    run_id: UUID | None = None,
    states: Sequence[IncidentState] = (),
) -> Sequence[Row]:
    """Open incidents first, the newest first and the projects in turn; then closed ones, the newest
    first."""
    i, closed = incidents.c, IncidentState.CLOSED
    newest = (i.opened_at.desc(), i.run_id, i.number)
    some = incident_rows()
    if project is not None:
        some = some.where(runs.c.project == project)
    if run_id is not None:
        some = some.where(i.run_id == run_id)
    if states:
        some = some.where(i.state.in_([state.value for state in states]))
    turn = sql.func.row_number().over(partition_by=runs.c.project, order_by=newest)
    # As the index of open incidents says it.
    open_ones = some.where(sql.text("incidents.state <> 'closed'")).order_by(turn, *newest)
    found = connection.execute(open_ones.limit(limit)).all()
    if states and closed not in states:
        return found
    over = some.where(i.state == closed.value).order_by(*(column.desc() for column in (
        i.opened_at, i.run_id, i.number
    )))  # fmt: skip
    return [*found, *connection.execute(over.limit(limit - len(found)))]


def read_incident(connection: sql.Connection, run_id: UUID, run: RunId, number: int) -> Row:
    """One incident; raise `NotFound` if there is none of this number."""
    query = incident_rows().where(incidents.c.run_id == run_id, incidents.c.number == number)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound(
            f"There is no incident {run}#{number}", f"`spikeguard incidents {run}` lists them"
        )
    return row


def read_evidence(connection: sql.Connection, row: Row) -> EvidenceRows:
    """What backs an incident up."""
    return EvidenceRows(
        revisions=_revisions_of(connection, row),
        precursors=_precursors_of(connection, row),
        peaks=_peaks(connection, row),
        has_report=row.reported_at is not None,
    )


def read_commands(
    connection: sql.Connection, keys: Sequence[Key], *, waiting_only: bool = False
) -> Mapping[Key, list[CommandFacts]]:
    """The commands of some incidents, oldest first."""
    if not keys:
        return {}
    mine = sql.tuple_(commands.c.run_id, commands.c.incident).in_(keys)
    query = _commands().where(mine).order_by(commands.c.incident, commands.c.number)
    rows = connection.execute(query.where(in_time()) if waiting_only else query).all()
    before = _revisions(connection, [(r.run_id, r.incident, r.number) for r in rows])
    found: dict[Key, list[CommandFacts]] = {}
    for row in rows:
        facts = CommandFacts(row, before.get((row.run_id, row.incident, row.number), []))
        found.setdefault((row.run_id, row.incident), []).append(facts)
    return found


def read_report(connection: sql.Connection, row: Row, form: str) -> bytes | None:
    """The post-mortem as it was drawn; None where it was not, or what it says was settled since."""
    c = reports.c
    mine = (c.run_id == row.run_id) & (c.incident == row.number)
    query = sql.select(c.body).where(mine, c.format == form, c.written_at == row.reported_at)
    return connection.scalar(query)


def incident_rows() -> sql.Select[Any]:
    """Incidents with their run, their attempt's id, and who has them."""
    of_run = runs.c.run_id == incidents.c.run_id
    of_attempt = sql.and_(
        attempts.c.run_id == incidents.c.run_id, attempts.c.number == incidents.c.attempt
    )
    of_incident = sql.and_(
        responders.c.run_id == incidents.c.run_id, responders.c.incident == incidents.c.number
    )
    return (
        sql.select(incidents, runs.c.project, runs.c.name, attempts.c.id.label("attempt_id"))
        .add_columns(*(responders.c[name] for name in _HAD))
        .join(runs, of_run)
        .join(attempts, of_attempt)
        .outerjoin(responders, of_incident)
    )


def _commands() -> sql.Select[Any]:
    left = sql.extract("epoch", commands.c.expires_at - sql.func.now())
    of_attempt = sql.and_(
        attempts.c.run_id == commands.c.run_id, attempts.c.number == commands.c.attempt
    )
    return (
        sql.select(
            commands,
            sql.cast(left, sql.Double).label("expires_in_s"),
            attempts.c.id.label("attempt_id"),
            runs.c.project,
            runs.c.name,
        )
        .join(runs, runs.c.run_id == commands.c.run_id)
        .join(attempts, of_attempt)
    )


def in_time() -> sql.ColumnElement[bool]:
    """Whether a command waits and can still be approved, where its run stands."""
    steps = commands.c.expires_at_step
    return sql.and_(waiting(), steps.is_(None) | (steps > sql.func.coalesce(runs.c.last_step, 0)))


def _revisions(
    connection: sql.Connection, keys: Sequence[tuple[UUID, int, int]]
) -> dict[tuple[UUID, int, int], list[Row]]:
    if not keys:
        return {}
    c = command_revisions.c
    k = commands.c
    of_command = (k.run_id == c.run_id) & (k.incident == c.incident) & (k.number == c.command)
    query = (
        sql.select(command_revisions)
        .join(commands, of_command)
        .where(sql.tuple_(c.run_id, c.incident, c.command).in_(keys))
        .where(c.number > k.revision - MOST_REVISIONS)
    )
    found: dict[tuple[UUID, int, int], list[Row]] = {}
    for row in connection.execute(query.order_by(c.number)):
        found.setdefault((row.run_id, row.incident, row.command), []).append(row)
    return found


def _revisions_of(connection: sql.Connection, row: Row) -> Sequence[Row]:
    c = incident_revisions.c
    mine = (c.run_id == row.run_id) & (c.incident == row.number) & shown_revisions(row.revisions)
    return connection.execute(sql.select(incident_revisions).where(mine).order_by(c.number)).all()


def _precursors_of(connection: sql.Connection, row: Row) -> Sequence[Row]:
    c = precursors.c
    mine = sql.select(precursors).where(c.run_id == row.run_id, c.incident == row.number)
    return connection.execute(mine.order_by(c.step).limit(MOST_PRECURSORS)).all()


def _peaks(connection: sql.Connection, row: Row) -> dict[str, float]:
    """Of every signal that moved; Postgres holds NaN to be the highest, and so do we."""
    c = incident_samples.c
    moved = [name for name in STANDARD_SIGNALS if name in {*row.z_names, *row.move_names}]
    if not moved:
        return {}
    query = sql.select(*(sql.func.max(c[name]) for name in moved)).where(
        c.run_id == row.run_id, c.incident == row.number, c.step >= row.onset_step
    )
    peaks = zip(moved, connection.execute(query).one(), strict=True)
    return {name: peak for name, peak in peaks if peak is not None}


def open_incident(connection: sql.Connection, run_id: UUID) -> Row | None:
    """The incident of a run that is not closed; there is one at most."""
    query = incident_rows().where(incidents.c.run_id == run_id, incidents.c.state != "closed")
    return connection.execute(query).one_or_none()
