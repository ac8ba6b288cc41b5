"""Channels, silences and the delivery log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from spikeguard_core.notification.channel import Channel
from spikeguard_core.notification.delivery import NewSilence
from spikeguard_protocol import DEFAULT_PROJECT, RunId
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_server.http.bodies.channels import (
    ChannelBody,
    ChannelList,
    ChannelWanted,
    DeliveryBody,
    DeliveryList,
    SilenceBody,
    SilenceList,
    SilenceWanted,
    TestBody,
)
from spikeguard_server.http.dependencies import (
    CallerDep,
    Cursor,
    Limit,
    Number,
    Project,
    ReasonAsked,
    ServicesDep,
    person_of,
)
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.notify.telling import send_test
from spikeguard_server.notify.upkeep import drop_channel, put_channel, silence, speak_again
from spikeguard_server.store.channels import channels_of
from spikeguard_server.store.paging import PageWanted, Row
from spikeguard_server.store.reads.notices import (
    list_deliveries,
    read_channel,
    read_silence,
    read_silences,
)
from spikeguard_server.store.tables.core import run_key

router = APIRouter(tags=["notifications"])
_NAME = f"^{NAME_PATTERN.pattern}$"
ProjectAsked = Annotated[str, Query(pattern=_NAME)]
ChannelName = Annotated[str, Path(pattern=_NAME)]


def _body(channel: Channel, row: Row) -> ChannelBody:
    return ChannelBody.of(row, channel, target=channel.shown_target(), **channel.rules())


@router.get("/v1/channels", summary="List channels", response_model=ChannelList)
def get_channels(
    services: ServicesDep, caller: CallerDep, project: ProjectAsked = DEFAULT_PROJECT
) -> JsonReply:
    """Where the people of a project are told, without the secrets of the targets."""
    caller.check_project(project)
    with services.snapshot() as connection:
        found = channels_of(connection, project)
    return JsonReply(ChannelList(items=[_body(*one) for one in found]))


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
        put_channel(connection, project, channel, wanted.plain(), caller.actor, wanted.reason)
        return JsonReply(_body(*read_channel(connection, project, channel)))


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
        drop_channel(connection, project, channel, caller.actor, reason)
    return Response(status_code=204)


@router.post(
    "/v1/channels/{project}/{channel}/test", summary="Test a channel", response_model=TestBody
)
def test_channel(
    services: ServicesDep, caller: CallerDep, project: Project, channel: ChannelName
) -> JsonReply:
    """Sends a message that says that it is a test, now, and waits for what becomes of it."""
    tested = send_test(services.engine, services.settings, project, channel, person_of(caller))
    return JsonReply(TestBody.model_validate(tested))


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
    items = [DeliveryBody.model_validate(row) for row in found]
    return JsonReply(DeliveryList(items=items, next_cursor=more))


@router.get("/v1/silences", summary="List silences", response_model=SilenceList)
def get_silences(
    services: ServicesDep, caller: CallerDep, project: ProjectAsked = DEFAULT_PROJECT
) -> JsonReply:
    """Silences and maintenance windows in force or to come, the first to end first."""
    caller.check_project(project)
    with services.snapshot() as connection:
        found = read_silences(connection, project)
    return JsonReply(SilenceList(items=[SilenceBody.model_validate(row) for row in found]))


@router.post(
    "/v1/silences", summary="Silence something", response_model=SilenceBody, status_code=201
)
def post_silence(services: ServicesDep, caller: CallerDep, wanted: SilenceWanted) -> JsonReply:
    """Nobody is told until it ends; what is still true then is told."""
    caller.check_project(wanted.project)
    new = NewSilence(**wanted.model_dump())
    with services.engine.begin() as connection:
        number = silence(connection, new, person_of(caller))
        row = read_silence(connection, wanted.project, number)
        return JsonReply(SilenceBody.model_validate(row), status_code=201)


@router.delete("/v1/silences/{project}/{number}", summary="End a silence", status_code=204)
def delete_silence(
    services: ServicesDep,
    caller: CallerDep,
    project: Project,
    number: Number,
    reason: ReasonAsked = None,
) -> Response:
    """What it held is told at once, if it is still true."""
    with services.engine.begin() as connection:
        speak_again(connection, project, number, person_of(caller), reason)
    return Response(status_code=204)
