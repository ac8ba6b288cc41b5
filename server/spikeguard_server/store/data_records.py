"""The sources that a run left out in its data incidents, as its record names them.

Law: reads only, and bounded: the first names of the first batches of every command.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.policy.finding import NOTHING_NAMED, DataRecord, LeftOut, diagnose
from spikeguard_core.policy.remedies import DATA
from spikeguard_core.policy.settings import Policy
from spikeguard_protocol import CommandId, ProtocolError
from spikeguard_server.store.incidents import find_incident
from spikeguard_server.store.tables.skipped import skipped_batches

MOST_NAMES: Final = 16  # of a batch on one rank
MOST_BATCHES: Final = 64  # of a command, counted on every rank
MOST_ROWS: Final = 1_000
MOST_LOOKED_AT: Final = 50_000  # rows of the run, the newest: of 1,000 ranks 50 batches
MOST_EARLIER: Final = 10  # incidents that are compared, the newest

_C = skipped_batches.c


def data_record_of(
    connection: sql.Connection, run_id: UUID, incident: Incident, policy: Policy
) -> DataRecord:
    """What the run names of the data of `incident` and of earlier ones that are put down to theirs;
    nothing where the data is not what is blamed."""
    if not _blames_data(incident, policy):
        return NOTHING_NAMED
    names = _names_by_incident(connection, run_id)
    earlier = [number for number in sorted(names) if number < incident.number][-MOST_EARLIER:]
    found = [find_incident(connection, run_id, number) for number in earlier]
    blamed = [
        LeftOut(one.number, tuple(names[one.number]))
        for one in found
        if one is not None and _blames_data(one, policy)
    ]
    return DataRecord(tuple(names.get(incident.number, ())), tuple(blamed))


def _blames_data(incident: Incident, policy: Policy) -> bool:
    return diagnose(incident, policy).remedy.diagnosis in DATA


def _names_by_incident(connection: sql.Connection, run_id: UUID) -> dict[int, list[str]]:
    """Incident -> names of what its commands left out."""
    order = (_C.told_at.desc(), _C.batch_first.desc(), _C.rank.desc())
    mine = sql.select(skipped_batches).where(_C.run_id == run_id).order_by(*order)
    told = mine.limit(MOST_LOOKED_AT).subquery().c
    place = sql.func.row_number().over(
        partition_by=told.command, order_by=(told.batch_first, told.rank)
    )
    names = told.names[1:MOST_NAMES].label("names")
    named = told.command.is_not(None) & (sql.func.cardinality(told.names) > 0)
    rows = (
        sql.select(told.command, names, told.told_at, place.label("place")).where(named).subquery()
    )
    first = sql.select(rows.c.command, rows.c.names).where(rows.c.place <= MOST_BATCHES)
    found: dict[int, list[str]] = {}
    for row in connection.execute(first.order_by(rows.c.told_at.desc()).limit(MOST_ROWS)):
        number = _incident_of(row.command)
        if number is not None:
            found.setdefault(number, []).extend(row.names)
    return found


def _incident_of(command: str) -> int | None:
    """The incident that a command belongs to; None where the job wrote something else."""
    try:
        return CommandId.parse(command).incident.number
    except ProtocolError:
        return None
