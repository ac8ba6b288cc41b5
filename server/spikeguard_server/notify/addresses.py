"""Which addresses a message may go to.

A name is resolved once, every address of it is judged, and the connection goes to one of those:
what the name means a second later does not matter. Private, local and reserved addresses are
refused unless the operator allows their network.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
_TRANSLATED = IPv6Network("64:ff9b::/96")  # RFC 6052: an IPv4 address in the last 32 bits
# What `is_global` lets pass, in this Python or an older one, and is no place of the internet.
_LOCAL = tuple(
    ip_network(text)
    for text in (
        "192.0.0.0/24",  # RFC 6890, of the network's own; a cloud's metadata lies in it
        "192.88.99.0/24",  # RFC 7526, relays of 6to4 that are no more
        "168.63.129.16/32",  # Azure's own services, as seen from its machines
        "fec0::/10",  # RFC 3879, site-local
        "64:ff9b:1::/48",  # RFC 8215, a network's own translation to IPv4
        "100::/64",  # RFC 6666, discarded
        "2001::/23",  # RFC 2928, protocols of the IETF; Teredo is judged by what it stands for
        "3fff::/20",  # RFC 9637, documentation
        "5f00::/16",  # RFC 9602, segment routing
    )
)


class TargetRefused(Exception):
    """A target that nothing is sent to. Says which rule, and what an operator can do."""


def read_networks(text: str) -> tuple[Network, ...]:
    """`10.0.0.0/8, fd00::/8` as networks; raise `ValueError` for anything else."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def embedded_ipv4(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, where it does."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _TRANSLATED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def check_address(text: str, networks: Sequence[Network]) -> bool:
    """Whether `text`, an IP address, lies in a network that the operator named; raise
    `TargetRefused` if neither that nor an address of the internet at large."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        raise TargetRefused(f"{text[:60]!r} is no address") from None
    real = embedded_ipv4(address)
    if _within(real, networks):
        return True
    if not real.is_global or real.is_multicast or real.is_reserved or _within(real, _LOCAL):
        raise TargetRefused(
            f"the target lies at {address}, which is no public address; an operator can allow its "
            "network with SPIKEGUARD_NOTIFY_NETWORKS"
        )
    return False


def _within(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in each for each in networks if each.version == address.version)


def resolve(host: str, port: int, networks: Sequence[Network]) -> tuple[list[str], bool]:
    """The addresses of `host`, in the order to try them, and whether the operator named them all.

    Every one of them has to be good, or none is taken. Raises `TargetRefused`, or `OSError` where
    the name does not resolve.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if not addresses:
        raise OSError(f"{host} has no address")
    named = [check_address(address, networks) for address in addresses]
    return addresses, all(named)
