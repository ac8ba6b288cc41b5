"""Tokens, sessions and policies: given, taken away and changed, each with its entry in the audit.

The caller owns the transaction. A secret exists in the return value and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import sqlalchemy as sql

from spikeguard_core.diagnosis.change_effect import changes_between
from spikeguard_core.policy.settings import (
    Policy,
    PolicyScope,
    choose,
    over,
    policy_from_mapping,
    policy_to_mapping,
)
from spikeguard_core.setting_fields import SettingError
from spikeguard_protocol import Role, RunId
from spikeguard_server.access.person_names import read_person
from spikeguard_server.errors import Conflict, Forbidden, NotFound, NotSignedIn, Unprocessable
from spikeguard_server.identity.actors import Actor, ActorKind, KnownBy
from spikeguard_server.identity.permissions import (
    READERS,
    Caller,
    hash_cookie,
    hash_secret,
    new_secret,
)
from spikeguard_server.store.audit import append
from spikeguard_server.store.engine import lock
from spikeguard_server.store.policies import policy_of, write_policy
from spikeguard_server.store.runs import run_named
from spikeguard_server.store.tables.core import FLEET
from spikeguard_server.store.tokens import (
    Token,
    add_token,
    find_caller,
    lock_grant,
    opener_of,
    revoke_token,
    spend_token,
)

SIGN_IN_LINK = "sign-in link"  # the name of their rows
SIGN_IN_LINK_S = 600.0
DAY_S = 86_400.0
AGENT_DAYS = 365.0  # of a training job's token at most, where nobody sets it


@dataclass(frozen=True, slots=True)
class Grant:
    """What a new token may do, for whom and how long."""

    role: Role
    project: str | None = None  # None = every project
    person: str | None = None
    name: str | None = None  # what it is for
    expires_in_s: float | None = None  # None = never
    run: str | None = None  # of that project, which need not exist yet; None = every run of it
    subject: str | None = None  # the account that its sessions are of

    def __post_init__(self) -> None:
        if self.run is None:
            return
        if self.role is not Role.AGENT:
            raise Unprocessable(
                f"A token of role {self.role} takes no run",
                "Leave the run out, or make a token of role agent",
                field="run",
            )
        if self.project is None:
            raise Unprocessable(
                "A run belongs to a project", "Name the run's project too", field="project"
            )


def issue_token(
    connection: sql.Connection, grant: Grant, by: str, reason: str | None = None,
    maker: Caller | None = None, agent_days: float = AGENT_DAYS, secret: str | None = None,
) -> tuple[str, Token]:  # fmt: skip
    """Make a token, which ends with the grant of its `maker` (None: the server's own machine); its
    secret is told this once. Of a `secret` that was made elsewhere and is known all stays as it
    is."""
    secret = secret or new_secret()
    if maker is not None and not lock_grant(connection, maker.grant):
        raise NotSignedIn("The token behind this sign-in was revoked", "Ask an admin for a new one")
    person = None if grant.person is None else read_person(grant.person, "person")
    token, fresh = add_token(
        connection,
        hash=hash_secret(secret),
        role=grant.role,
        project=grant.project,
        person=person,
        created_by=by,
        expires_in_s=_lasts_s(grant, agent_days, None if maker is None else maker.grant_left_s),
        name=grant.name,
        made_with=None if maker is None else maker.grant,
        run=grant.run,
        subject=grant.subject,
    )
    if fresh:
        _record(connection, by, "token.created", token, reason=reason)
    return secret, token


def _lasts_s(grant: Grant, agent_days: float, left_s: float | None) -> float | None:
    """How long a token lasts; raise `Unprocessable` where longer is asked for than may be.

    A training job's has a ceiling of its own: the job goes on when its maker's token has ended.
    """
    if grant.role is Role.AGENT:
        most, why = agent_days * DAY_S, "SPIKEGUARD_AGENT_TOKEN_DAYS"
    elif left_s is not None:
        most, why = left_s, "no token outlives the one that it is made with"
    else:
        return grant.expires_in_s
    if grant.expires_in_s is not None and grant.expires_in_s > most:
        raise Unprocessable(
            f"This token may last {most / DAY_S:g} days at most ({why})",
            "Ask for less, or leave it out to get that",
            field="expires_in_s",
            limit=most,
        )
    return most if grant.expires_in_s is None else grant.expires_in_s


def withdraw_token(
    connection: sql.Connection, token_id: int, scope: str | None, by: str,
    reason: str | None = None,
) -> None:  # fmt: skip
    """Revoke a token, the sessions it opened and the tokens made with it, and so on; raise
    `NotFound` if none of it works."""
    token, others = revoke_token(connection, token_id, scope)
    if token is None:
        raise NotFound(
            f"There is no token {token_id} that works", "`spikeguard token list` shows them"
        )
    _record(connection, by, "token.revoked", token, reason=reason)
    why = f"made with token {token_id}, which was revoked"
    for other in others:
        _record(connection, by, "token.revoked", other, reason=why)


def open_session(
    connection: sql.Connection, caller: Caller, name: str, lasts_s: float, *, browser: bool = False
) -> tuple[str, Token]:
    """Exchange a person's token for a session that carries a name."""
    by = _named(caller, name)
    if caller.role not in READERS:
        raise Forbidden(
            f"A token of role {caller.role} is not a person's", "Log in with one made for people"
        )
    if caller.is_session:
        raise Forbidden("A session can't open another", "Log in with your access token")
    left = lasts_s if caller.expires_in_s is None else min(lasts_s, caller.expires_in_s)
    return start_session(
        connection, caller.role, caller.project, by, left, parent=caller.token_id, browser=browser
    )


def make_sign_in_link(connection: sql.Connection, caller: Caller, name: str = "") -> str:
    """The secret of a link that signs a browser in once, as the session of `caller`, whose `name`
    it takes where the token carries none."""
    secret, by = new_secret(), _named(caller, name)
    left = SIGN_IN_LINK_S if caller.expires_in_s is None else caller.expires_in_s
    token, _ = add_token(
        connection, hash=_link_hash(secret), role=caller.role, project=caller.project,
        person=by, created_by=by, expires_in_s=min(SIGN_IN_LINK_S, left), name=SIGN_IN_LINK,
        parent=caller.token_id, known_by=by.known_by, made_with=caller.grant,
        signed_in_s=caller.signed_in_s if caller.is_session else 0.0,
    )  # fmt: skip
    _record(connection, by, "sign_in_link.made", token)
    return secret


def _named(caller: Caller, name: str) -> Actor:
    """Who signs in with a token: whom it names, else who gives a name."""
    if caller.person is None:
        return Actor(
            read_person(name), ActorKind.PERSON, token_id=caller.grant, known_by=KnownBy.TYPED
        )
    if name.strip() and read_person(name) != caller.person:
        raise Forbidden(
            "This token was made for another person",
            "Leave the name empty, or log in with your own token",
        )
    return caller.actor


def sign_in_url(address: str, secret: str, next_path: str = "") -> str:
    """The link of a secret, with where it leads to; `address` is the server's on its machine."""
    query = f"?{urlencode({'next': next_path})}" if next_path else ""
    return f"{address.rstrip('/')}/login/{secret}{query}"


def holder_of_link(connection: sql.Connection, secret: str, *, spend: bool = False) -> Caller:
    """Whom a sign-in link signs in, from now on not again if it is to `spend` it; raise `Forbidden`
    where it was used or is too old."""
    holder = (spend_token if spend else find_caller)(connection, _link_hash(secret))
    if holder is None:
        raise Forbidden(
            "This sign-in link was used already, or is too old",
            "`spikeguard open --sign-in` prints another; at /login a token signs you in",
        )
    return holder


def use_sign_in_link(connection: sql.Connection, secret: str, lasts_s: float) -> str:
    """Spend a sign-in link: the session's secret."""
    link = holder_of_link(connection, secret, spend=True)
    opener = opener_of(connection, link.token_id)
    assert opener is not None, "a link hangs on what made it"
    if opener.left is not None:  # else a session would be renewed by a link for ever
        lasts_s = min(lasts_s, opener.left)
    made, _ = start_session(
        connection, link.role, link.project, link.actor, lasts_s, parent=opener.id,
        signed_in_s=link.signed_in_s, how=", by a sign-in link", browser=True,
    )  # fmt: skip
    return made


def _link_hash(secret: str) -> bytes:
    """Another hash than a token's of that secret: a link is no bearer token."""
    return hash_secret(f"{SIGN_IN_LINK} {secret}")


def start_session(
    connection: sql.Connection, role: Role, project: str | None, person: Actor, lasts_s: float, *,
    parent: int, signed_in_s: float = 0.0, how: str = "", browser: bool = False,
    name: str | None = None,
) -> tuple[str, Token]:  # fmt: skip
    """A session that ends with its `parent` at the latest, a token or the session by whose link it
    is opened, and with the token behind `person`. That of a `browser` is no bearer token."""
    secret = new_secret()
    token, _ = add_token(
        connection, hash=hash_cookie(secret) if browser else hash_secret(secret),
        role=role, project=project, person=person, created_by=person, expires_in_s=lasts_s,
        name=name, parent=parent, known_by=person.known_by, made_with=person.token_id,
        signed_in_s=signed_in_s,
    )  # fmt: skip
    by = Actor(
        person, ActorKind.PERSON, token_id=person.token_id, session_id=token.id,
        known_by=person.known_by,
    )  # fmt: skip
    _record(connection, by, "session.opened", token, how)
    return secret, token


def close_session(connection: sql.Connection, caller: Caller) -> None:
    """Log out. A token that is no session stays: only an admin takes those away."""
    if not caller.is_session:
        raise Conflict("This token is no session", "An admin revokes it: `spikeguard token revoke`")
    token, _ = revoke_token(connection, caller.token_id, None)
    if token is not None:
        _record(connection, caller.actor, "session.closed", token)


def put_policy(
    connection: sql.Connection, project: str, plain: Mapping[str, Any], by: str,
    reason: str | None = None,
) -> None:  # fmt: skip
    """Put a policy in force. Raise `SettingError`."""
    lock(connection, f"policy/{project}")
    before = policy_of(connection, project)
    policy = checked_policy(policy_from_mapping(_settings_of(plain)))
    written = write_policy(connection, project, replace(policy, halted=before.halted), by)
    _record_policy(connection, FLEET, project, by, "policy.written", before, written, reason)


def put_run_policy(
    connection: sql.Connection, run: RunId, plain: Mapping[str, Any] | None, by: str,
    reason: str | None = None,
) -> None:  # fmt: skip
    """Put a policy of its own in force for a run, or its project's again if it is None. What it
    leaves out is what the project's says now. Raise `SettingError`, or `NotFound`, also where the
    run has none to drop."""
    key = run_named(connection, run, locked=True).run_id
    before = policy_of(connection, run.project, key)
    if plain is not None:
        action = "policy.written"
        policy = checked_policy(over(policy_of(connection, run.project), _settings_of(plain)))
    elif before.scope is PolicyScope.RUN:
        action, policy = "policy.dropped", None
    else:
        raise NotFound(
            f"Run {run} has no policy of its own", "It follows its project's: nothing to do"
        )
    after = write_policy(connection, run.project, policy, by, key)
    _record_policy(connection, key, run, by, action, before, after, reason)


def _settings_of(plain: Mapping[str, Any]) -> dict[str, Any]:
    """What a person may set: no version, and no import throws or lifts the kill switch."""
    return {key: value for key, value in plain.items() if key not in ("version", "halted")}


def _record_policy(
    connection: sql.Connection, key: UUID, whose: RunId | str, by: str, action: str,
    before: Policy, after: Policy, reason: str | None = None,
) -> None:  # fmt: skip
    old, new = ({**policy_to_mapping(policy), "version": None} for policy in (before, after))
    append(
        connection, key, actor=by, action=action, subject=f"policy of {whose}",
        project=whose if isinstance(whose, str) else None,
        before=before.name, after=after.name, reason=reason, changes=changes_between(old, new),
    )  # fmt: skip


def throw_switch(
    connection: sql.Connection, project: str, *, halted: bool, reason: str, by: str
) -> None:
    """Throw the kill switch or lift it: a version of the policy that says so. Raise `Conflict`
    where it stands that way already."""
    lock(connection, f"policy/{project}")
    policy = policy_of(connection, project)
    if policy.halted is halted:
        stands = "on" if halted else "off"
        raise Conflict(f"The kill switch of project {project} is {stands} already", "Nothing to do")
    written = write_policy(connection, project, replace(policy, halted=halted), by)
    action = "policy.halted" if halted else "policy.resumed"
    _record_policy(connection, FLEET, project, by, action, policy, written, reason)


def checked_policy(policy: Policy) -> Policy:
    """What only this machine can tell of a policy: whether it knows time zone and detector."""
    choose(policy.detection, "detection.")
    if policy.quiet is not None:
        try:
            ZoneInfo(policy.quiet.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise SettingError(
                "quiet.timezone", "is a time zone that the server knows", "Write Europe/Berlin"
            ) from None
    return policy


def _record(
    connection: sql.Connection, by: str, action: str, token: Token, how: str = "",
    reason: str | None = None,
) -> None:  # fmt: skip
    scope = f", project {token.project}" if token.project else ""
    scope += f", run {token.run}" if token.run else ""
    person = f", {token.person}" if token.person else ""
    words, ends = f"{token.role}{scope}{person}{how}", action in ("token.revoked", "session.closed")
    append(
        connection, FLEET, actor=by, action=action, reason=reason,
        subject=f"{'session' if token.session else 'token'} {token.id}",
        before=words if ends else None, after=None if ends else words,
    )  # fmt: skip
