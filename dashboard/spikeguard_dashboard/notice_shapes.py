"""The shapes of channels, silences and deliveries, as `docs/notifications.md` tells of them.

Law: descriptions only.
"""

from __future__ import annotations

from typing import TypedDict


class Channel(TypedDict):
    """Where people are told; of its target only what may be shown."""

    project: str
    name: str
    kind: str
    target: dict[str, str]
    topics: list[str]
    kinds: list[str]
    runs: list[str]
    level: int
    cooldown_s: float
    links: bool
    person: str | None
    enabled: bool


class ChannelTest(TypedDict):
    """What became of a test."""

    result: str
    reason: str
    took_ms: float


class Silence(TypedDict):
    """A silence or a maintenance window."""

    number: int
    run: str | None
    incident: int | None
    begins_at: str
    ends_at: str
    reason: str
    created_by: str


class Delivery(TypedDict):
    """A message that was sent, or why none was."""

    at: str
    run: str | None
    incident: int | None
    channel: str | None
    topics: list[str]
    result: str
    reason: str
    took_ms: float | None
