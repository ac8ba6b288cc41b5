"""Whether what is sent to an address can be read, and answered, by whoever is on the way.

Only this machine's own loopback counts as safe: a private address, a host name of the same network
and a container's name are other machines as far as anyone can tell from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

SILENCE = "SPIKEGUARD_ALLOW_PLAIN_HTTP"  # in the environment: 1 where the network is trusted
_OFF = ("", "0", "false", "no", "off")


def plain_http_warning(address: str, environment: Mapping[str, str]) -> str | None:
    """What to say of `address` before a token goes there; None where nothing is wrong with it."""
    host = plain_http_host(address)
    if host is None or environment.get(SILENCE, "").strip().lower() not in _OFF:
        return None
    return (
        f"the token and all that is sent go to {host!r} over plain http: whoever is on the way can "
        "read them and answer in the server's name. Use https, or a tunnel (ssh -L "
        f"8000:localhost:8000 {host}) and http://localhost:8000; where that network is trusted, "
        f"set {SILENCE}=1"
    )


def is_address(text: str) -> bool:
    """Whether `text` is the http or https address of a server."""
    try:
        parts = urlsplit(text)
        named = bool(parts.hostname) and " " not in text
        return parts.scheme in ("http", "https") and named and parts.port != 0
    except ValueError:  # a bracket without its other half, a port that is none
        return False


def plain_http_host(address: str) -> str | None:
    """The other machine that `address` reaches without encryption; None where it does not."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return None  # no address: nothing is sent
    host = parts.hostname or ""
    return host if parts.scheme == "http" and host and not _is_loopback(host) else None


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
