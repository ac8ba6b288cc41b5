"""What closed incidents came to, as it is written down once.

Invariants: the caller holds the run's lock; the first figures of an incident stand.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_core.lifecycle.incident_figures import IncidentFigures
from spikeguard_protocol import Medium, SegmentPoint
from spikeguard_server.store.incidents import Attempts
from spikeguard_server.store.runs import RunRow
from spikeguard_server.store.tables.core import targets
from spikeguard_server.store.tables.incident_figures import incident_figures


def checkpoints_at(
    connection: sql.Connection, run_id: UUID, at: datetime, attempts: Attempts
) -> list[SegmentPoint]:
    """Where the checkpoints were taken that lay on disk at a time."""
    c = targets.c
    lay = (c.saved_at <= at) & (c.deleted_at.is_(None) | (c.deleted_at > at))
    rows = connection.execute(
        sql.select(c.attempt, c.segment, c.step)
        .where(c.run_id == run_id, c.medium == Medium.DISK.value, lay)
        .order_by(c.step)
    )
    return [SegmentPoint(attempts.segment(r.attempt, r.segment), r.step) for r in rows]


def write_figures(
    connection: sql.Connection, run: RunRow, incident: int, figures: IncidentFigures, now: datetime
) -> None:
    """Keep the figures, unless the incident's are kept already."""
    connection.execute(
        insert(incident_figures)
        .values(
            run_id=run.run_id, incident=incident, project=run.project, written_at=now,
            **asdict(figures),
        )
        .on_conflict_do_nothing()
    )  # fmt: skip
