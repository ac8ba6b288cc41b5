"""Whether this process can do its work, what Prometheus reads, and the OpenAPI document."""

from __future__ import annotations

from functools import partial
from typing import Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response
from prometheus_client import generate_latest
from pydantic import Field

from spikeguard_server.errors import Unready
from spikeguard_server.http.bodies.run_shapes import Shape
from spikeguard_server.http.dependencies import Services, ServicesDep
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.store.engine import takes_no_writes
from spikeguard_server.store.migrations import require_schema
from spikeguard_server.store.reads.fleet import read_fleet
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


@router.get("/healthz", summary="Alive", response_model=Health)
async def get_health() -> JsonReply:
    """This process answers. It says nothing about the database."""
    return JsonReply(Health(status="ok"))


@router.get("/readyz", summary="Ready", response_model=Readiness)
async def get_readiness(services: ServicesDep) -> JsonReply:
    """The database is reachable, migrated and takes writes, and this process's ticker runs. True
    within seconds, however many ask."""
    protected = await run_sync(
        services.readiness.get, partial(_look, services), limiter=services.readiness.thread
    )
    if services.ticker is not None and not services.ticker.alive:
        raise Unready("This process's ticker stopped", "Start the process again")
    return JsonReply(Readiness(status="ok", audit_protected=protected))


def _look(services: Services) -> bool:
    """Whether the audit is protected; raise `Unready`, or what the database raises."""
    with services.engine.connect() as connection:
        if takes_no_writes(connection):
            connection.invalidate()  # the next look asks whoever answers at that address then
            raise Unready(
                "The database takes no writes: it is a standby, or somebody made it read-only",
                "Wait for the failover to end, or let DATABASE_URL lead to the primary",
            )
        require_schema(connection)
        return not ways_around(connection)


metrics = APIRouter(tags=["metrics"])
_MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "Prometheus text exposition.", "content": {"text/plain": {}}}
}


@metrics.get("/metrics", summary="This process", response_class=Response, responses=_TEXT)
def get_metrics(services: ServicesDep) -> Response:
    """Counters of this process alone: scrape every replica."""
    services.metrics.ticker_up.set(float(services.ticker is not None and services.ticker.alive))
    return Response(generate_latest(services.metrics.registry), media_type=_MEDIA)


@metrics.get("/metrics/fleet", summary="The fleet", response_class=Response, responses=_TEXT)
def get_fleet(services: ServicesDep) -> Response:
    """The fleet as the database knows it: scrape one replica, or all behind one address.

    It tells of every project, so a token of one project is refused.
    """
    with services.snapshot() as connection:
        return Response(generate_latest(read_fleet(connection)), media_type=_MEDIA)


@router.get("/openapi.json", include_in_schema=False)
def get_document(request: Request) -> JsonReply:
    """What every call takes and answers."""
    return JsonReply(request.app.openapi())
