"""Sessions of people whom the identity provider has signed in.

Invariants: the caller owns the transaction. All sessions of an account hang on one token a role and
project that nobody holds. It ends a while after the last sign-in, and at the next one that finds
the account in no group that gives it; what was made with it ends then too. A name belongs to one
account at a time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sql

from spikeguard_server.access.grants import (
    Grant,
    OpenedSession,
    issue_token,
    start_session,
    withdraw_token,
)
from spikeguard_server.access.oidc_roles import Access
from spikeguard_server.access.person_names import read_person
from spikeguard_server.errors import Forbidden
from spikeguard_server.identity.actors import Actor, ActorKind, KnownBy
from spikeguard_server.store.audit import SERVER
from spikeguard_server.store.identity_subjects import (
    give_subject,
    lock_subjects,
    of_subject,
    other_subject_of,
    prolong,
)

BY_OIDC = "sign-in by OIDC"  # the name of the tokens that such sessions hang on
LONG_AGO_S = 10 * 365 * 86_400.0  # of a sign-in of which the provider does not say when it was


@dataclass(frozen=True, slots=True)
class Account:
    """Whom the provider has signed in."""

    subject: str  # issuer and subject: what never changes
    person: str
    signed_in_s: float | None  # how long ago


def open_oidc_session(
    connection: sql.Connection, account: Account, access: Access, lasts_s: float, grant_s: float
) -> tuple[str, float]:
    """A session of `account` with its secret, and how long it lasts."""
    person = read_person(account.person)
    lock_subjects(connection)
    other = other_subject_of(connection, person, account.subject)
    if other is not None:
        raise Forbidden(
            f"The name {person} belongs to another account of the identity provider",
            f"Ask an admin: who revokes token {other} gives the name free",
        )
    parent = _grant(connection, account, person, access, grant_s)
    by = Actor(person, ActorKind.PERSON, token_id=parent, known_by=KnownBy.OIDC)
    ago_s = LONG_AGO_S if account.signed_in_s is None else account.signed_in_s
    opened = OpenedSession(parent, parent, ago_s, how=", by OIDC", browser=True)
    secret, made = start_session(connection, access.role, access.project, by, lasts_s, opened)
    return secret, made.expires_in_s or lasts_s


def end_lost_accesses(
    connection: sql.Connection, account: Account, accesses: Collection[Access]
) -> None:
    """Revoke what hangs on roles and projects that the account's groups no longer give it, and
    what hangs on another name of it."""
    lock_subjects(connection)
    for token in of_subject(connection, account.subject):
        if token.person != account.person or Access(token.role, token.project) not in accesses:
            reason = "the identity provider no longer gives this account that access"
            withdraw_token(connection, token.id, None, SERVER, reason)


def _grant(
    connection: sql.Connection, account: Account, person: str, access: Access, lasts_s: float
) -> int:
    for token in of_subject(connection, account.subject):
        if (token.person, token.role, token.project) == (person, access.role, access.project):
            prolong(connection, token.id, lasts_s)
            return token.id
    grant = Grant(access.role, access.project, person, BY_OIDC, lasts_s)
    made = issue_token(connection, grant, SERVER)[1].id
    give_subject(connection, made, account.subject)
    return made
