"""The record of what happened: to one run, and to what belongs to no run.

Law: reads only. The second one tells of every project, so a token of one project is refused.
"""

from __future__ import annotations

from uuid import UUID

import sqlalchemy as sql
from fastapi import APIRouter

from spikeguard_server.errors import Forbidden
from spikeguard_server.http.bodies.run_shapes import AuditEntry, AuditList
from spikeguard_server.http.dependencies import (
    CallerDep,
    Cursor,
    Limit,
    RunDep,
    ServicesDep,
)
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.store.paging import PageWanted
from spikeguard_server.store.reads.history import recorded_run
from spikeguard_server.store.reads.runs import read_audit
from spikeguard_server.store.tables.core import FLEET

router = APIRouter(tags=["audit"])
_ONE_PROJECT = Forbidden(
    "This token belongs to project default, this record to all of them",
    "Use an admin's token without a project",
)


@router.get(
    "/v1/runs/{project}/{name}/audit", summary="What happened to a run", response_model=AuditList
)
def get_run_audit(
    services: ServicesDep, run: RunDep, limit: Limit = 100, cursor: Cursor = None
) -> JsonReply:
    """Every change of state: who, what, when, why; also of a run that was deleted. Newest first."""
    page = PageWanted(limit, cursor)
    with services.snapshot() as connection:
        return _entries(connection, recorded_run(connection, run), page)


@router.get("/v1/audit", summary="What happened beside the runs", response_model=AuditList)
def get_audit(
    services: ServicesDep, caller: CallerDep, limit: Limit = 100, cursor: Cursor = None
) -> JsonReply:
    """Tokens, sessions, policies of projects, channels, silences, and what retention dropped: who,
    what, when, why. Newest first."""
    if caller.project is not None:
        raise Forbidden(
            f"This token belongs to project {caller.project}, this record to all of them",
            _ONE_PROJECT.remedy,
        )
    page = PageWanted(limit, cursor)
    with services.snapshot() as connection:
        return _entries(connection, FLEET, page)


def _entries(connection: sql.Connection, key: UUID, page: PageWanted) -> JsonReply:
    found, more = read_audit(connection, key, page)
    items = [AuditEntry.model_validate(row) for row in found]
    return JsonReply(AuditList(items=items, next_cursor=more))
