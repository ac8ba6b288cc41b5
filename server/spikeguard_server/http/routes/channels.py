"""Channels: listed without their secrets, written by admins, tested by whoever decides."""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sql
from fastapi import APIRouter, Path, Query, Response

from spikeguard_protocol import DEFAULT_PROJECT, RunId
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_server.http.bodies.channels import (
    ChannelBody,
    ChannelList,
    ChannelWanted,
    DeliveryBody,
    DeliveryList,
    TestBody,
)
from spikeguard_server.http.dependencies import (
    CallerDep,
    Cursor,
    Limit,
    Project,
    ReasonAsked,
    ServicesDep,
    person_of,
)
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.http.routes.tokens import actor
from spikeguard_server.notify.button import press
from spikeguard_server.notify.upkeep import drop_channel, put_channel
from spikeguard_server.store.paging import PageWanted
from spikeguard_server.store.reads.notices import (
    LastTold,
    last_told,
    list_deliveries,
    read_channel,
    read_channels,
)
from spikeguard_server.store.tables.core import run_key

router = APIRouter(tags=["notifications"])
_NAME = f"^{NAME_PATTERN.pattern}$"
ProjectAsked = Annotated[str, Query(pattern=_NAME)]
ChannelName = Annotated[str, Path(pattern=_NAME)]


def _body(channel: Any, row: Any, told: LastTold) -> ChannelBody:
    return ChannelBody(
        project=channel.project,
        name=channel.name,
        kind=channel.kind,
        target=channel.shown_target(),
        changed_at=row.changed_at,
        changed_by=row.changed_by,
        delivered_at=told.delivered_at,
        failed_at=told.failed_at,
        **channel.rules(),
    )


def _read(connection: sql.Connection, project: str, name: str) -> ChannelBody:
    told = last_told(connection, project).get(name, LastTold())
    return _body(*read_channel(connection, project, name), told)


@router.get("/v1/channels", summary="List channels", response_model=ChannelList)
def get_channels(
    services: ServicesDep, caller: CallerDep, project: ProjectAsked = DEFAULT_PROJECT
) -> JsonReply:
    """Where the people of a project are told, without the secrets of the targets."""
    caller.check_project(project)
    with services.snapshot() as connection:
        found = read_channels(connection, project)
        told = last_told(connection, project)
    return JsonReply(
        ChannelList(items=[_body(one, row, told.get(one.name, LastTold())) for one, row in found])
    )


@router.put(
    "/v1/channels/{project}/{channel}", summary="Write a channel", response_model=ChannelBody
)
def replace_channel(
    services: ServicesDep,
    caller: CallerDep,
    project: Project,
    channel: ChannelName,
    wanted: ChannelWanted,
) -> JsonReply:
    """Makes it or replaces its rules. The target is told to nobody from then on."""
    with services.engine.begin() as connection:
        put_channel(connection, project, channel, wanted.plain(), actor(caller), wanted.reason)
        return JsonReply(_read(connection, project, channel))


@router.delete("/v1/channels/{project}/{channel}", summary="Remove a channel", status_code=204)
def delete_channel(
    services: ServicesDep,
    caller: CallerDep,
    project: Project,
    channel: ChannelName,
    reason: ReasonAsked = None,
) -> Response:
    """Nothing is told there any more; what was told stays in the log."""
    with services.engine.begin() as connection:
        drop_channel(connection, project, channel, actor(caller), reason)
    return Response(status_code=204)


@router.post(
    "/v1/channels/{project}/{channel}/test", summary="Test a channel", response_model=TestBody
)
def test_channel(
    services: ServicesDep, caller: CallerDep, project: Project, channel: ChannelName
) -> JsonReply:
    """Sends a message that says that it is a test, now, and waits for what becomes of it."""
    person = person_of(caller)
    tested = press(services.engine, services.settings, project, channel, person)
    return JsonReply(TestBody(result=tested.result, reason=tested.reason, took_ms=tested.took_ms))


@router.get("/v1/deliveries", summary="What was told", response_model=DeliveryList)
def get_deliveries(
    services: ServicesDep,
    caller: CallerDep,
    project: ProjectAsked = DEFAULT_PROJECT,
    run: Annotated[str | None, Query(pattern=_NAME)] = None,
    channel: Annotated[str | None, Query(pattern=_NAME)] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> JsonReply:
    """Every message of a project, sent or not, with the reason. Newest first."""
    caller.check_project(project)
    page = PageWanted(limit, cursor)
    key = None if run is None else run_key(RunId(project, run))
    with services.snapshot() as connection:
        found, more = list_deliveries(connection, project, page, run_id=key, channel=channel)
    items = [_delivery(row) for row in found]
    return JsonReply(DeliveryList(items=items, next_cursor=more))


def _delivery(row: Any) -> DeliveryBody:
    names = DeliveryBody.model_fields
    return DeliveryBody(**{name: row._mapping[name] for name in names})
