"""What Prometheus reads."""

from __future__ import annotations

from fastapi import APIRouter, Response

from spikeguard_server.errors import Forbidden
from spikeguard_server.http.dependencies import CallerDep, Services, ServicesDep
from spikeguard_server.http.responses import Documented
from spikeguard_server.metrics import fleet_text
from spikeguard_server.store.reads.fleet import read_fleet

router = APIRouter(tags=["metrics"])
_MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_TEXT: Documented = {
    200: {
        "description": "Prometheus text exposition.",
        "content": {"text/plain": {}},
    }
}


@router.get("/metrics", summary="This process", response_class=Response, responses=_TEXT)
def get_metrics(services: ServicesDep) -> Response:
    """Counters of this process alone: scrape every replica."""
    services.metrics.ticker_up.set(float(services.ticker is not None and services.ticker.alive))
    return Response(services.metrics.text(), media_type=_MEDIA)


@router.get("/metrics/fleet", summary="The fleet", response_class=Response, responses=_TEXT)
def get_fleet(services: ServicesDep, caller: CallerDep) -> Response:
    """The fleet as the database knows it: scrape one replica, or all behind one address.

    It tells of every project, so a token of one project is refused.
    """
    if caller.project is not None:
        raise Forbidden(
            f"This token belongs to project {caller.project}, the fleet to all of them",
            "Ask an admin of all projects for a token of role metrics without a project",
        )
    return Response(services.fleet.get(lambda: _read(services)), media_type=_MEDIA)


def _read(services: Services) -> bytes:
    with services.snapshot() as connection:
        return fleet_text(read_fleet(connection))
