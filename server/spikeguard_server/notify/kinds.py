"""How each kind of channel carries a message: signed webhook, PagerDuty, and Apprise for the rest.

One conversation is one alert on the other side, updated and in the end resolved, by a key that
never changes. The format of PagerDuty is that of its Events API v2.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from spikeguard_core.notification.channel import PNG, Channel, ChannelKind
from spikeguard_core.notification.topics import Urgency
from spikeguard_protocol.escaping import chat_text
from spikeguard_protocol.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from spikeguard_server.notify.addresses import Network
from spikeguard_server.notify.apprise import Text, send_by_apprise
from spikeguard_server.notify.mail import mail_html, mail_picture
from spikeguard_server.notify.message import ChannelMessage
from spikeguard_server.notify.wire import post_json, send


@dataclass(frozen=True, slots=True)
class Carriage:
    """What a message is sent with, beside itself."""

    networks: Sequence[Network]
    began: bool  # whether the other side knows of the conversation
    clock_s: float  # seconds since the epoch, for signatures


Carrier = Callable[[Channel, ChannelMessage, Carriage], None]


def carry(channel: Channel, message: ChannelMessage, by: Carriage) -> None:
    """Send `message`; raise `DeliveryFailed` where it did not arrive."""
    CARRIERS[channel.kind](channel, message, by)


def _webhook(channel: Channel, message: ChannelMessage, by: Carriage) -> None:
    content = message.facts() | _drawn(channel, message)
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    timestamp = str(int(by.clock_s))
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": f"{message.key}/{message.sequence}",
        TIMESTAMP_HEADER: timestamp,
        SIGNATURE_HEADER: sign(channel.target["secret"], timestamp, body),
    }
    send(channel.target["url"], body, headers, by.networks)


def _drawn(channel: Channel, message: ChannelMessage) -> dict[str, object]:
    """The curve for a channel that asks for it; None where there is none to draw."""
    if channel.target.get("picture") != PNG:
        return {}
    drawn = mail_picture(message)
    return {
        "picture": {"media_type": "image/png", "base64": b64encode(drawn).decode()}
        if drawn
        else None
    }


_PAGERDUTY_SEVERITY = {
    Urgency.INFO: "info",
    Urgency.WARNING: "warning",
    Urgency.URGENT: "critical",
}


def _pagerduty(channel: Channel, message: ChannelMessage, by: Carriage) -> None:
    event = {
        "routing_key": channel.target["routing_key"],
        "dedup_key": message.key,
        "event_action": "trigger",
        "client": "spikeguard",
        "links": [{"href": url, "text": name} for name, url in message.links.items()],
        "payload": {
            "summary": message.title[:1024],
            "source": f"{message.project}/{message.run}",
            "severity": _PAGERDUTY_SEVERITY[message.urgency],
            "timestamp": message.at.isoformat(),
            "component": message.run,
            "group": message.project,
            "class": message.spike.kind.value if message.spike else message.run_state,
            "custom_details": {"text": message.body()},
        },
    }
    url = channel.target["url"].rstrip("/") + "/v2/enqueue"
    if not message.over or not by.began:
        post_json(url, event, by.networks)
    for action in _afterwards(message):
        answer = {name: event[name] for name in ("routing_key", "dedup_key")}
        post_json(url, {**answer, "event_action": action}, by.networks)


def _afterwards(message: ChannelMessage) -> Sequence[str]:
    if message.over:
        return ("resolve",)
    return ("acknowledge",) if message.answered else ()


def _apprise(channel: Channel, message: ChannelMessage, by: Carriage) -> None:
    kind = "success" if message.over else _APPRISE_KIND[message.urgency]
    text = _mail(message) if _is_mail(channel) else _chat(message)
    send_by_apprise(channel.target["url"], text, kind, by.networks, message.key)


def _mail(message: ChannelMessage) -> Text:
    picture = mail_picture(message)
    return Text(message.title, message.body(), mail_html(message, drawn=bool(picture)), picture)


def _chat(message: ChannelMessage) -> Text:
    """Many chats read Markdown in what they are given as plain text; the links are ours."""
    body = "\n".join([*map(chat_text, message.lines()), *message.link_lines()])
    return Text(chat_text(message.title), body, mail_html(message))


def shows_picture(channel: Channel) -> bool:
    """Whether a message there carries the curve: a mail, and a webhook that asks for it."""
    if channel.kind is ChannelKind.WEBHOOK:
        return channel.target.get("picture") == PNG
    return _is_mail(channel)


def _is_mail(channel: Channel) -> bool:
    url = str(channel.target.get("url", "")).lower()
    return channel.kind is ChannelKind.APPRISE and url.startswith(("mailto:", "mailtos:"))


_APPRISE_KIND = {Urgency.INFO: "info", Urgency.WARNING: "warning", Urgency.URGENT: "failure"}

CARRIERS: Mapping[ChannelKind, Carrier] = {
    ChannelKind.WEBHOOK: _webhook,
    ChannelKind.PAGERDUTY: _pagerduty,
    ChannelKind.APPRISE: _apprise,
}
