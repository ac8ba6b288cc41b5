"""How each kind of channel carries a message: signed webhook, PagerDuty, and Apprise for the rest.

One conversation is one alert on the other side, updated and in the end resolved, by a key that
never changes. The format of PagerDuty is that of its Events API v2. A mail is five lines, what to
press, the curve, then the rest, without a script and with nothing that is fetched.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence

from spikeguard_core.notification.channel import PNG, Channel, ChannelKind
from spikeguard_core.notification.topics import Urgency
from spikeguard_protocol.escaping import chat_text
from spikeguard_protocol.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from spikeguard_server.notify.addresses import Network
from spikeguard_server.notify.apprise import PICTURE, Text, send_by_apprise
from spikeguard_server.notify.facts import LABEL
from spikeguard_server.notify.message import ChannelMessage, brief
from spikeguard_server.notify.picture import incident_png
from spikeguard_server.notify.wire import post_json, send
from spikeguard_server.report.render import template


def mail_html(message: ChannelMessage, *, drawn: bool = False) -> str:
    """The mail of `message`, whose title is its subject; `drawn`: with its picture."""
    first, *rest = message.lines()
    links, five = dict(message.links), len(brief(message.spike)) - 1 if message.spike else 0
    page, link = links.pop("Decide", None), links.pop(LABEL, None)
    return template("spikeguard_server.notify", "mail.html").render(
        first=first, before=rest[:five], after=rest[five:], page=page, link=link,
        first_view=links.pop("Open", None) if page else None, links=links,
        picture=PICTURE if drawn else None,
    )  # fmt: skip


Networks = Sequence[Network]
Carrier = Callable[[Channel, ChannelMessage, Networks], None]


def carry(channel: Channel, message: ChannelMessage, networks: Networks) -> None:
    """Send `message`; raise `DeliveryFailed` where it did not arrive."""
    CARRIERS[channel.kind](channel, message, networks)


def _webhook(channel: Channel, message: ChannelMessage, networks: Networks) -> None:
    content = message.facts()
    if shows_picture(channel):
        drawn = incident_png(message.picture)
        shown = {"media_type": "image/png", "base64": b64encode(drawn).decode()}
        content["picture"] = shown if drawn else None
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    timestamp = str(int(message.at.timestamp()))
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": f"{message.key}/{message.sequence}",
        TIMESTAMP_HEADER: timestamp,
        SIGNATURE_HEADER: sign(channel.target["secret"], timestamp, body),
    }
    send(channel.target["url"], body, headers, networks)


_SEVERITY = {  # of PagerDuty, and Apprise's kind
    Urgency.INFO: ("info", "info"),
    Urgency.WARNING: ("warning", "warning"),
    Urgency.URGENT: ("critical", "failure"),
}


def _pagerduty(channel: Channel, message: ChannelMessage, networks: Networks) -> None:
    event = {
        "routing_key": channel.target["routing_key"],
        "dedup_key": message.key,
        "event_action": "trigger",
        "client": "spikeguard",
        "links": [{"href": url, "text": name} for name, url in message.links.items()],
        "payload": {
            "summary": message.title[:1024],
            "source": f"{message.told.project}/{message.told.name}",
            "severity": _SEVERITY[message.urgency][0],
            "timestamp": message.at.isoformat(),
            "component": message.told.name,
            "group": message.told.project,
            "class": message.spike.incident.kind.value if message.spike else message.told.state,
            "custom_details": {"text": "\n".join(message.lines())},
        },
    }
    url = channel.target["url"].rstrip("/") + "/v2/enqueue"
    if not message.over or message.sequence == 1:  # else nobody there knows of it
        post_json(url, event, networks)
    answer = {name: event[name] for name in ("routing_key", "dedup_key")}
    if message.over or message.answered:
        action = "resolve" if message.over else "acknowledge"
        post_json(url, {**answer, "event_action": action}, networks)


def _apprise(channel: Channel, message: ChannelMessage, networks: Networks) -> None:
    kind = "success" if message.over else _SEVERITY[message.urgency][1]
    if _is_mail(channel):
        picture = incident_png(message.picture)
        html = mail_html(message, drawn=bool(picture))
        text = Text(message.title, message.body(), html, picture)
    else:  # many chats read Markdown in what they are given as plain text; the links are ours
        body = "\n".join([*map(chat_text, message.lines()), *message.link_lines()])
        text = Text(chat_text(message.title), body, mail_html(message))
    send_by_apprise(channel.target["url"], text, kind, networks, message.key)


def shows_picture(channel: Channel) -> bool:
    """Whether a message there carries the curve: a mail, and a webhook that asks for it."""
    if channel.kind is ChannelKind.WEBHOOK:
        return channel.target.get("picture") == PNG
    return _is_mail(channel)


def _is_mail(channel: Channel) -> bool:
    url = str(channel.target.get("url", "")).lower()
    return channel.kind is ChannelKind.APPRISE and url.startswith(("mailto:", "mailtos:"))


CARRIERS: Mapping[ChannelKind, Carrier] = {
    ChannelKind.WEBHOOK: _webhook,
    ChannelKind.PAGERDUTY: _pagerduty,
    ChannelKind.APPRISE: _apprise,
}
