"""Post-mortems as they were written."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects.postgresql import insert

from spikeguard_server import tables


def write_report(
    connection: sql.Connection,
    run_id: UUID,
    incident: int,
    format: str,
    body: bytes,
    now: datetime,
) -> None:
    """Keep the document; a later writing takes the place of an earlier one."""
    written = insert(tables.reports).values(
        run_id=run_id, incident=incident, format=format, body=body, written_at=now
    )
    connection.execute(
        written.on_conflict_do_update(
            index_elements=["run_id", "incident", "format"],
            set_={"body": body, "written_at": now},
        )
    )


def unreported_incidents(connection: sql.Connection) -> list[tuple[UUID, int]]:
    """Closed incidents without a post-mortem, oldest first; read without a lock."""
    i, r = tables.incidents.c, tables.reports.c
    missing = ~sql.exists().where(r.run_id == i.run_id, r.incident == i.number)
    rows = connection.execute(
        sql.select(i.run_id, i.number)
        .where(i.state == "closed", missing)
        .order_by(i.closed_at)
        .limit(100)
    )
    return [(row.run_id, row.number) for row in rows]
