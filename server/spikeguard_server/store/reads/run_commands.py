"""Commands of a run itself as the API shows them.

Law: reads only.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import sqlalchemy as sql

from spikeguard_protocol import RUN_ITSELF
from spikeguard_server.store.reads.history import PageWanted, Row, write_cursor
from spikeguard_server.store.reads.inbox import FAILED
from spikeguard_server.store.runs import ENDED
from spikeguard_server.store.tables.core import attempts, commands, runs

_C = commands.c


def _shown() -> sql.Select[tuple[object, ...]]:
    left = sql.cast(sql.extract("epoch", _C.expires_at - sql.func.now()), sql.Double)
    of_attempt = (attempts.c.run_id == _C.run_id) & (attempts.c.number == _C.attempt)
    return (
        sql.select(commands, left.label("expires_in_s"), attempts.c.id.label("attempt_id"))
        .add_columns(runs.c.project, runs.c.name)
        .join(runs, runs.c.run_id == _C.run_id)
        .join(attempts, of_attempt)
        .where(_C.incident == RUN_ITSELF)
    )


def list_run_commands(
    connection: sql.Connection, run_id: UUID, page: PageWanted
) -> tuple[Sequence[Row], str | None]:
    """What was ordered of a run, newest first, and the cursor of the next page."""
    query = _shown().where(_C.run_id == run_id).order_by(_C.number.desc())
    if page.after is not None:
        query = query.where(_C.number < page.after[0])
    found = connection.execute(query.limit(page.limit + 1)).all()
    if len(found) <= page.limit:
        return found, None
    return found[: page.limit], write_cursor((found[page.limit - 1].number,))


def read_run_command(connection: sql.Connection, run_id: UUID, number: int) -> Row | None:
    """One of them; None if there is none of this number."""
    query = _shown().where(_C.run_id == run_id, _C.number == number)
    return connection.execute(query).one_or_none()


def failed_run_commands(
    connection: sql.Connection, project: str | None, limit: int
) -> Sequence[Row]:
    """Those that came to nothing in the job since yesterday, where nothing was ordered since and
    the run goes on; the newest first."""
    later = commands.alias("later")
    newer = sql.exists().where(
        later.c.run_id == _C.run_id, later.c.incident == RUN_ITSELF, later.c.number > _C.number
    )
    lately = _C.finished_at > sql.func.now() - timedelta(days=1)
    query = _shown().where(_C.state.in_([state.value for state in FAILED]), lately, ~newer)
    query = query.where(runs.c.archived_at.is_(None), runs.c.state != ENDED)
    if project is not None:
        query = query.where(runs.c.project == project)
    return connection.execute(query.order_by(_C.finished_at.desc(), _C.run_id).limit(limit)).all()
