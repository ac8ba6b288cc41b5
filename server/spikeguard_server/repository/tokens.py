"""Tokens and sessions in the database, found by the hash of their secret.

Law: no secret passes through here. A token works until it expires or is revoked, a session also
no longer than the token that opened it; which of them holds is read from the database's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql

from spikeguard_protocol import Role
from spikeguard_server.access import Caller
from spikeguard_server.tables import tokens

_opener = tokens.alias("opener")


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token to be made."""

    hash: bytes  # SHA-256 of the secret
    role: Role
    project: str | None
    person: str | None
    created_by: str
    expires_in_s: float | None
    name: str | None = None  # what it is for
    parent: int | None = None  # the token that opened this session
    run: str | None = None  # of the project


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


def find_caller(connection: sql.Connection, secret_hash: bytes) -> Caller | None:
    """Who holds the secret of this hash; None if it does not work (any more)."""
    query = (
        sql.select(tokens, _left(tokens).label("left"))
        .outerjoin(_opener, _opener.c.id == tokens.c.parent)
        .where(tokens.c.hash == secret_hash, _works(tokens))
        .where(tokens.c.parent.is_(None) | _works(_opener))
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    return Caller(
        token_id=row.id,
        role=Role(row.role),
        project=row.project,
        person=row.person,
        expires_in_s=row.left,
        is_session=row.parent is not None,
        run=row.run,
    )


def working_hashes(connection: sql.Connection, most: int) -> Sequence[bytes]:
    """Of the newest secrets that work, the newest last."""
    query = sql.select(tokens.c.hash).where(_works(tokens)).order_by(tokens.c.id.desc())
    return connection.execute(query.limit(most)).scalars().all()[::-1]


def add_token(connection: sql.Connection, new: NewToken) -> tuple[Token, bool]:
    """Store a token, and whether it was new: one whose secret is known stays as it is."""
    row = {
        "hash": new.hash,
        "role": new.role.value,
        "project": new.project,
        "run": new.run,
        "person": new.person,
        "name": new.name,
        "parent": new.parent,
        "created_at": sql.func.now(),
        "created_by": new.created_by,
        "expires_at": None if new.expires_in_s is None else _in(new.expires_in_s),
    }
    added = connection.scalar(_insert(row).returning(tokens.c.id))  # a row count is not given
    found = connection.execute(_shown().where(tokens.c.hash == new.hash)).one()
    return _token(found), added is not None


def list_tokens(
    connection: sql.Connection, project: str | None, *, limit: int, before: int | None = None
) -> Sequence[Token]:
    """The tokens that work, newest first; of one project, or of all if it is None."""
    query = _shown().where(_works(tokens)).order_by(tokens.c.id.desc())
    if project is not None:
        query = query.where(tokens.c.project == project)
    if before is not None:
        query = query.where(tokens.c.id < before)
    return [_token(row) for row in connection.execute(query.limit(limit))]


def token_named(connection: sql.Connection, name: str, role: Role) -> int | None:
    """The oldest token of that name and role that works and belongs to every project."""
    c = tokens.c
    mine = (c.name == name, c.role == role.value, c.project.is_(None), c.parent.is_(None))
    found: int | None = connection.scalar(
        sql.select(sql.func.min(c.id)).where(*mine, _works(tokens))
    )
    return found


def revoke_token(connection: sql.Connection, token_id: int, project: str | None) -> Token | None:
    """Revoke a token and the sessions it opened; None if there is none that works."""
    query = _shown().where(tokens.c.id == token_id, _works(tokens)).with_for_update()
    if project is not None:
        query = query.where(tokens.c.project == project)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    mine = (tokens.c.id == token_id) | (tokens.c.parent == token_id)
    live = tokens.update().where(mine, tokens.c.revoked_at.is_(None))
    connection.execute(live.values(revoked_at=sql.func.now()))
    return _token(row)


def spend_token(connection: sql.Connection, secret_hash: bytes) -> Caller | None:
    """Who held the secret of this hash; from now on it does not work. None if it did not."""
    holder = find_caller(connection, secret_hash)
    spent = connection.execute(
        sql.update(tokens)
        .where(tokens.c.hash == secret_hash, _works(tokens))
        .values(revoked_at=sql.func.now())
    )
    return holder if spent.rowcount else None


def opener_of(connection: sql.Connection, token_id: int) -> int | None:
    """The token that opened a session."""
    found: int | None = connection.scalar(
        sql.select(tokens.c.parent).where(tokens.c.id == token_id)
    )
    return found


def _insert(row: Mapping[str, object]) -> postgresql.Insert:
    return postgresql.insert(tokens).values(row).on_conflict_do_nothing(index_elements=["hash"])


def _shown() -> sql.Select[tuple[object, ...]]:
    return sql.select(
        tokens.c.id,
        tokens.c.role,
        tokens.c.project,
        tokens.c.run,
        tokens.c.person,
        tokens.c.name,
        tokens.c.parent,
        tokens.c.created_at,
        tokens.c.created_by,
        _left(tokens).label("left"),
    )


def _token(row: sql.Row[tuple[object, ...]]) -> Token:
    return Token(
        id=row.id,
        role=Role(row.role),
        project=row.project,
        person=row.person,
        name=row.name,
        session=row.parent is not None,
        created_at=row.created_at,
        created_by=row.created_by,
        expires_in_s=row.left,
        run=row.run,
    )


def _works(table: sql.FromClause) -> sql.ColumnElement[bool]:
    columns = table.c
    unexpired = columns.expires_at.is_(None) | (columns.expires_at > sql.func.now())
    return sql.and_(columns.revoked_at.is_(None), unexpired)


def _left(table: sql.FromClause) -> sql.ColumnElement[float]:
    seconds = sql.extract("epoch", table.c.expires_at - sql.func.now())
    return sql.cast(seconds, sql.Double)


def _in(seconds: float) -> sql.ColumnElement[datetime]:
    return sql.func.now() + sql.func.make_interval(0, 0, 0, 0, 0, 0, seconds)
