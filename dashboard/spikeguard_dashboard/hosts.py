"""The names that the dashboard may be called by.

The dashboard shows what its token may read to whoever reaches its port, and a browser reaches what
its user's machine reaches. A site whose name is made to lead to this address (DNS rebinding) would
be of the same origin as the dashboard, and read it. The browser then names that site as the host.

Invariants: pure. An address as a number is always good: no name leads there.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

HOSTS = "SPIKEGUARD_DASHBOARD_HOSTS"
ANY = "*"
_ADDRESSES = ("SPIKEGUARD_PUBLIC_URL", "SPIKEGUARD_DASHBOARD_URL")


def known_hosts(environment: Mapping[str, str]) -> frozenset[str]:
    """The names that the environment gives: those listed, and those of both addresses."""
    listed = (part.strip() for part in environment.get(HOSTS, "").split(","))
    addresses = (_host_of(environment.get(name, "")) for name in _ADDRESSES)
    return frozenset(name.lower() for name in (*listed, *addresses) if name)


def is_ours(host: str, known: frozenset[str]) -> bool:
    """Whether a request's `Host` is a name of this dashboard's: host and port, nothing else."""
    if "@" in host:
        return False
    name = _host_of(f"//{host}").rstrip(".")
    if ANY in known or name in known or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
