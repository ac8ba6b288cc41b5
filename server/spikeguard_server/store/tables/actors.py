"""The columns that say who is behind an audit entry and a token; what is not said is null."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sql


def identified() -> list[sql.Column[Any]]:
    """Of an audit entry: what acted, with which token and session, and how a person is known."""
    return [
        sql.Column("actor_kind", sql.Text),  # ActorKind
        sql.Column("token", sql.BigInteger),  # the grant, not the session
        sql.Column("session", sql.BigInteger),
        sql.Column("known_by", sql.Text),  # KnownBy
    ]


def behind() -> list[sql.Column[Any]]:
    """Of a token: who stands behind it, and what it ends with."""
    return [
        sql.Column("name", sql.Text),  # what it is for
        sql.Column("person", sql.Text),  # who stands behind what is done with it
        sql.Column("known_by", sql.Text),  # of a session: KnownBy
        sql.Column("parent", sql.BigInteger),  # the token that a session was opened with
        sql.Column("made_with", sql.BigInteger),  # the grant that stands behind it
        sql.Column("signed_in_at", sql.DateTime(timezone=True)),  # of a session: its person
        sql.Column("subject", sql.Text),  # the account at the identity provider that it stands for
    ]
