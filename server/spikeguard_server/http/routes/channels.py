"""Channels, silences and the delivery log."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field

from spikeguard_core.audit.changes import MAX_REASON
from spikeguard_core.notification.channel import MAX_LEVEL, Channel, ChannelKind
from spikeguard_core.notification.delivery import NewSilence, Result
from spikeguard_core.notification.topics import About, Topic
from spikeguard_protocol import Kind
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_server.http.bodies.run_shapes import ItemList, ReasonGiven, Shape
from spikeguard_server.http.dependencies import (
    CallDep,
    Number,
    OneProject,
    PageDep,
    Project,
    ReasonAsked,
    ServicesDep,
)
from spikeguard_server.http.responses import BodyRoute
from spikeguard_server.notify.telling import ChannelTested, send_test
from spikeguard_server.notify.upkeep import drop_channel, put_channel, silence, speak_again
from spikeguard_server.store.channels import channels_of, read_channel, read_silence, read_silences
from spikeguard_server.store.conversations import list_deliveries
from spikeguard_server.store.paging import Row

_NAME = f"^{NAME_PATTERN.pattern}$"


class ChannelRules(Shape):
    """Where a channel leads, and what is told there."""

    kind: ChannelKind
    target: dict[str, str] = Field(default_factory=dict, max_length=4)
    about: list[About] | None = None
    kinds: list[Kind] | None = None
    runs: list[str] = Field(default_factory=list, max_length=100)
    level: int = Field(default=0, ge=0, le=MAX_LEVEL)
    cooldown_s: float = Field(default=120.0, ge=0, le=86_400)
    links: bool = False
    person: str | None = Field(default=None, max_length=80)
    enabled: bool = True


class ChannelWanted(ChannelRules):
    """A channel to write. What is left out takes its default; without `target` it keeps its own."""

    reason: ReasonGiven = None

    def plain(self) -> dict[str, Any]:
        """As `channel_from_mapping` reads it, with only what was sent."""
        return self.model_dump(mode="json", exclude_unset=True, exclude={"reason"})


class ChannelBody(ChannelRules):
    """A channel, of its target what may be shown."""

    project: str
    name: str
    changed_at: datetime
    changed_by: str


class DeliveryBody(Shape):
    """A message that was sent, or why none was."""

    at: datetime
    project: str
    run: str | None = Field(description="null for a test")
    incident: int | None
    channel: str | None = Field(description="null where there was none to tell")
    topics: list[Topic]
    result: Result
    reason: str
    took_ms: float | None


class SilenceScope(Shape):
    """Of what people are not to be told, and why. Without a run it covers the project."""

    project: str = Field(pattern=_NAME)
    run: str | None = Field(default=None, pattern=_NAME)
    incident: int | None = Field(default=None, ge=1, le=2**31 - 1)
    reason: str = Field(min_length=1, max_length=MAX_REASON)


class SilenceWanted(SilenceScope):
    """A wish not to be told. A later begin makes it a maintenance window."""

    begins_in_s: float = Field(default=0.0, ge=0, le=90 * 86_400)
    lasts_s: float = Field(ge=1, le=30 * 86_400)


class SilenceBody(SilenceScope):
    """A silence or a maintenance window."""

    number: int
    begins_at: datetime
    ends_at: datetime
    created_at: datetime
    created_by: str


router = APIRouter(tags=["notifications"], route_class=BodyRoute)
ChannelName = Annotated[str, Path(pattern=_NAME)]


def _body(channel: Channel, row: Row) -> ChannelBody:
    return ChannelBody.of(row, channel, target=channel.shown_target(), **channel.rules())


@router.get("/v1/channels", summary="List channels")
def get_channels(services: ServicesDep, project: OneProject) -> ItemList[ChannelBody]:
    """Where the people of a project are told, without the secrets of the targets."""
    with services.snapshot() as connection:
        found = channels_of(connection, project)
    return ItemList(items=[_body(*one) for one in found])


@router.put("/v1/channels/{project}/{channel}", summary="Write a channel")
def replace_channel(
    call: CallDep, project: Project, channel: ChannelName, wanted: ChannelWanted
) -> ChannelBody:
    """Makes it or replaces its rules. The target is told to nobody from then on."""
    with call.services.engine.begin() as connection:
        put_channel(connection, project, channel, wanted.plain(), call.caller.actor, wanted.reason)
        return _body(*read_channel(connection, project, channel))


@router.delete("/v1/channels/{project}/{channel}", summary="Remove a channel", status_code=204)
def delete_channel(
    call: CallDep, project: Project, channel: ChannelName, reason: ReasonAsked = None
) -> None:
    """Nothing is told there any more; what was told stays in the log."""
    with call.services.engine.begin() as connection:
        drop_channel(connection, project, channel, call.caller.actor, reason)


@router.post("/v1/channels/{project}/{channel}/test", summary="Test a channel")
def test_channel(call: CallDep, project: Project, channel: ChannelName) -> ChannelTested:
    """Sends a message that says that it is a test, now, and waits for what becomes of it."""
    services = call.services
    return send_test(services.engine, services.settings, project, channel, call.caller.actor)


@router.get("/v1/deliveries", summary="What was told")
def get_deliveries(
    services: ServicesDep, project: OneProject, page: PageDep
) -> ItemList[DeliveryBody]:
    """Every message of a project, sent or not, with the reason. Newest first."""
    with services.snapshot() as connection:
        found, more = list_deliveries(connection, project, page)
    return ItemList[DeliveryBody].of(items=found, next_cursor=more)


@router.get("/v1/silences", summary="List silences")
def get_silences(services: ServicesDep, project: OneProject) -> ItemList[SilenceBody]:
    """Silences and maintenance windows in force or to come, the first to end first."""
    with services.snapshot() as connection:
        found = read_silences(connection, project)
    return ItemList[SilenceBody].of(items=found)


@router.post("/v1/silences", summary="Silence something", status_code=201)
def post_silence(call: CallDep, wanted: SilenceWanted) -> SilenceBody:
    """Nobody is told until it ends; what is still true then is told."""
    call.caller.check_project(wanted.project)
    new = NewSilence(**wanted.model_dump())
    with call.services.engine.begin() as connection:
        number = silence(connection, new, call.caller.actor)
        row = read_silence(connection, wanted.project, number)
        return SilenceBody.model_validate(row)


@router.delete("/v1/silences/{project}/{number}", summary="End a silence", status_code=204)
def delete_silence(
    call: CallDep, project: Project, number: Number, reason: ReasonAsked = None
) -> None:
    """What it held is told at once, if it is still true."""
    with call.services.engine.begin() as connection:
        speak_again(connection, project, number, call.caller.actor, reason)
