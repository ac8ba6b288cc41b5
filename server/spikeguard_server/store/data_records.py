"""The sources in the data of a run's incidents, as its record names them.

Law: reads only, and bounded: the batches about an onset.
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
from spikeguard_protocol import BatchDetail
from spikeguard_server.store.batches import read_batches
from spikeguard_server.store.incidents import SELECT, find_row, rows
from spikeguard_server.store.tables.core import incidents

MOST_EARLIER: Final = 10  # incidents that are compared, the newest

_I = incidents.c
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
