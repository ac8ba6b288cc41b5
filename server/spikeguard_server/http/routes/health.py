"""Whether this process lives, and whether it can do its work."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from pydantic import Field

from spikeguard_server.errors import Unready
from spikeguard_server.http.bodies.run_shapes import Shape, example
from spikeguard_server.http.dependencies import DatabaseLook, Services, ServicesDep
from spikeguard_server.http.responses import JsonReply, refusals
from spikeguard_server.store.migrations import require_schema
from spikeguard_server.store.reads.standby import lag_s, takes_no_writes
from spikeguard_server.store.roles import ways_around

router = APIRouter(tags=["health"])


class Health(Shape):
    """All is well."""

    model_config = example({"status": "ok", "primary": None})

    status: str
    primary: str | None = Field(description="where to write; null: here. Else this serves reads")


class Readiness(Health):
    """All is well with the database too."""

    model_config = example(
        {"status": "ok", "primary": None, "lag_s": None, "audit_protected": True}
    )

    lag_s: float | None = Field(description="of a standby behind its primary; null: none")
    audit_protected: bool = Field(
        description="the server's own database role can neither change nor delete entries"
    )


@router.get("/healthz", summary="Alive", response_model=Health, response_class=JsonReply)
async def get_health(services: ServicesDep) -> JsonReply:
    """This process answers. It says nothing about the database."""
    return JsonReply(Health(status="ok", primary=services.primary))


@router.get(
    "/readyz",
    summary="Ready",
    response_model=Readiness,
    response_class=JsonReply,
    responses=refusals(Unready("The database's disk is full", "Make room on the disk of Postgres")),
)
async def get_readiness(services: ServicesDep) -> JsonReply:
    """The database is reachable, migrated, takes writes and has room for them, this process's
    ticker runs, and a standby is not far behind. True within seconds, however many ask."""
    look = await services.readiness.get(partial(_look, services))
    if services.ticker is not None and not services.ticker.alive:
        raise Unready("This process's ticker stopped", "Start the process again")
    return JsonReply(
        Readiness(
            status="ok", primary=services.primary, lag_s=look.lag_s,
            audit_protected=look.audit_protected,
        )
    )  # fmt: skip


def _look(services: Services) -> DatabaseLook:
    """What the database is like; raise `Unready`, or what it raises."""
    with services.engine.connect() as connection:
        if services.primary is None and takes_no_writes(connection):
            connection.invalidate()  # the next look asks whoever answers at that address then
            raise Unready(
                "The database takes no writes: it is a standby, or somebody made it read-only",
                "Wait for the failover to end, or let DATABASE_URL lead to the primary",
            )
        require_schema(connection)
        lag, protected = lag_s(connection), not ways_around(connection)
        if services.primary is None:
            services.write_check.check(connection)
    if lag is not None and lag > services.settings.most_lag_s:
        raise Unready(
            f"The standby is {lag:.0f} s behind its primary", "Ask the primary, or wait for it"
        )
    return DatabaseLook(lag, protected)
