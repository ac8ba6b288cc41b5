"""Sessions of people whom the identity provider or a reverse proxy has signed in.

All sessions of an account hang on one token a role and project that nobody holds. It ends as soon
as the account is found in no group that gives it; what was made with it ends then too. One by OIDC
ends a while after the last sign-in as well, and a name belongs to one account there at a time.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sql

from spikeguard_protocol.escaping import printable
from spikeguard_server.access.grants import (
    Grant,
    issue_token,
    start_session,
    withdraw_token,
)
from spikeguard_server.errors import Forbidden
from spikeguard_server.identity.actors import Actor, ActorKind, KnownBy
from spikeguard_server.identity.permissions import Access, best_access, gives
from spikeguard_server.store.audit import SERVER
from spikeguard_server.store.tokens import (
    of_subject,
    other_subject_of,
    prolong,
)

GRANT_S: Final = 30 * 86_400.0  # after a person's last sign-in by OIDC, in which their tokens work
_BY: Final = {KnownBy.OIDC: "OIDC", KnownBy.PROXY: "the reverse proxy"}


@dataclass(frozen=True, slots=True)
class Account:
    """Whom the provider or the proxy has signed in."""

    subject: str  # with who says so: no other account's
    person: str
    known_by: KnownBy
    accesses: AbstractSet[Access]  # that their groups give

    @property
    def by(self) -> str:
        """By what they sign in."""
        return _BY[self.known_by]


def open_account_session(
    engine: sql.Engine, account: Account, lasts_s: float, *, project: str = "",
    signed_in_s: float = 0.0,
) -> str:  # fmt: skip
    """The secret of a session, of `project` where one is named. Raise `Forbidden`."""
    end_lost_accesses(engine, account)
    access = best_access(account.accesses, project)
    if access is None:
        where = f" for project {printable(project)[:60]}" if project else ""
        raise Forbidden(
            f"You are signed in, and in none of the groups that are let in here{where}",
            "Ask an admin: SPIKEGUARD_SIGN_IN_ROLES names the groups",
        )
    with engine.begin() as connection:
        parent = _grant(connection, account, access)
        by = Actor(account.person, ActorKind.PERSON, token_id=parent, known_by=account.known_by)
        secret, _ = start_session(
            connection, access.role, access.project, by, lasts_s, parent=parent,
            signed_in_s=signed_in_s, how=f", by {account.by}", browser=True,
        )  # fmt: skip
    return secret


def end_lost_accesses(engine: sql.Engine, account: Account) -> None:
    """Revoke what hangs on roles and projects that the account's groups no longer give it, and
    what hangs on another name of it."""
    with engine.begin() as connection:
        for token in of_subject(connection, account.subject):
            given = gives(account.accesses, token.role, token.project)
            if token.person != account.person or not given:
                reason = f"sign-in by {account.by} no longer gives this account that access"
                withdraw_token(connection, token.id, None, SERVER, reason)


def _grant(connection: sql.Connection, account: Account, access: Access) -> int:
    """The token that the account's sessions of this access hang on."""
    mine = of_subject(connection, account.subject)
    name, person = f"sign-in by {account.by}", account.person
    other = other_subject_of(connection, name, person, account.subject)
    if other is not None:
        raise Forbidden(
            f"The name {person} belongs to another account of the identity provider",
            f"Ask an admin: who revokes token {other} gives the name free",
        )
    lasts_s = GRANT_S if account.known_by is KnownBy.OIDC else None
    for token in mine:
        if (token.person, token.role, token.project) == (person, access.role, access.project):
            if lasts_s is not None:
                prolong(connection, token.id, lasts_s)
            return token.id
    grant = Grant(access.role, access.project, person, name, lasts_s, subject=account.subject)
    return issue_token(connection, grant, SERVER)[1].id
