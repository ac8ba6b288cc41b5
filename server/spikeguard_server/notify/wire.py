"""One HTTP request to a channel: only to checked addresses, within one deadline.

A name is resolved once, every address of it is judged, and the connection goes to one of those:
what the name means a second later does not matter. Private, local and reserved addresses are
refused unless the operator allows their network; what is sent without TLS goes only to networks
that the operator named. No redirect is followed, no proxy is asked, and of an answer its head
counts. No error repeats what was sent.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Mapping, Sequence
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

import httpx

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
CONNECT_S: Final = 5.0  # for each address
ANSWER_S: Final = 30.0  # for everything after the name is resolved, to the head of the answer
_LATER: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
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
        "2001::/23",  # RFC 2928, protocols of the IETF, with Teredo
        "2002::/16",  # RFC 7526, 6to4
        "3fff::/20",  # RFC 9637, documentation
        "5f00::/16",  # RFC 9602, segment routing
    )
)


class DeliveryFailed(Exception):
    """A message did not arrive. `again` says whether another try may help: where this process may
    not connect to, and whose certificates it trusts, are settings of this process, and another
    replica may well deliver what this one cannot."""

    def __init__(self, reason: str, *, again: bool, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.again = again
        self.after_s = after_s  # what the other side asked for


def check_address(text: str, networks: Sequence[Network]) -> bool:
    """Whether `text`, an IP address, lies in a network that the operator named; raise
    `DeliveryFailed` if neither that nor an address of the internet at large."""
    address = ip_address(text.partition("%")[0])
    real: Address = address
    if isinstance(address, IPv6Address):  # the IPv4 address that it stands for, where it does
        translated = IPv4Address(int(address) & 0xFFFFFFFF) if address in _TRANSLATED else address
        real = address.ipv4_mapped or translated
    if any(real in each for each in networks):
        return True
    local = any(real in each for each in _LOCAL)
    if not real.is_global or real.is_multicast or real.is_reserved or local:
        raise DeliveryFailed(
            f"the target lies at {address}, which is no public address; an operator can allow its "
            "network with SPIKEGUARD_NOTIFY_NETWORKS",
            again=True,
        )
    return False


def resolve(host: str, port: int, networks: Sequence[Network]) -> tuple[list[str], bool]:
    """The addresses of `host`, in the order to try them, and whether the operator named them all.

    Every one of them has to be good, or none is taken. Raises `DeliveryFailed`, or `OSError` where
    the name does not resolve.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    named = [check_address(address, networks) for address in addresses]
    return addresses, all(named)


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def send(url: str, body: bytes, headers: Mapping[str, str], networks: Sequence[Network]) -> None:
    """Send `body`; raise `DeliveryFailed` unless the answer is 2xx."""
    try:
        place = httpx.URL(url)
        sealed = place.scheme == "https"
        addresses, allowed = resolve(place.host, place.port or (443 if sealed else 80), networks)
        if not sealed and not allowed:
            raise DeliveryFailed(
                "http without TLS goes only to networks in SPIKEGUARD_NOTIFY_NETWORKS", again=True
            )
        # asyncio for its deadline: a timeout of sockets begins anew with every byte that drips in.
        answer = asyncio.run(asyncio.wait_for(_post(place, body, headers, addresses), ANSWER_S))
    except (OSError, httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise DeliveryFailed(f"no answer ({_why(error)})", again=True) from error
    if not answer.is_success:
        status, asked = answer.status_code, answer.headers.get("Retry-After", "")
        after_s = min(float(asked), 3600.0) if asked.isdecimal() else None
        raise DeliveryFailed(f"answered {status}", again=status in _LATER, after_s=after_s)


def post_json(url: str, content: Any, networks: Sequence[Network]) -> None:
    """Send `content` as JSON; raise `DeliveryFailed` unless the answer is 2xx."""
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    send(url, body, {"Content-Type": "application/json"}, networks)


async def _post(
    url: httpx.URL, body: bytes, headers: Mapping[str, str], addresses: Sequence[str]
) -> httpx.Response:
    """The answer's head, from the first of the judged addresses that takes the connection, in the
    name of the host: its certificate is that of the name. What follows is not read."""
    timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
    given = {"User-Agent": "spikeguard", "Connection": "close", "Host": url.netloc.decode()}
    failure: httpx.TransportError = httpx.ConnectError("no address")
    async with httpx.AsyncClient(verify=_tls(), timeout=timeout, trust_env=False) as client:
        for address in addresses:
            asked = client.stream(
                "POST", url.copy_with(host=address), content=body, headers={**given, **headers},
                extensions={"sni_hostname": url.host},
            )  # fmt: skip
            try:
                async with asked as answer:
                    return answer
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error
    raise failure


def _why(error: BaseException | None) -> str:
    """The kind of failure in the system's words: other texts may hold what was sent."""
    cause = error
    while cause is not None:  # what it came from, httpx's own words first
        if isinstance(cause, TimeoutError | httpx.TimeoutException):
            return "timed out"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__
