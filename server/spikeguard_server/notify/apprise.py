"""Apprise, which carries e-mail, chats and some 170 services more.

A url may lead to no address that a channel may not reach, follow no redirect, and name no file of
the server's. Apprise is read when the first message goes by it: it takes a second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from spikeguard_server.notify.addresses import Network, TargetRefused, resolve
from spikeguard_server.notify.wire import DeliveryFailed

PICTURE: Final = "curve.png"  # its name in a mail
LOCAL: Final = frozenset({"syslog", "dbus", "gnome", "macosx", "windows", "glib", "qt", "kde"})
_PLAIN: ContextVar[str] = ContextVar("_PLAIN")  # of the mail that is being sent


@dataclass(frozen=True, slots=True)
class Text:
    """What is sent."""

    title: str
    body: str  # plain, one fact a line
    html: str  # the same as a mail shows it
    picture: bytes = b""  # PNG that the HTML names; empty = it names none


def send_by_apprise(url: str, text: Text, kind: str, networks: Sequence[Network], key: str) -> None:
    """Send by Apprise; raise `DeliveryFailed` where it says that nothing arrived.

    `kind` is one of Apprise's: info, success, warning, failure. `key` names the conversation.
    """
    apprise = _apprise()
    asset = apprise.AppriseAsset(
        app_id="spikeguard", app_desc="spikeguard", async_mode=False, http_redirects=False
    )
    box, parts = apprise.Apprise(asset=asset), urlsplit(url)
    if parts.scheme.lower() in LOCAL or "template" in parse_qs(parts.query) or not box.add(url):
        raise DeliveryFailed("Apprise does not understand the channel's url", again=False)
    for channel in box:
        _check_host(channel, networks)
        channel.redirects = False  # its url may ask for them
        if _is_mail(channel):  # the one of its kinds that knows threads
            vars(channel)["headers"].update(thread_headers(key))
            vars(channel)["inline"] = True  # a picture stands in the text that names it
    _PLAIN.set(text.body)
    told: dict[str, Any] = {"body": text.body, "body_format": "text"}  # escaped for markup
    if all(_is_mail(channel) and _takes_html(channel) for channel in box):
        told = {"body": text.html, "body_format": "html", "attach": _pictures(text.picture)}
    if not box.notify(title=text.title, notify_type=kind, **told):
        raise DeliveryFailed("the service did not take it", again=True)


def _check_host(channel: Any, networks: Sequence[Network]) -> None:
    """Of a service of somebody's own; the others have their addresses in Apprise."""
    if "host" not in channel.template_tokens:
        return
    try:
        resolve(getattr(channel, "smtp_host", "") or channel.host, channel.port or 0, networks)
    except TargetRefused as refusal:
        raise DeliveryFailed(str(refusal), again=True) from refusal
    except OSError:
        return  # no host of that name: a topic, or Apprise does not reach it either


@cache
def _apprise() -> Any:
    """Apprise, of whose mails the text part is the message's own: what it makes out of the HTML has
    no addresses."""
    import apprise
    from apprise.plugins.email import base

    vars(base)["convert_between"] = lambda *_, **__: _PLAIN.get()
    return apprise


def thread_headers(key: str) -> dict[str, str]:
    """What makes mails of one conversation a thread: all name the same first one."""
    first = f"<{hashlib.sha256(key.encode()).hexdigest()[:32]}@spikeguard>"
    return {"In-Reply-To": first, "References": first}


def _is_mail(channel: Any) -> bool:
    return bool(channel.secure_protocol == "mailtos")


def _takes_html(channel: Any) -> bool:
    """Whether it was not asked to be plain; as text its spaces would never break a line."""
    form = channel.notify_format  # those that it takes, or the one that was asked for
    return "html" in (form if isinstance(form, tuple) else (form,))


def _pictures(content: bytes) -> list[Any]:
    """What is attached: the picture that the HTML names."""
    from apprise.attachment.memory import AttachMemory

    made: Any = AttachMemory  # typed nowhere
    return [made(content, name=PICTURE, mimetype="image/png")] if content else []
