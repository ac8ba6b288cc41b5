"""What travels about channels, silences and deliveries. A channel's target travels one way only."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from spikeguard_core.audit.changes import MAX_REASON
from spikeguard_core.notification.channel import MAX_LEVEL, MAX_TARGET, ChannelKind
from spikeguard_core.notification.delivery import Result
from spikeguard_core.notification.topics import About, Topic
from spikeguard_protocol import Kind
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_server.http.bodies.run_shapes import ReasonGiven, Shape

_NAME = f"^{NAME_PATTERN.pattern}$"


class ChannelWanted(Shape):
    """A channel to write. What is left out takes its default; without `target` it keeps its own."""

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
    reason: ReasonGiven = None

    def plain(self) -> dict[str, Any]:
        """As `channel_from_mapping` reads it, with only what was sent."""
        return self.model_dump(mode="json", exclude_unset=True, exclude={"reason"})


class ChannelBody(Shape):
    """A channel with what may be shown of its target."""

    project: str
    name: str
    kind: ChannelKind
    target: dict[str, str] = Field(description=f"hints; values of up to {MAX_TARGET} characters")
    about: list[About]
    kinds: list[Kind]
    runs: list[str]
    level: int
    cooldown_s: float
    links: bool
    person: str | None
    enabled: bool
    changed_at: datetime
    changed_by: str


class ChannelList(Shape):
    """The channels of a project, by name."""

    items: list[ChannelBody]


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


class DeliveryList(Shape):
    """The delivery log, newest first."""

    items: list[DeliveryBody]
    next_cursor: str | None


class TestBody(Shape):
    """What became of a test."""

    result: Result
    reason: str
    took_ms: float


class SilenceWanted(Shape):
    """A wish not to be told. Without a run it covers the project; a later begin makes it a
    maintenance window."""

    project: str = Field(pattern=_NAME)
    run: str | None = Field(default=None, pattern=_NAME)
    incident: int | None = Field(default=None, ge=1, le=2**31 - 1)
    begins_in_s: float = Field(default=0.0, ge=0, le=90 * 86_400)
    lasts_s: float = Field(ge=1, le=30 * 86_400)
    reason: str = Field(min_length=1, max_length=MAX_REASON)


class SilenceBody(Shape):
    """A silence or a maintenance window."""

    project: str
    number: int
    run: str | None
    incident: int | None
    begins_at: datetime
    ends_at: datetime
    reason: str
    created_at: datetime
    created_by: str


class SilenceList(Shape):
    """Silences in force or to come, the first to end first."""

    items: list[SilenceBody]
