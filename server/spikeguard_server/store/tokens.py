"""Tokens, sessions and approval links in the database, found by the hash of their secret.

No secret passes through here. A token works until it expires or is revoked, a session also no
longer than what opened it and than the token that stands behind it; which of them holds is read
from the database's clock. What was made with a token is revoked with it. Of a token that stands for
an account of the identity provider nobody holds the secret; what is asked and written of an account
lies behind one lock, so that two accounts never get one name. Whoever holds an approval link may
decide on one revision of one proposal, once: it is spent in the transaction of the decision, under
the run's lock; looking at it does not spend it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql

from spikeguard_core.notification.channel import Channel
from spikeguard_protocol import CommandId, IncidentId, Role, RunId
from spikeguard_server.entities import CommandRow
from spikeguard_server.errors import Forbidden
from spikeguard_server.identity.actors import KnownBy
from spikeguard_server.identity.permissions import Caller, hash_secret, new_secret
from spikeguard_server.store.engine import lock, row_as, seconds
from spikeguard_server.store.paging import PageWanted, Row, read_page
from spikeguard_server.store.tables.core import approval_links, runs, tokens

EXPIRES_SOON: Final = timedelta(days=14)  # of a training job's token: time to warn
_opener, _grant = tokens.alias("opener"), tokens.alias("grant_behind")


def _works(table: sql.FromClause) -> sql.ColumnElement[bool]:
    """Whether the token is there, where it was joined, and works."""
    columns = table.c
    unexpired = columns.expires_at.is_(None) | (columns.expires_at > sql.func.now())
    return sql.and_(columns.id.is_not(None), columns.revoked_at.is_(None), unexpired)


def _left(table: sql.FromClause) -> sql.ColumnElement[float]:
    return seconds(table.c.expires_at - sql.func.now())


_SIGNED_IN: Final = sql.func.coalesce(tokens.c.signed_in_at, tokens.c.created_at)
# Made here, not by the first call: two threads at once would make two of each alias's columns, and
# a statement of both fails (sqlalchemy issue 12302).
_CALLER: Final = (
    sql.select(
        tokens,
        _left(tokens).label("expires_in_s"),
        _left(_grant).label("grant_left"),
        _grant.c.id.label("grant"),
        seconds(sql.func.clock_timestamp() - _SIGNED_IN).label("signed_in_s"),
    )
    .outerjoin(_opener, _opener.c.id == tokens.c.parent)
    .outerjoin(_grant, _grant.c.id == tokens.c.made_with)
    .where(tokens.c.hash == sql.bindparam("secret"), _works(tokens))
    .where(tokens.c.parent.is_(None) | sql.and_(_works(_opener), _works(_grant)))
)


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it may be shown."""

    id: int
    role: Role
    project: str | None
    person: str | None
    name: str | None  # what it is for
    session: bool
    created_at: datetime
    created_by: str
    expires_in_s: float | None
    run: str | None = None  # of the project; None = every run of it
    made_with: int | None = None  # the token that it ends with when that is revoked


def find_caller(connection: sql.Connection, secret_hash: bytes) -> Caller | None:
    """Who holds the secret of this hash; None if it does not work (any more)."""
    row = connection.execute(_CALLER, {"secret": secret_hash}).one_or_none()
    if row is None:
        return None
    session = row.parent is not None
    return row_as(
        Caller, row, token_id=row.id, role=Role(row.role), is_session=session,
        grant_id=row.grant if session else None,
        grant_left_s=row.grant_left if session else row.expires_in_s,
        # How the person is known: a session says it.
        known_by=None if row.person is None else KnownBy(row.known_by or KnownBy.TOKEN),
    )  # fmt: skip


def lock_grant(connection: sql.Connection, token_id: int) -> bool:
    """Whether the token works, and keep it from being revoked until the transaction ends."""
    query = sql.select(tokens.c.id).where(tokens.c.id == token_id, _works(tokens))
    return connection.scalar(query.with_for_update(key_share=True)) is not None


