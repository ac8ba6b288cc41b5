"""The tokens that stand for accounts of the identity provider.

Invariants: nobody holds the secret of one. What is asked and what is written of an account lies
behind one lock, so that two accounts never get one name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sql

from spikeguard_server.store.tables.people import tokens
from spikeguard_server.store.tokens import Token, tokens_where

_LOCK: Final = 0x6F696463  # of the transaction; sign-ins alone wait for it
_T = tokens.c


def lock_subjects(connection: sql.Connection) -> None:
    """Keep other sign-ins waiting until the transaction ends."""
    connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_LOCK)))


def of_subject(connection: sql.Connection, subject: str) -> Sequence[Token]:
    """The tokens of one account that work."""
    return tokens_where(connection, _T.subject == subject)


def other_subject_of(connection: sql.Connection, person: str, subject: str) -> int | None:
    """The token of another account that has this name."""
    others = tokens_where(connection, _T.person == person, _T.subject != subject)
    return others[0].id if others else None


def give_subject(connection: sql.Connection, token_id: int, subject: str) -> None:
    """Say whose token it is."""
    connection.execute(sql.update(tokens).where(_T.id == token_id).values(subject=subject))


def prolong(connection: sql.Connection, token_id: int, lasts_s: float) -> None:
    """Let it work for so long from now, and no less than it does."""
    until = sql.func.now() + sql.func.make_interval(0, 0, 0, 0, 0, 0, lasts_s)
    connection.execute(
        sql.update(tokens)
        .where(_T.id == token_id)
        .values(expires_at=sql.func.greatest(_T.expires_at, until))
    )
