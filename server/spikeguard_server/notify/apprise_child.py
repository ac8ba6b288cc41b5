"""The process that Apprise runs in: one message from standard input, one exit status.

Law: the guard is in place before Apprise is imported, and cannot be taken away: an audit hook of
the interpreter sees every connection with the address that it goes to, every file that is opened
and every process that is started. A channel's url reaches no private address, no file of ours and
no program.
"""

from __future__ import annotations

import hashlib
import json
import os
import site
import ssl
import sys
import sysconfig
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spikeguard_server.notify.addresses import Network, TargetRefused, check_address, read_networks
from spikeguard_server.notify.apprise import BAD_URL, NOT_SENT, PICTURE, REFUSED, SENT

CONNECTIONS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
PROGRAMS = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"})
LOCAL = frozenset({"syslog", "dbus", "gnome", "macosx", "windows", "glib", "qt", "kde"})
SYSTEM = ("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/mime.types", "/dev/null")


class Guard:
    """Refuses what a message has no business with, and remembers that it had to."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self._networks = networks
        self._folders = _readable()
        self.refused = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """What the interpreter calls before it does `event`."""
        if event in CONNECTIONS:
            self._connect(arguments[1])
        elif event in PROGRAMS:
            raise PermissionError("a channel starts no program")
        elif event == "open" and isinstance(arguments[0], str):
            self._open(arguments[0])

    def _connect(self, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else address
        try:
            check_address(str(host), self._networks)
        except TargetRefused as refusal:
            self.refused = True
            raise OSError(str(refusal)) from refusal

    def _open(self, path: str) -> None:
        real = os.path.realpath(path)
        if real not in SYSTEM and not real.startswith(self._folders):
            raise PermissionError("a channel reads no file of ours")


def _readable() -> tuple[str, ...]:
    """Where code, certificates and time zones are."""
    certificates = ssl.get_default_verify_paths()
    found = [sys.prefix, sys.base_prefix, *site.getsitepackages(), *sysconfig.get_paths().values()]
    found += [*sys.path, str(Path(__file__).parents[2]), "/usr/share/zoneinfo", "/etc/ssl"]
    found += [path for path in (certificates.cafile, certificates.capath) if path]
    return tuple({os.path.realpath(path) for path in found if len(path) > 1})


def _follow_no_redirect() -> None:
    """A message, and the key that it carries, goes where the channel says and nowhere else; a url
    of Apprise's may ask for redirects, so its own setting is not enough."""
    import requests

    requests.Session.get_redirect_target = lambda *_: None  # type: ignore[method-assign]


def thread_headers(key: str) -> dict[str, str]:
    """What makes mails of one conversation a thread: all name the same first one."""
    first = f"<{hashlib.sha256(key.encode()).hexdigest()[:32]}@spikeguard>"
    return {"In-Reply-To": first, "References": first}


def _takes_html(channel: Any) -> bool:
    """Whether it is a mail, and one that was not asked to be plain."""
    form = channel.notify_format  # those that it takes, or the one that was asked for
    forms = form if isinstance(form, tuple) else (form,)
    return channel.secure_protocol == "mailtos" and "html" in forms


def _keep_plain(body: str) -> None:
    """A mail's text part is the message's own: made out of the HTML it would have no addresses."""
    from apprise.plugins.email import base

    vars(base)["convert_between"] = lambda *_: body


def _pictures(content: bytes) -> list[Any]:
    """What is attached: the picture that the HTML names."""
    from apprise.attachment.memory import AttachMemory

    made: Any = AttachMemory  # typed nowhere
    return [made(content, name=PICTURE, mimetype="image/png")] if content else []


def main() -> int:
    """Send what standard input says."""
    given = json.load(sys.stdin)
    guard = Guard(read_networks(",".join(given["networks"])))
    sys.addaudithook(guard)
    if given["url"].partition("://")[0].lower() in LOCAL:
        return BAD_URL
    import apprise

    _follow_no_redirect()
    asset = apprise.AppriseAsset(app_id="spikeguard", app_desc="spikeguard", async_mode=False)
    box = apprise.Apprise(asset=asset)
    if not box.add(given["url"]):
        return BAD_URL
    for channel in box:
        if channel.secure_protocol == "mailtos":  # the one of its kinds that knows threads
            vars(channel)["headers"].update(thread_headers(given["key"]))
            vars(channel)["inline"] = True  # a picture stands in the text that names it
    kind = apprise.NotifyType(given["kind"])
    pictures: list[Any] = []
    body, form = given["body"], apprise.NotifyFormat.TEXT  # escaped where a service takes markup
    if all(_takes_html(channel) for channel in box):  # as text its spaces would never break a line
        _keep_plain(given["body"])
        body, form = given["html"], apprise.NotifyFormat.HTML
        pictures = _pictures(b64decode(given["picture"]))
    if box.notify(body, given["title"], notify_type=kind, body_format=form, attach=pictures):
        return SENT
    return REFUSED if guard.refused else NOT_SENT


if __name__ == "__main__":
    sys.exit(main())