def expiring_agents(connection: sql.Connection) -> Sequence[Token]:
    """Training jobs' tokens that end soon, the oldest first."""
    soon = tokens.c.expires_at < sql.func.now() + EXPIRES_SOON
    return tokens_where(connection, tokens.c.role == Role.AGENT.value, soon)


def add_token(
    connection: sql.Connection, *, hash: bytes, expires_in_s: float | None,
    signed_in_s: float | None = None, **columns: Any,
) -> tuple[Token, bool]:  # fmt: skip
    """Store a token by the `hash` of its secret, and whether it was new: one whose secret is known
    stays as it is. `signed_in_s`: of a session, how long ago its person signed in."""
    row = postgresql.insert(tokens).values(
        hash=hash, created_at=sql.func.now(), **columns,
        signed_in_at=None if signed_in_s is None else _in(-signed_in_s),
        expires_at=None if expires_in_s is None else _in(expires_in_s),
    )  # fmt: skip
    added = row.on_conflict_do_nothing(index_elements=["hash"]).returning(tokens.c.id)
    is_new = connection.scalar(added) is not None
    found = connection.execute(_shown().where(tokens.c.hash == hash)).one()
    return _token(found), is_new


def list_tokens(
    connection: sql.Connection, project: str | None, page: PageWanted
) -> tuple[Sequence[Token], str | None]:
    """The tokens that work, newest first, of one project, or of all if it is None; and the cursor
    of the next page."""
    query = _shown().where(_works(tokens))
    if project is not None:
        query = query.where(tokens.c.project == project)
    found, more = read_page(connection, query, (tokens.c.id,), page)
    return [_token(row) for row in found], more


def tokens_where(
    connection: sql.Connection, *conditions: sql.ColumnElement[bool]
) -> Sequence[Token]:
    """The tokens that work and fit, the oldest first."""
    query = _shown().where(_works(tokens), *conditions).order_by(tokens.c.id)
    return [_token(row) for row in connection.execute(query)]


def revoke_token(
    connection: sql.Connection, token_id: int, project: str | None
) -> tuple[Token | None, Sequence[Token]]:
    """Revoke a token with all that hangs on it: the sessions that it opened, the tokens that were
    made with it, and so on. The token (None if there is none that works), and the other tokens."""
    query = _shown().where(tokens.c.id == token_id, _works(tokens)).with_for_update()
    if project is not None:
        query = query.where(tokens.c.project == project)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None, ()
    mine = sql.select(tokens.c.id).where(tokens.c.id == token_id).cte("mine", recursive=True)
    hangs = (tokens.c.parent == mine.c.id) | (tokens.c.made_with == mine.c.id)
    mine = mine.union(sql.select(tokens.c.id).join(mine, hangs))
    hanging = tokens.c.id.in_(sql.select(mine.c.id))
    made = _shown().where(hanging, tokens.c.id != token_id, tokens.c.parent.is_(None))
    others = connection.execute(made.where(_works(tokens)).order_by(tokens.c.id)).all()
    live = tokens.update().where(hanging, tokens.c.revoked_at.is_(None))
    connection.execute(live.values(revoked_at=sql.func.now()))
    return _token(row), [_token(other) for other in others]


def spend_token(connection: sql.Connection, secret_hash: bytes) -> Caller | None:
    """Who held the secret of this hash; from now on it does not work. None if it did not."""
    holder = find_caller(connection, secret_hash)
    spent = connection.execute(
        sql.update(tokens)
        .where(tokens.c.hash == secret_hash, _works(tokens))
        .values(revoked_at=sql.func.now())
    )
    return holder if spent.rowcount else None


def opener_of(connection: sql.Connection, token_id: int) -> Row | None:
    """The token or session that opened a session: `id`, and `left`, seconds until it expires (None:
    it never does)."""
    opened = _opener.join(tokens, tokens.c.parent == _opener.c.id)
    query = sql.select(_opener.c.id, _left(_opener).label("left")).select_from(opened)
    query = query.where(tokens.c.id == token_id)
    return connection.execute(query).one_or_none()


