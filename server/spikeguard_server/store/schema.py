"""Prepares the database: the schema by the owner's role, and the rights of the server's role.

Law: `SPIKEGUARD_OWNER_DATABASE_URL` is used here and nowhere else. Without it the server's own role
owns the tables.
"""

from __future__ import annotations

from dataclasses import replace

import sqlalchemy as sql
from psycopg.errors import InsufficientPrivilege
from sqlalchemy.exc import ProgrammingError

from spikeguard_cli.command import CommandFailed
from spikeguard_server.settings import OWNER, Settings
from spikeguard_server.store.database import opened
from spikeguard_server.store.migrations import migrate
from spikeguard_server.store.roles import (
    current_role,
    foreign_owners,
    grant_rows,
    make_role,
    role_exists,
    ways_around,
)

SEE = "docs/access.md, Roles of the database"


def role_of(url: str) -> str:
    """The role that a database's URL names."""
    return sql.make_url(url).username or ""


def prepare(settings: Settings, *, make: bool = False) -> None:
    """Migrate, and where the owner's URL is given let the server's role do what it has to.

    `make`: make that role too. Raises `CommandFailed`, and what `migrate` raises.
    """
    owner = settings.owner_database_url
    theirs = replace(settings, database_url=owner or settings.database_url)
    with opened(theirs, migrated=False) as engine:
        if owner:
            _refuse_foreign(engine, role_of(owner))
        _migrate(engine)
        if owner and (role := role_of(settings.database_url)) != role_of(owner):
            _grant(engine, role, make=make)


def _migrate(engine: sql.Engine) -> None:
    try:
        migrate(engine)
    except ProgrammingError as error:
        if not isinstance(error.orig, InsufficientPrivilege):
            raise
        raise CommandFailed(
            "the database is not at this version's schema, and this role may not change it: run "
            f"`spikeguard migrate` with {OWNER} set to the URL of the role that owns the tables"
        ) from error


def _refuse_foreign(engine: sql.Engine, owner: str) -> None:
    with engine.connect() as connection:
        if others := foreign_owners(connection):
            raise CommandFailed(
                f"tables belong to {', '.join(others)}, not to {owner} of {OWNER}: hand them over "
                f"once with REASSIGN OWNED ({SEE})"
            )


def _grant(engine: sql.Engine, role: str, *, make: bool) -> None:
    with engine.begin() as connection:
        if make:
            make_role(connection, role)
        elif not role_exists(connection, role):
            raise CommandFailed(f"DATABASE_URL names role {role}, which is not there ({SEE})")
        grant_rows(connection, role)


def audit_warning(engine: sql.Engine) -> str | None:
    """What the server's role can do to the audit, in a sentence; None: add to it."""
    with engine.connect() as connection:
        ways, role = ways_around(connection), current_role(connection)
    if not ways:
        return None
    return (
        f"the audit is not protected from the server's own role: {role} {', '.join(ways)}. "
        f"Give the tables to another role ({SEE})"
    )
