"""Whether two approvals come from two people.

Invariants: pure. A name counts once, and so does a token, whatever names were given with it. Of two
people one at least is signed in: whoever reads a channel holds all of its links.
"""

from __future__ import annotations

from dataclasses import dataclass

from spikeguard_server.access.person_names import same_name
from spikeguard_server.identity.actors import Actor, KnownBy


@dataclass(frozen=True, slots=True)
class Approver:
    """Who said yes, and with what."""

    name: str
    token: int | None  # the grant, which outlives a session; None: signed in with none
    known_by: KnownBy | None


def approver_of(person: str) -> Approver:
    """Who `person` is; a plain name has nothing behind it."""
    if isinstance(person, Actor):
        return Approver(str(person), person.token_id, person.known_by)
    return Approver(person, None, None)


def why_not_another(first: Approver, second: Approver) -> str | None:
    """Why `second` is not a second person; None if they are."""
    if same_name(first.name, second.name):
        return f"{first.name} has approved it already"
    if first.token is not None and first.token == second.token:
        return f"{first.name} approved it with the token that you came with, and it counts once"
    if first.known_by is KnownBy.LINK and second.known_by is KnownBy.LINK:
        return f"{first.name} approved it without signing in, so the second person signs in"
    return None