def _shown() -> sql.Select[Any]:
    session = tokens.c.parent.is_not(None).label("session")
    return sql.select(tokens, _left(tokens).label("expires_in_s"), session)


def _token(row: sql.Row[Any]) -> Token:
    return row_as(Token, row, role=Role(row.role))


def _in(lasts_s: float) -> sql.ColumnElement[datetime]:
    return sql.func.now() + timedelta(seconds=lasts_s)


_T = tokens.c


def of_subject(connection: sql.Connection, subject: str) -> Sequence[Token]:
    """The tokens of one account that work; other sign-ins wait until the transaction ends."""
    lock(connection, "sign-ins")
    return tokens_where(connection, _T.subject == subject)


def other_subject_of(
    connection: sql.Connection, name: str, person: str, subject: str
) -> int | None:
    """The token called `name` of another account of this person's name."""
    others = tokens_where(connection, _T.name == name, _T.person == person, _T.subject != subject)
    return others[0].id if others else None


def prolong(connection: sql.Connection, token_id: int, lasts_s: float) -> None:
    """Let it work for so long from now, and no less than it does."""
    until = sql.func.greatest(_T.expires_at, _in(lasts_s))
    connection.execute(sql.update(tokens).where(_T.id == token_id).values(expires_at=until))


_L = approval_links.c
_ASK = "Sign in and decide on the confirmation page, or wait for the next message"


def make_link(
    connection: sql.Connection, command: CommandRow, channel: Channel, expires_at: datetime
) -> str:
    """Make a link by which whoever reads `channel` decides on this revision of `command`: the last
    part of its address, which leads to the run's rows."""
    secret = new_secret()
    connection.execute(
        sql.insert(approval_links).values(
            run_id=command.run_id, id=hash_secret(secret).hex(), incident=command.incident,
            command=command.number, revision=command.revision, channel=channel.name,
            person=channel.person, expires_at=expires_at,
        )
    )  # fmt: skip
    return f"{command.run_id.hex}-{secret}"


def spend_link(connection: sql.Connection, run_id: UUID, id: str, person: str) -> bool:
    """Spend a link; whether it could still be spent."""
    spent = connection.execute(
        sql.update(approval_links)
        .where(_L.run_id == run_id, _L.id == id, _L.used_at.is_(None))
        .values(used_at=sql.func.clock_timestamp(), used_by=person)
    )
    return bool(spent.rowcount)


@dataclass(frozen=True, slots=True)
class LinkRow:
    """What a link is good for, and what became of it."""

    id: str
    command: CommandId
    revision: int
    channel: str
    person: str | None  # in whose name it decides; None: the person says who they are
    used_at: datetime | None
    used_by: str | None


def read_link(connection: sql.Connection, text: str) -> LinkRow:
    """The link of an address that ends with `text`; raise `Forbidden` for one that was not made
    here, that a restore from a backup forgot, or that is old."""
    run, _, secret = text.partition("-")
    mine: sql.ColumnElement[bool] = sql.false()
    with suppress(ValueError):
        mine = (_L.run_id == UUID(run)) & (_L.id == hash_secret(secret).hex())
    query = sql.select(
        approval_links, runs.c.project, runs.c.name, (_L.expires_at <= sql.func.now()).label("old")
    ).join(runs, runs.c.run_id == _L.run_id)
    row = connection.execute(query.where(mine)).one_or_none()
    if row is None:
        raise Forbidden("This link was not made by this server, or is not whole", _ASK)
    if row.old:
        raise Forbidden("This link has expired, and nothing was done with it", _ASK)
    command = CommandId(IncidentId(RunId(row.project, row.name), row.incident), row.command)
    return row_as(LinkRow, row, command=command)
