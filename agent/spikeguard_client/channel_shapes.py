"""The shapes of what is answered about channels, what they were told, and silences.

Law: as in `shapes`: descriptions only, times are RFC 3339 texts in UTC.
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
    changed_at: str
    changed_by: str


class ChannelTest(TypedDict):
    """What became of a test."""

    result: str
    reason: str
    took_ms: float


class Delivery(TypedDict):
    """A message that was sent, or why none was."""

    at: str
    project: str
    run: str | None
    incident: int | None
    channel: str | None
    topics: list[str]
    result: str
    reason: str
    took_ms: float | None


class Silence(TypedDict):
    """A silence or a maintenance window."""

    project: str
    number: int
    run: str | None
    incident: int | None
    begins_at: str
    ends_at: str
    reason: str
    created_at: str
    created_by: str
