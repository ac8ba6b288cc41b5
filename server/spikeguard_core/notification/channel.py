"""A channel: where people are notified, of what, and how often.

What is secret in it (its target) is never shown, never logged, and never part of an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from spikeguard_core.notification.topics import About
from spikeguard_core.setting_fields import SettingError, read_settings, setting, settings_of
from spikeguard_protocol import Kind
from spikeguard_protocol.identity import NAME_PATTERN

MAX_TARGET, MAX_PERSON = 2000, 80  # characters
MAX_LEVEL = 5
LEAST_SECRET = 16  # characters of a webhook's key


class ChannelKind(StrEnum):
    """How a message travels."""

    WEBHOOK = "webhook"  # JSON, signed with HMAC-SHA256
    PAGERDUTY = "pagerduty"  # Events API v2
    APPRISE = "apprise"  # Slack, Teams, Discord, Telegram, e-mail, Opsgenie and many others


NO_PICTURE, PNG = PICTURES = ("none", "png")  # what a webhook carries beside the facts
_TARGETS: Mapping[ChannelKind, Mapping[str, str | None]] = {
    ChannelKind.WEBHOOK: {"url": None, "secret": None, "picture": NO_PICTURE},
    ChannelKind.PAGERDUTY: {"routing_key": None, "url": "https://events.pagerduty.com"},
    ChannelKind.APPRISE: {"url": None},
}  # the fields of each with their defaults; None: it is needed


@dataclass(frozen=True, slots=True)
class Channel:
    """One place where a project's people are told. `target` holds secrets."""

    project: str = ""
    name: str = ""
    kind: ChannelKind = setting(ChannelKind.WEBHOOK, "how a message travels")
    target: Mapping[str, Any] = field(
        default_factory=dict, repr=False, metadata={"meaning": "where to", "limit": None}
    )
    about: frozenset[About] = setting(frozenset(About), "what is told")
    kinds: frozenset[Kind] = setting(frozenset(Kind), "of which incidents")
    runs: tuple[str, ...] = setting((), "names, with * at the end for any ending; empty: all")
    level: int = setting(
        0, "0: at once; n: from the n-th escalation of an incident on", 0, MAX_LEVEL
    )
    cooldown_s: float = setting(
        120.0, "between two messages of one incident that ask nothing", 0, 86_400, "seconds"
    )
    links: bool = setting(False, "messages carry a link with which whoever holds it may decide")
    person: str | None = setting(
        None, "whose channel it is: who follows a link from it decides as them"
    )
    enabled: bool = setting(True, "false: nothing is sent")

    def shown_target(self) -> dict[str, str]:
        """What may be shown of the target: enough to tell two apart."""
        return {name: _hint(self.kind, name, value) for name, value in self.target.items()}

    def rules(self) -> dict[str, Any]:
        """Everything but identity and target, as `channel_from_mapping` reads it."""
        names = [name for name in settings_of(Channel) if name not in ("kind", "target")]
        plain = {name: getattr(self, name) for name in names}
        sets = {name: sorted(one.value for one in plain[name]) for name in ("about", "kinds")}
        return {**plain, **sets, "runs": list(self.runs)}


def _hint(kind: ChannelKind, name: str, value: str) -> str:
    if name == "url" and kind is not ChannelKind.APPRISE:
        parts = urlsplit(value)
        return f"{parts.scheme}://{parts.hostname or ''}{'/…' if parts.path.strip('/') else ''}"
    if name == "url":
        return f"{value.partition('://')[0]}://…"
    if name == "picture":
        return value
    return "…" if value else ""


def channel_from_mapping(project: str, name: str, plain: Mapping[str, Any]) -> Channel:
    """Read what a person wrote; what is left out keeps its default. Raise `SettingError`."""
    given = {key: value for key, value in plain.items() if value is not None}
    read = read_settings(Channel, {"kind": None, **given})
    for one in read.runs:
        if not NAME_PATTERN.fullmatch(one.removesuffix("*") or "x"):
            said = "holds names, with * at the end at most"
            raise SettingError("runs", said, f"Got {one!r:.60}")
    person = read.person
    if person is not None:
        person = " ".join(_text("person", person, MAX_PERSON).split())
    target = _target(read.kind, read.target)
    return replace(read, project=project, name=name, target=target, person=person)


def _target(kind: ChannelKind, plain: Mapping[str, Any]) -> dict[str, str]:
    known = _TARGETS[kind]
    for name in plain.keys() - known.keys():
        names = ", ".join(known)
        raise SettingError(f"target.{name!s:.40}", f"is nothing of a {kind}", f"Known: {names}")
    found = {
        name: _text(f"target.{name}", plain.get(name, default), MAX_TARGET)
        for name, default in known.items()
    }
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


def _text(name: str, value: Any, most: int) -> str:
    """The value is never repeated in an error: it may be a secret."""
    if not isinstance(value, str) or len(value) > most or not value.strip():
        raise SettingError(name, f"takes text of 1 to {most} characters", "Look at it again")
    if not value.isprintable():
        raise SettingError(name, "is one line", "Take out what is no printable character")
    return value.strip()
