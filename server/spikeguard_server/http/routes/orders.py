"""`GET /v1/runs/{run}/orders`: a wait until there is an order to fetch.

Law: it says that there is one, never which: orders ride on acknowledgements, under the run's lock.
"""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

import sqlalchemy as sql
from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool

from spikeguard_server.http.bodies.run_shapes import Shape
from spikeguard_server.http.dependencies import RunDep, ServicesDep
from spikeguard_server.http.middleware import caller_of
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.ingest.order_waiters import OrderWaiters
from spikeguard_server.store.commands import has_orders
from spikeguard_server.store.tables.core import run_key

router = APIRouter(tags=["agents"])
LONGEST_S: Final = 8.0  # shorter than a stopping server waits for what is under way
Seconds = Annotated[
    float, Query(ge=0, le=60, description="seconds, at most; the server may answer sooner")
]


class OrderWait(Shape):
    """Whether the next acknowledgement may bring an order."""

    waiting: bool


@router.get(
    "/v1/runs/{project}/{name}/orders", summary="Wait for an order", response_model=OrderWait
)
async def wait_for_orders(
    services: ServicesDep,
    run: RunDep,
    request: Request,
    wait_s: Seconds = LONGEST_S,
) -> JsonReply:
    """Answers as soon as a command of the run changes; then send a message to get the order."""
    waiters: OrderWaiters = request.app.state.order_waiters
    key = run_key(run)
    wait = waiters.join(key)
    try:
        async with services.turns.of(caller_of(request.scope) or b""):
            waiting = await run_in_threadpool(_look, services.engine, key)
        waiting = waiting or await waiters.changed(wait, min(wait_s, LONGEST_S))
    finally:
        waiters.leave(wait)
    return JsonReply(OrderWait(waiting=waiting))


def _look(engine: sql.Engine, key: UUID) -> bool:
    with engine.connect() as connection:
        return has_orders(connection, key)
