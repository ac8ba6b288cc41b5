"""What a reverse proxy's headers say: the caller's address, and whom it has signed in.

Off unless an operator names the proxies, and to be believed about an address is not to be believed
about a person. A name counts only on a connection that one of the proxies that sign in opened
itself, by the address of the socket and never by what a header says of it; one that comes twice
counts as none. The rest of the server knows sessions alone.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_address

from starlette.datastructures import Headers
from starlette.requests import Request

from spikeguard_server.access.accounts import Account
from spikeguard_server.access.person_names import read_person
from spikeguard_server.http.middleware import PEER
from spikeguard_server.identity.actors import KnownBy
from spikeguard_server.identity.sign_in_roles import accesses_of, read_accesses
from spikeguard_server.settings import Settings, networks_of

Networks = tuple[IPv4Network | IPv6Network, ...]


def believed_networks(settings: Settings) -> Networks:
    """The proxies whose word on a caller's address counts; this machine's only where it is named:
    any of its users can call from there."""
    return networks_of(f"{settings.trusted_proxies},{settings.sign_in_proxies}")


def signed_in(settings: Settings, request: Request) -> Account | None:
    """Who was signed in by the proxy; None where nobody was, or by nobody that counts."""
    networks = networks_of(settings.sign_in_proxies)
    if not networks or not is_in(request.scope.get(PEER), networks):
        return None
    name = _single(request.headers, settings.sign_in_person_header)
    if not name:
        return None
    person = read_person(name)
    groups = (_single(request.headers, settings.sign_in_groups_header) or "").split(",")
    given = accesses_of([g.strip() for g in groups], read_accesses(settings.sign_in_roles))
    return Account(f"proxy {person}", person, KnownBy.PROXY, given)


def is_in(peer: object, networks: Networks) -> bool:
    """Whether an address lies in one of `networks`; what is no address does not."""
    try:
        address = ip_address(str(peer))
    except ValueError:
        return False
    return any(address in network for network in networks)


def _single(headers: Headers, name: str) -> str | None:
    values = headers.getlist(name)
    if len(values) != 1:
        return None
    return values[0].encode("latin-1").decode("utf-8", "replace").strip()
