"""Approval links: made and read. Whoever holds one may decide on one proposal.

A link says which revision of which command, for which channel, until when, and is signed with the
operator's key; nothing in it can be changed or guessed. That it is good once only is the database's
to say. Without a key there are no links.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import asdict, dataclass
from typing import Final

from spikeguard_protocol import CommandId, IncidentId, ProtocolError, RunId
from spikeguard_server.errors import Forbidden

_PURPOSE: Final = b"spikeguard approval link 1\n"
_ASK: Final = "Sign in and decide on the confirmation page, or wait for the next message"


@dataclass(frozen=True, slots=True)
class ApprovalLink:
    """What a link says. `id` names its row in the database."""

    id: str
    project: str
    run: str
    incident: int
    command: int
    revision: int
    expires_at: int  # seconds since the epoch, by the database's clock

    @property
    def command_id(self) -> CommandId:
        """The command that may be decided on."""
        return CommandId(IncidentId(RunId(self.project, self.run), self.incident), self.command)


def write_link(link: ApprovalLink, key: str) -> str:
    """The last part of the link's address."""
    said = json.dumps(list(asdict(link).values()), separators=(",", ":")).encode()
    return f"{_text(said)}.{_text(_mac(said, key))}"


def read_link(text: str, key: str, now_s: float) -> ApprovalLink:
    """What a link says; raise `Forbidden` for one not made here, changed, or old."""
    said, _, mac = text.partition(".")
    content = _bytes(said)
    if not key or not hmac.compare_digest(_mac(content, key), _bytes(mac)):
        raise Forbidden("This link was not made by this server, or is not whole", _ASK)
    try:
        link = ApprovalLink(*json.loads(content))
        link.command_id  # noqa: B018 - names are checked when they are made
    except (ValueError, TypeError, ProtocolError):
        raise Forbidden("This link was made by another version of this server", _ASK) from None
    if now_s >= link.expires_at:
        raise Forbidden("This link has expired, and nothing was done with it", _ASK)
    return link


def _mac(content: bytes, key: str) -> bytes:
    return hmac.new(key.encode(), _PURPOSE + content, hashlib.sha256).digest()


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (ValueError, binascii.Error):
        return b""
