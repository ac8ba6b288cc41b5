"""How each kind of channel carries a message: PagerDuty, Opsgenie, Alertmanager, signed webhook.

Law: one conversation is one alert on the other side, updated and in the end resolved, by a key that
never changes. The formats are those of the services' own documents: PagerDuty Events API v2,
Opsgenie Alert API v2, Alertmanager API v2.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import quote

from spikeguard_core.notification.channel import PNG, Channel, ChannelKind
from spikeguard_core.notification.topics import Urgency
from spikeguard_protocol.escaping import chat_text
from spikeguard_protocol.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from spikeguard_server.notify.addresses import Network
from spikeguard_server.notify.apprise import Text, send_by_apprise
from spikeguard_server.notify.mail import mail_html, mail_picture
from spikeguard_server.notify.message import ChannelMessage
from spikeguard_server.notify.wire import post_json, send

STANDS_FOR = timedelta(days=7)  # what an Alertmanager keeps firing if nobody ever says otherwise


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
    send("POST", channel.target["url"], body, headers, by.networks)


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


_PRIORITY = {Urgency.INFO: "P5", Urgency.WARNING: "P3", Urgency.URGENT: "P1"}


def _opsgenie(channel: Channel, message: ChannelMessage, by: Carriage) -> None:
    base = channel.target["url"].rstrip("/") + "/v2/alerts"
    mine = f"{base}/{quote(message.key, safe='')}"
    headers = {"Authorization": f"GenieKey {channel.target['api_key']}"}

    def tell(path: str, content: Mapping[str, object], method: str = "POST") -> None:
        post_json(path, {"source": "spikeguard", **content}, by.networks, headers, method)

    if by.began:
        tell(f"{mine}/notes?identifierType=alias", {"note": _noted(message)})
        tell(f"{mine}/message?identifierType=alias", {"message": message.title[:130]}, "PUT")
    else:
        tell(base, _opsgenie_alert(message))
    if message.over:
        tell(f"{mine}/close?identifierType=alias", {"note": message.title})
    elif message.answered:
        tell(f"{mine}/acknowledge?identifierType=alias", {"note": message.title})


def _noted(message: ChannelMessage) -> str:
    return f"{message.title}\n{message.body()}"[:25_000]


def _opsgenie_alert(message: ChannelMessage) -> dict[str, object]:
    return {
        "message": message.title[:130],
        "alias": message.key,
        "description": message.body()[:15_000],
        "entity": f"{message.project}/{message.run}"[:512],
        "priority": _PRIORITY[message.urgency],
        "tags": ["spikeguard", *([message.spike.kind.value] if message.spike else [])],
        "details": {"project": message.project, "run": message.run, **message.links},
    }


def _alertmanager(channel: Channel, message: ChannelMessage, by: Carriage) -> None:
    """Labels name the conversation and never change, or each change would be another alert."""
    spike = message.spike
    began = spike.opened_at if spike else message.at
    alert = {
        "labels": {
            "alertname": "SpikeguardIncident" if spike else "SpikeguardRun",
            "project": message.project,
            "run": message.run,
            "incident": spike.id if spike else "",
            "key": message.key,
        },
        "annotations": {
            "summary": message.title,
            "description": message.body(),
            "urgency": message.urgency.value,
            **({"kind": spike.kind.value} if spike else {}),
        },
        "startsAt": began.isoformat(),
        "endsAt": (message.at if message.over else message.at + STANDS_FOR).isoformat(),
        "generatorURL": next(iter(message.links.values()), ""),
    }
    given = channel.target.get("authorization", "")
    headers = {"Authorization": given} if given else {}
    url = channel.target["url"].rstrip("/") + "/api/v2/alerts"
    post_json(url, [alert], by.networks, headers)


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
    ChannelKind.OPSGENIE: _opsgenie,
    ChannelKind.ALERTMANAGER: _alertmanager,
    ChannelKind.APPRISE: _apprise,
}
