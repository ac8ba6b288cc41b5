"""Addresses of a run in other trackers, as they travel and as pages may show them.

Http or https with a host, without a name or password in it and without what would end an attribute
or a line; at most `MAX_LINKS` of an attempt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from spikeguard_protocol.errors import ProtocolError

MAX_LINKS: Final = 8  # of an attempt
MAX_LINK_NAME: Final = 64  # characters
MAX_ADDRESS: Final = 2_000  # characters
_UNSAFE = re.compile(r"[^\x21-\x7e]|[\"'<>\\`{}|^]")  # whitespace, controls, what quotes or ends
_NAME = re.compile(r"[\w&.+ ()-]+")


def check_links(links: Mapping[str, str]) -> None:
    """Raise `ProtocolError` for the first that is none."""
    if len(links) > MAX_LINKS:
        raise ProtocolError("links", f"holds at most {MAX_LINKS} entries", f"Got {len(links)}")
    for name, address in links.items():
        if not 1 <= len(name) <= MAX_LINK_NAME or not _NAME.fullmatch(name):
            raise ProtocolError(
                "links",
                f"takes names of 1 to {MAX_LINK_NAME} letters, digits, spaces and & . + ( ) -",
                f"Got {name[:80]!r}",
            )
        check_address(f"links.{name}", address)


def check_address(field: str, address: str) -> None:
    """Raise `ProtocolError` where `address` is not one that a page may link to."""
    if len(address) > MAX_ADDRESS:
        raise ProtocolError(field, f"takes at most {MAX_ADDRESS} characters", f"Got {len(address)}")
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        good = False
    if not good or _UNSAFE.search(address):
        raise ProtocolError(
            field, "is an address that begins with http:// or https://", f"Got {address[:80]!r}"
        )
    if "@" in parts.netloc:
        raise ProtocolError(field, "holds no name or password", "Leave out what stands before @")
