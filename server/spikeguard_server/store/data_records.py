"""The sources in the data of a run's incidents, as its record names them.

Law: reads only, and bounded: the batches about an onset, and the first names of the first batches
of every command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import sqlalchemy as sql

from spikeguard_core.diagnosis.batch_evidence import onset_batch
from spikeguard_core.lifecycle.incident import Incident
from spikeguard_core.policy.data_sources import NOTHING_NAMED, DataRecord, IncidentData
from spikeguard_core.policy.finding import diagnose
from spikeguard_core.policy.remedies import DATA
from spikeguard_core.policy.settings import Policy
from spikeguard_protocol import BatchDetail, CommandId, ProtocolError
from spikeguard_server.store.batches import read_batches
from spikeguard_server.store.incidents import SELECT, find_row, rows
from spikeguard_server.store.tables.core import incidents
from spikeguard_server.store.tables.skipped import skipped_batches

MOST_NAMES: Final = 16  # of a batch on one rank
MOST_BATCHES: Final = 64  # of a command, counted on every rank
MOST_ROWS: Final = 1_000
MOST_LOOKED_AT: Final = 50_000  # rows of the run, the newest: of 1,000 ranks 50 batches
MOST_EARLIER: Final = 10  # incidents that are compared, the newest

_C, _I = skipped_batches.c, incidents.c
_CAUSES: Final = tuple(diagnosis.value for diagnosis in DATA)


def data_record_of(
    connection: sql.Connection, run_id: UUID, incident: Incident, policy: Policy
) -> DataRecord:
    """What the run names of the data of `incident` and of earlier ones that are put down to theirs;
    nothing where the data is not what is blamed."""
    if not _blames_data(incident, policy):
        return NOTHING_NAMED
    asked = (_I.run_id == run_id) & (_I.number < incident.number) & _I.cause.in_(_CAUSES)
    newest = rows(connection, SELECT.where(asked).order_by(_I.number.desc()).limit(MOST_EARLIER))
    before = [row for row in reversed(newest) if _blames_data(row.incident, policy)]
    mine = find_row(connection, run_id, incident.number)
    if mine is None or not before:
        return NOTHING_NAMED
    names = {
        row.number: _worst(read_batches(connection, run_id, row.place, row.incident.onset_step, 0))
        for row in (*before, mine)
    }
    if not all(names.values()):
        left_out = _left_out(connection, run_id)
        names = {number: told or left_out.get(number, ()) for number, told in names.items()}
    earlier = (IncidentData(row.number, names[row.number]) for row in before)
    near = read_batches(connection, run_id, mine.place, incident.onset_step)
    calm = (batch.names for batch in near if batch.step < incident.onset_step)
    return DataRecord(
        names[mine.number],
        tuple(one for one in earlier if one.names),
        tuple(named for named in calm if named),
    )


def _blames_data(incident: Incident, policy: Policy) -> bool:
    return diagnose(incident, policy).remedy.diagnosis in DATA


def _worst(batches: Sequence[BatchDetail]) -> tuple[str, ...]:
    """The names on the rank that the onset hurt most; of its worst sequence alone, where each
    sequence has its name."""
    if not batches or (batch := onset_batch(batches, batches[0].step)) is None:
        return ()
    if batch.worst is not None and not batch.names_cut and len(batch.names) == batch.sequences:
        return batch.names[batch.worst : batch.worst + 1]
    return batch.names


def _left_out(connection: sql.Connection, run_id: UUID) -> dict[int, tuple[str, ...]]:
    """Incident -> names of what its commands left out."""
    order = (_C.told_at.desc(), _C.batch_first.desc(), _C.rank.desc())
    mine = sql.select(skipped_batches).where(_C.run_id == run_id).order_by(*order)
    told = mine.limit(MOST_LOOKED_AT).subquery().c
    place = sql.func.row_number().over(
        partition_by=told.command, order_by=(told.batch_first, told.rank)
    )
    names = told.names[1:MOST_NAMES].label("names")
    named = told.command.is_not(None) & (sql.func.cardinality(told.names) > 0)
    entries = (
        sql.select(told.command, names, told.told_at, place.label("place")).where(named).subquery()
    ).c
    first = sql.select(entries.command, entries.names).where(entries.place <= MOST_BATCHES)
    found: dict[int, tuple[str, ...]] = {}
    for row in connection.execute(first.order_by(entries.told_at.desc()).limit(MOST_ROWS)):
        number = _incident_of(row.command)
        if number is not None:
            found[number] = (*found.get(number, ()), *row.names)
    return found


def _incident_of(command: str) -> int | None:
    """The incident that a command belongs to; None where the job wrote something else."""
    try:
        return CommandId.parse(command).incident.number
    except ProtocolError:
        return None
