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
from spikeguard_protocol.escaping import chat_text, html_text
from spikeguard_protocol.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from spikeguard_server.notify.addresses import Network
from spikeguard_server.notify.apprise import PICTURE, Text, send_by_apprise
from spikeguard_server.notify.facts import LABEL
from spikeguard_server.notify.message import ChannelMessage, brief
from spikeguard_server.notify.picture import incident_png
from spikeguard_server.notify.wire import post_json, send

_PAGE = "font:16px/1.5 -apple-system,'Segoe UI',Roboto,sans-serif;max-width:40em;margin:0 auto"
_CURVE = "width:100%;max-width:34em;height:auto"
_BUTTON = (
    "display:inline-block;padding:12px 20px;margin:0 8px 8px 0;border-radius:8px;"
    "text-decoration:none;font-weight:600"
)
_FILLED = "background:#1d5fd1;color:#ffffff;border:1px solid #1d5fd1"
_PLAIN = "background:#ffffff;color:#1d5fd1;border:1px solid #9bb3dd"
_VERBS = (  # place on the page that decides, label, style
    ("approve", "Approve", _FILLED),
    ("reject", "Reject", _PLAIN),
    ("snooze", "Snooze 15 min", _PLAIN),
)


def mail_picture(message: ChannelMessage) -> bytes:
    """The curve as PNG; empty where there is none. A mail without it is better than none."""
    return b"" if message.picture is None else incident_png(message.picture)


def mail_html(message: ChannelMessage, *, drawn: bool = False) -> str:
    """The mail of `message`, whose title is its subject; `drawn`: with its picture."""
    first, *rest = message.lines()
    links, five = dict(message.links), len(brief(message.spike)) - 1 if message.spike else 0
    parts = [f"<p><b>{html_text(first)}</b></p>"]
    parts += [f"<p>{html_text(line)}</p>" for line in rest[:five]]
    page, link = links.pop("Decide", None), links.pop(LABEL, None)
    parts += _ways_to_decide(page, link, links.pop("Open", None) if page else None)
    parts += [f'<p><img src="cid:{PICTURE}" alt="The curve" style="{_CURVE}"></p>'] * drawn
    parts += [f"<p>{html_text(line)}</p>" for line in rest[five:]]
    parts += [
        f'<p><a href="{html_text(url)}">{html_text(name)}</a></p>' for name, url in links.items()
    ]
    return f'<div style="{_PAGE}">{"".join(parts)}</div>'


def _ways_to_decide(page: str | None, link: str | None, first_view: str | None) -> list[str]:
    """A button for each verb, which leads to its form: opening a page decides nothing. With a
    `link` that needs no signing in they lead there, and it is said."""
    if page is None:
        return []
    verbs = "".join(_button(f"{link or page}#{place}", *verb) for place, *verb in _VERBS)
    verbs += _button(first_view, "Open", _PLAIN) if first_view else ""
    if link is None:
        return [f"<p>{verbs}</p>", "<p>They lead to a page; nothing is done before you press.</p>"]
    other = f'<a href="{html_text(page)}">sign in and decide</a>'
    return [
        f"<p>{verbs}</p>",
        "<p>The buttons open a page where you can decide on this proposal once, without signing "
        f"in. Nothing is done until you press a button there. Or {other}.</p>",
    ]


def _button(address: str, label: str, style: str) -> str:
    target = html_text(address)
    return f'<a style="{_BUTTON};{style}" href="{target}">{html_text(label)}</a>'


Networks = Sequence[Network]
Carrier = Callable[[Channel, ChannelMessage, Networks], None]


def carry(channel: Channel, message: ChannelMessage, networks: Networks) -> None:
    """Send `message`; raise `DeliveryFailed` where it did not arrive."""
    CARRIERS[channel.kind](channel, message, networks)


def _webhook(channel: Channel, message: ChannelMessage, networks: Networks) -> None:
    content = message.facts()
    if shows_picture(channel):
        drawn = mail_picture(message)
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


_PAGERDUTY_SEVERITY = {
    Urgency.INFO: "info",
    Urgency.WARNING: "warning",
    Urgency.URGENT: "critical",
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
            "severity": _PAGERDUTY_SEVERITY[message.urgency],
            "timestamp": message.at.isoformat(),
            "component": message.told.name,
            "group": message.told.project,
            "class": message.spike.incident.kind.value if message.spike else message.told.state,
            "custom_details": {"text": message.body()},
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
    kind = "success" if message.over else _APPRISE_KIND[message.urgency]
    if _is_mail(channel):
        picture = mail_picture(message)
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


_APPRISE_KIND = {Urgency.INFO: "info", Urgency.WARNING: "warning", Urgency.URGENT: "failure"}

CARRIERS: Mapping[ChannelKind, Carrier] = {
    ChannelKind.WEBHOOK: _webhook,
    ChannelKind.PAGERDUTY: _pagerduty,
    ChannelKind.APPRISE: _apprise,
}
