"""Sessions of people whom the identity provider has signed in: claims to a name and a role.

All sessions of an account hang on one token a role and project that nobody holds. It ends a while
after the last sign-in, and at the next one that finds the account in no group that gives it; what
was made with it ends then too. A name belongs to one account at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from spikeguard_protocol.escaping import printable
from spikeguard_server.access.grants import (
    Grant,
    OpenedSession,
    issue_token,
    start_session,
    withdraw_token,
)
from spikeguard_server.access.person_names import read_person
from spikeguard_server.errors import Forbidden
from spikeguard_server.identity.actors import Actor, ActorKind, KnownBy
from spikeguard_server.identity.sign_in_roles import (
    Access,
    accesses_of,
    best_access,
    read_accesses,
)
from spikeguard_server.settings import Settings
from spikeguard_server.store.audit import SERVER
from spikeguard_server.store.tokens import (
    give_subject,
    lock_subjects,
    of_subject,
    other_subject_of,
    prolong,
)

GRANT_S = 30 * 86_400.0  # after a person's last sign-in, in which their tokens work
BY_OIDC = "sign-in by OIDC"  # the name of the tokens that such sessions hang on
LONG_AGO_S = 10 * 365 * 86_400.0  # of a sign-in of which the provider does not say when it was


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom the provider has signed in, by claims that were checked."""

    claims: Mapping[str, Any]
    signed_in_s: float | None  # how long ago; None where the provider does not say


def not_believed(why: str) -> Forbidden:
    """The refusal of what the provider is said to have said."""
    return Forbidden(
        f"The identity provider's answer is not believed: {why}",
        "Sign in again; if that does not help, ask an admin to look at the server's and the "
        "provider's clocks and settings",
    )


def open_oidc_session(
    engine: sql.Engine, settings: Settings, identity: Identity, project: str
) -> tuple[str, float]:
    """A session for whom the provider has signed in, with its secret, and how long it lasts; of
    `project` where one is named. Raise `Forbidden`."""
    person = _person(identity.claims, settings.oidc_person_claim)
    subject = f"{settings.oidc_issuer} {identity.claims['sub']}"
    groups = identity.claims.get(settings.oidc_groups_claim)
    accesses = accesses_of(groups, read_accesses(settings.oidc_roles))
    with engine.begin() as connection:
        _end_lost_accesses(connection, subject, person, accesses)
    access = best_access(accesses, project)
    if access is None:
        where = f" for project {printable(project)[:60]}" if project else ""
        raise Forbidden(
            f"You are signed in, and in none of the groups that are let in here{where}",
            "Ask an admin: SPIKEGUARD_OIDC_ROLES names the groups",
        )
    with engine.begin() as connection:
        parent = _grant(connection, subject, person, access, GRANT_S)
        by = Actor(person, ActorKind.PERSON, token_id=parent, known_by=KnownBy.OIDC)
        ago_s = LONG_AGO_S if identity.signed_in_s is None else identity.signed_in_s
        opened = OpenedSession(parent, parent, ago_s, how=", by OIDC", browser=True)
        lasts_s = settings.session_hours * 3600
        secret, made = start_session(connection, access.role, access.project, by, lasts_s, opened)
    return secret, made.expires_in_s or lasts_s


def _person(claims: Mapping[str, Any], name: str) -> str:
    told = claims.get(name)
    if not isinstance(told, str) or not told.strip():
        raise not_believed(f"it does not say who you are (claim {name})")
    verified = claims.get("email_verified", True)  # some providers say it in words
    if name == "email" and verified not in (True, "true"):
        raise not_believed("your e-mail address is not verified there")
    return read_person(told)


def _end_lost_accesses(
    connection: sql.Connection, subject: str, person: str, accesses: Collection[Access]
) -> None:
    """Revoke what hangs on roles and projects that the account's groups no longer give it, and
    what hangs on another name of it."""
    lock_subjects(connection)
    for token in of_subject(connection, subject):
        if token.person != person or Access(token.role, token.project) not in accesses:
            reason = "the identity provider no longer gives this account that access"
            withdraw_token(connection, token.id, None, SERVER, reason)


def _grant(
    connection: sql.Connection, subject: str, person: str, access: Access, lasts_s: float
) -> int:
    """The token that the account's sessions of this access hang on."""
    lock_subjects(connection)
    other = other_subject_of(connection, person, subject)
    if other is not None:
        raise Forbidden(
            f"The name {person} belongs to another account of the identity provider",
            f"Ask an admin: who revokes token {other} gives the name free",
        )
    for token in of_subject(connection, subject):
        if (token.person, token.role, token.project) == (person, access.role, access.project):
            prolong(connection, token.id, lasts_s)
            return token.id
    grant = Grant(access.role, access.project, person, BY_OIDC, lasts_s)
    made = issue_token(connection, grant, SERVER)[1].id
    give_subject(connection, made, subject)
    return made
