"""Whether this process lives, and whether it can do its work."""

from __future__ import annotations

from fastapi import APIRouter

from spikeguard_server.errors import Unready
from spikeguard_server.migrations import current_revision, newest_revision
from spikeguard_server.routes.answers import Answer, refusals
from spikeguard_server.routes.door import ServicesDep
from spikeguard_server.routes.shapes import Shape, example

router = APIRouter(tags=["health"])


class Health(Shape):
    """All is well."""

    model_config = example({"status": "ok"})

    status: str


@router.get("/healthz", summary="Alive", response_model=Health, response_class=Answer)
async def get_health() -> Answer:
    """This process answers. It says nothing about the database."""
    return Answer(Health(status="ok"))


@router.get(
    "/readyz",
    summary="Ready",
    response_model=Health,
    response_class=Answer,
    responses=refusals(Unready("The database cannot be reached", "Start it, or wait for it")),
)
def get_readiness(services: ServicesDep) -> Answer:
    """The database is reachable and migrated, and this process's ticker runs."""
    with services.engine.connect() as connection:
        if current_revision(connection) != newest_revision():
            raise Unready(
                "The database is not at this version's schema", "Run `spikeguard migrate`"
            )
    if services.ticker is not None and not services.ticker.alive:
        raise Unready("This process's ticker stopped", "Start the process again")
    return Answer(Health(status="ok"))
