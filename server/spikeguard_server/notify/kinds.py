"""How each kind of channel carries a message: signed webhook, PagerDuty, and Apprise for the rest.

One conversation is one alert on the other side, updated and in the end resolved, by a key that
never changes. The format of PagerDuty is that of its Events API v2. A mail is five lines, what to
press, the curve, then the rest, without a script and with nothing that is fetched.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from spikeguard_core.notification.channel import PNG, Channel, ChannelKind
from spikeguard_core.notification.topics import Urgency
from spikeguard_protocol.escaping import chat_text
from spikeguard_protocol.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from spikeguard_server.notify.facts import LABEL, incident_image
from spikeguard_server.notify.message import ChannelMessage, brief
from spikeguard_server.notify.wire import DeliveryFailed, Network, post_json, resolve, send
from spikeguard_server.report.render import templates

PICTURE: Final = "curve.png"  # its name in a mail
LOCAL: Final = frozenset({"syslog", "dbus", "gnome", "macosx", "windows", "glib", "qt", "kde"})
_PLAIN: ContextVar[str] = ContextVar("_PLAIN")  # of the mail that is being sent


def mail_html(message: ChannelMessage, *, drawn: bool = False) -> str:
    """The mail of `message`, whose title is its subject; `drawn`: with its picture."""
    first, *rest = message.lines()
    links, five = dict(message.links), len(brief(message.spike)) - 1 if message.spike else 0
    page, link = links.pop("Decide", None), links.pop(LABEL, None)
    return templates("spikeguard_server.notify").get_template("mail.html").render(
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
        drawn = incident_image(message.picture, png=True)
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
    """By Apprise, which carries e-mail, chats and some 170 services more. A url may lead to no
    address that a channel may not reach, follow no redirect, and name no file of the server's."""
    library, url = _library(), channel.target["url"]
    asset = library.AppriseAsset(
        app_id="spikeguard", app_desc="spikeguard", async_mode=False, http_redirects=False
    )
    box, parts = library.Apprise(asset=asset), urlsplit(url)
    if parts.scheme.lower() in LOCAL or "template" in parse_qs(parts.query) or not box.add(url):
        raise DeliveryFailed("Apprise does not understand the channel's url", again=False)
    mails = [service for service in box if service.secure_protocol == "mailtos"]
    first = f"<{hashlib.sha256(message.key.encode()).hexdigest()[:32]}@spikeguard>"
    for service in box:
        if "host" in service.template_tokens:  # else its address is in Apprise
            with suppress(OSError):  # of no name: a topic, or Apprise does not reach it either
                host = getattr(service, "smtp_host", "") or service.host
                resolve(host, service.port or 0, networks)
        service.redirects = False  # its url may ask for them
    for mail in mails:  # those of a conversation are a thread: all name the same first one
        vars(mail)["headers"].update({"In-Reply-To": first, "References": first})
        vars(mail)["inline"] = True  # a picture stands in the text that names it
    title, body = message.title, message.body()
    _PLAIN.set(body)
    if not mails:  # many chats read Markdown in what is to be plain; the links are ours
        title = chat_text(title)
        body = "\n".join([*map(chat_text, message.lines()), *message.link_lines()])
    told: dict[str, Any] = {"body": body, "body_format": "text"}  # escaped for markup
    if len(mails) == len(box) and all(map(_takes_html, mails)):
        drawn, attached = incident_image(message.picture, png=True), list[Any]()
        if drawn:
            memory: Any = import_module("apprise.attachment.memory")
            attached.append(memory.AttachMemory(drawn, name=PICTURE, mimetype="image/png"))
        html = mail_html(message, drawn=bool(drawn))
        told = {"body": html, "body_format": "html", "attach": attached}
    kind = "success" if message.over else _SEVERITY[message.urgency][1]
    if not box.notify(title=title, notify_type=kind, **told):
        raise DeliveryFailed("the service did not take it", again=True)


@cache
def _library() -> Any:
    """Apprise, which takes a second to read. The text part of its mails is the message's own: what
    it makes out of the HTML has no addresses."""
    import apprise
    from apprise.plugins.email import base

    vars(base)["convert_between"] = lambda *_, **__: _PLAIN.get()
    return apprise


def _takes_html(mail: Any) -> bool:
    """Whether it was not asked to be plain; as text its spaces would never break a line."""
    form = mail.notify_format  # those that it takes, or the one that was asked for
    return "html" in (form if isinstance(form, tuple) else (form,))


def shows_picture(channel: Channel) -> bool:
    """Whether a message there carries the curve: a mail, and a webhook that asks for it."""
    if channel.kind is ChannelKind.WEBHOOK:
        return channel.target.get("picture") == PNG
    mail = channel.target["url"].lower().startswith(("mailto:", "mailtos:"))
    return bool(channel.kind is ChannelKind.APPRISE and mail)


CARRIERS: Mapping[ChannelKind, Carrier] = {
    ChannelKind.WEBHOOK: _webhook,
    ChannelKind.PAGERDUTY: _pagerduty,
    ChannelKind.APPRISE: _apprise,
}
