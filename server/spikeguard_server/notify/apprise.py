"""Apprise in a process of its own, which reaches no address that a channel may not reach.

Law: its URLs hold secrets, so they travel on standard input, never in an argument or a variable.
The child judges every address at the moment of connecting, and is killed when its time is up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from spikeguard_server.notify.addresses import Network
from spikeguard_server.notify.wire import DeliveryFailed

TIMEOUT_S: Final = 40.0
PICTURE: Final = "curve.png"  # its name in a mail
SENT, NOT_SENT, BAD_URL, REFUSED = 0, 3, 4, 5
_PASSED_ON: Final = ("PATH", "HOME", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "PYTHONPATH")


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
    given = {
        "url": url, "kind": kind, "key": key, **asdict(text),
        "picture": b64encode(text.picture).decode(),
        "networks": [str(network) for network in networks],
    }  # fmt: skip
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "spikeguard_server.notify.apprise_child"],
            input=json.dumps(given).encode(),
            capture_output=True,
            timeout=TIMEOUT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DeliveryFailed(f"not sent within {TIMEOUT_S:.0f} s", again=True) from None
    _judge(done.returncode)


def _judge(status: int) -> None:
    if status == SENT:
        return
    reason, again = _REASONS.get(status, (f"Apprise ended with {status}", True))
    raise DeliveryFailed(reason, again=again)


_REASONS: Final = {
    NOT_SENT: ("the service did not take it", True),
    BAD_URL: ("Apprise does not understand the channel's url", False),
    REFUSED: (
        "the target lies at no public address; an operator can allow its network with "
        "SPIKEGUARD_NOTIFY_NETWORKS",
        True,  # of this process: another replica may be allowed to
    ),
}
