"""A channel: where people are notified, of what, and how often.

What is secret in it (its target) is never shown, never logged, and never part of an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from spikeguard_core.notification.topics import About
from spikeguard_core.setting_fields import SettingError
from spikeguard_protocol import Kind

LEAST_SECRET = 16  # characters of a webhook's key


class ChannelKind(StrEnum):
    """How a message travels."""

    WEBHOOK = "webhook"  # JSON, signed with HMAC-SHA256
    PAGERDUTY = "pagerduty"  # Events API v2
    APPRISE = "apprise"  # Slack, Teams, Discord, Telegram, e-mail, Opsgenie and many others


NO_PICTURE, PNG = PICTURES = ("none", "png")  # what a webhook carries beside the facts
_TARGETS: Mapping[ChannelKind, Mapping[str, str]] = {
    ChannelKind.WEBHOOK: {"url": "", "secret": "", "picture": NO_PICTURE},
    ChannelKind.PAGERDUTY: {"routing_key": "", "url": "https://events.pagerduty.com"},
    ChannelKind.APPRISE: {"url": ""},
}  # the fields of each with their defaults; empty: it is needed


@dataclass(frozen=True, slots=True)
class Channel:
    """One place where a project's people are told. `target` holds secrets."""

    project: str
    name: str
    kind: ChannelKind
    target: Mapping[str, str] = field(repr=False)
    about: Sequence[About]  # what is told
    kinds: Sequence[Kind]  # of which incidents
    runs: Sequence[str]  # names, with * at the end for any ending; empty: all
    level: int  # 0: at once; n: from the n-th escalation of an incident on
    cooldown_s: float  # between two messages of one incident that ask nothing
    links: bool  # messages carry a link with which whoever holds it may decide
    person: str | None  # whose channel it is: who follows a link from it decides as them
    enabled: bool

    def shown_target(self) -> dict[str, str]:
        """What may be shown of the target: enough to tell two apart."""
        return {name: _hint(self.kind, name, value) for name, value in self.target.items()}

    def rules(self) -> dict[str, Any]:
        """What it tells, of what and how often: everything behind the target."""
        return {each.name: getattr(self, each.name) for each in fields(self)[4:]}


def _hint(kind: ChannelKind, name: str, value: str) -> str:
    if name == "url" and kind is not ChannelKind.APPRISE:
        parts = urlsplit(value)
        return f"{parts.scheme}://{parts.hostname or ''}{'/…' if parts.path.strip('/') else ''}"
    if name == "url":
        return f"{value.partition('://')[0]}://…"
    if name == "picture":
        return value
    return "…" if value else ""


def checked_target(kind: ChannelKind, given: Mapping[str, str]) -> dict[str, str]:
    """The target of a channel, with its defaults. Raise `SettingError`, which repeats no value: it
    may be a secret."""
    known = _TARGETS[kind]
    for name in given.keys() - known.keys():
        names = ", ".join(known)
        raise SettingError(f"target.{name!s:.40}", f"is nothing of a {kind}", f"Known: {names}")
    found = {name: given.get(name, default) for name, default in known.items()}
    for name in (name for name, value in found.items() if not value):
        raise SettingError(f"target.{name}", f"is needed for a {kind}", "Give it too")
    url = found["url"]
    if kind is ChannelKind.APPRISE:
        if "://" not in url:
            said, remedy = "is an Apprise URL", "Write slack://…, mailtos://… and the like"
            raise SettingError("target.url", said, remedy)
        return found
    if found.get("picture", NO_PICTURE) not in PICTURES:
        raise SettingError("target.picture", f"is one of {', '.join(PICTURES)}", "Leave it out")
    if len(found.get("secret", "x" * LEAST_SECRET)) < LEAST_SECRET:
        said = f"has at least {LEAST_SECRET} characters"
        raise SettingError("target.secret", said, "Use 32 random bytes")
    try:
        parts = urlsplit(url)
        complete = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of a host or a port that cannot be read
        complete = None
    if not complete:
        raise SettingError("target.url", "is an http or https URL", "Write https://HOST/PATH")
    if parts.username or parts.password:
        raise SettingError("target.url", "carries no user", "Use the field made for it")
    return found
