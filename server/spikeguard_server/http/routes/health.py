"""Whether this process lives, and whether it can do its work."""

from __future__ import annotations

from functools import partial

from anyio.to_thread import run_sync
from fastapi import APIRouter
from pydantic import Field

from spikeguard_server.errors import Unready
from spikeguard_server.http.bodies.run_shapes import Shape
from spikeguard_server.http.dependencies import DatabaseLook, Services, ServicesDep
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.store.engine import takes_no_writes
from spikeguard_server.store.migrations import require_schema
from spikeguard_server.store.schema import ways_around

router = APIRouter(tags=["health"])


class Health(Shape):
    """All is well."""

    status: str


class Readiness(Health):
    """All is well with the database too."""

    audit_protected: bool = Field(
        description="the server's own database role can neither change nor delete entries"
    )


@router.get(
    "/healthz",
    summary="Alive",
    response_model=Health,
)
async def get_health() -> JsonReply:
    """This process answers. It says nothing about the database."""
    return JsonReply(Health(status="ok"))


@router.get("/readyz", summary="Ready", response_model=Readiness)
async def get_readiness(services: ServicesDep) -> JsonReply:
    """The database is reachable, migrated and takes writes, and this process's ticker runs. True
    within seconds, however many ask."""
    look = await run_sync(
        services.readiness.get, partial(_look, services), limiter=services.readiness_thread
    )
    if services.ticker is not None and not services.ticker.alive:
        raise Unready("This process's ticker stopped", "Start the process again")
    return JsonReply(Readiness(status="ok", audit_protected=look.audit_protected))


def _look(services: Services) -> DatabaseLook:
    """What the database is like; raise `Unready`, or what it raises."""
    with services.engine.connect() as connection:
        if takes_no_writes(connection):
            connection.invalidate()  # the next look asks whoever answers at that address then
            raise Unready(
                "The database takes no writes: it is a standby, or somebody made it read-only",
                "Wait for the failover to end, or let DATABASE_URL lead to the primary",
            )
        require_schema(connection)
        return DatabaseLook(audit_protected=not ways_around(connection))
