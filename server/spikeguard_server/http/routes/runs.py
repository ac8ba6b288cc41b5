"""One run: read it, its curves, delete it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from spikeguard_core.audit.changes import MAX_REASON
from spikeguard_protocol.identity import MAX_STEP
from spikeguard_server.errors import Unprocessable
from spikeguard_server.http.bodies.incidents import trend_body
from spikeguard_server.http.bodies.run_shapes import (
    RunDetail,
    SeriesBody,
)
from spikeguard_server.http.bodies.runs import run_detail
from spikeguard_server.http.dependencies import CallerDep, RunDep, ServicesDep
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.http.routes.tokens import actor
from spikeguard_server.ingest.deletion import REMOVE_S, delete_run, finish_deletion
from spikeguard_server.store.incidents import read_incident
from spikeguard_server.store.reads.history import existing_run
from spikeguard_server.store.reads.runs import (
    read_run,
)
from spikeguard_server.store.reads.series import (
    MAX_POINTS,
    Window,
    read_series,
    read_signals,
    refuse_unknown,
)
from spikeguard_server.store.runs import run_named

router = APIRouter(tags=["runs"])
Signals = Annotated[
    str,
    Query(
        max_length=1100,
        description="names of signals, with commas between them",
    ),
]
Points = Annotated[
    int,
    Query(
        ge=2,
        le=MAX_POINTS,
        description="rows to thin longer curves to; extremes and values not finite are kept",
    ),
]
Step = Annotated[
    int | None,
    Query(ge=0, le=MAX_STEP, description="an optimizer step, itself included; left out: no limit"),
]
Why = Annotated[
    str,
    Query(alias="reason", min_length=1, max_length=MAX_REASON, description="why, for the record"),
]


def window(signals: str, first: int | None, last: int | None, points: int) -> Window:
    """Which curves are asked for; raise `Unprocessable` for a window that ends before it begins."""
    last = MAX_STEP if last is None else last
    if last < (first or 0):
        raise Unprocessable(
            "The last step lies before the first", "Ask for first <= last", field="last"
        )
    return Window(read_signals(signals), first or 0, last, points)


@router.get(
    "/v1/runs/{project}/{name}", summary="One run with its history", response_model=RunDetail
)
def get_run(services: ServicesDep, run: RunDep) -> JsonReply:
    """Its attempts, its tree of segments, and what it can return to."""
    with services.snapshot() as connection:
        row = read_run(connection, existing_run(connection, run), services.silent_after)
        return JsonReply(run_detail(connection, row, services.silent_after))


@router.get(
    "/v1/runs/{project}/{name}/series", summary="Curves of a run", response_model=SeriesBody
)
def get_series(
    services: ServicesDep,
    run: RunDep,
    signals: Signals = "loss",
    first: Step = None,
    last: Step = None,
    points: Points = 2000,
) -> JsonReply:
    """Steps `first` to `last` of every segment, the line that is trained now first."""
    wanted = window(signals, first, last, points)
    with services.snapshot() as connection:
        row = run_named(connection, run)
        refuse_unknown(wanted, row)
        series, trend = read_series(connection, row.run_id, wanted), None
        if row.open_incident is not None:
            trend = trend_body(read_incident(connection, row.run_id, run, row.open_incident))
    return JsonReply({**series, "trend": trend})


@router.delete("/v1/runs/{project}/{name}", summary="Delete a run", status_code=204)
def delete(services: ServicesDep, caller: CallerDep, run: RunDep, reason: Why) -> Response:
    """Its samples, incidents, commands and post-mortems are removed for good; its audit stays.
    Refused while an attempt of it lives. A run of the same name that begins later numbers its
    attempts and incidents on from there."""
    with services.engine.begin() as connection:
        key = delete_run(connection, run, actor(caller), reason, services.silent_after)
    finish_deletion(services.engine, key, REMOVE_S)
    return Response(status_code=204)
