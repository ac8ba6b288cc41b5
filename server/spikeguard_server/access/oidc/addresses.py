"""Which addresses of an identity provider may be asked."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_careful(address: str) -> bool:
    """Whether what travels to `address` cannot be read on the way."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return False
    if parts.scheme == "https":
        return bool(host) and port != 0
    return parts.scheme == "http" and _is_this_machine(host)


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
