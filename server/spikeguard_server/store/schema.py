"""Which database a command means, how it is reached, and its preparation: the schema by the owner's
role, and the rights of the server's role.

A database is named by `DATABASE_URL` or is the one that `spikeguard up` runs; nothing is ever made
because a name was mistyped. `SPIKEGUARD_OWNER_DATABASE_URL` is used here and nowhere else. Without
it the server's own role owns the tables. The server's role may read the audit and add to it, and no
more; `ways_around` says what a role that does both can do to it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import sqlalchemy as sql
from psycopg.errors import InsufficientPrivilege
from sqlalchemy.exc import OperationalError, ProgrammingError

from spikeguard_cli.command import CommandFailed
from spikeguard_cli.own_files import read_own
from spikeguard_core.setting_fields import SettingError
from spikeguard_server.errors import ServiceError
from spikeguard_server.settings import OWNER, Settings, read_settings
from spikeguard_server.store.engine import open_engine
from spikeguard_server.store.migrations import migrate, require_schema

STATE = "up.json"  # in the directory of `spikeguard up`, while it runs


def data_directory() -> Path:
    """Where `spikeguard up` keeps everything unless told otherwise. No other account can enter
    root's home, and root's Postgres runs as one."""
    if os.geteuid() == 0:
        return Path("/var/lib/spikeguard")
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "spikeguard"


def database_settings(directory: Path | None) -> Settings:
    """The settings with the database that is meant; raise `CommandFailed` where there is none."""
    try:
        settings = read_settings()
    except SettingError as error:
        raise CommandFailed(str(error)) from error
    if settings.database_url:
        return settings
    state = (directory or data_directory()) / STATE
    try:
        urls = json.loads(read_own(state))
        url, owner = urls["database_url"], urls["owner_database_url"]
    except (OSError, ValueError, KeyError):
        raise CommandFailed(
            "no database is named. Set DATABASE_URL, or run this beside a running `spikeguard up` "
            "(with the same --directory, if you gave it one)"
        ) from None
    return replace(settings, database_url=url, owner_database_url=owner)


@contextmanager
def opened(settings: Settings, *, migrated: bool = True) -> Iterator[sql.Engine]:
    """A pool on the database; what goes wrong with it becomes one clear line."""
    engine = open_engine(settings)
    try:
        if migrated:
            with engine.connect() as connection:
                require_schema(connection)
        yield engine
    except OperationalError as error:
        said = str(error.orig).strip().splitlines()[:1] if error.orig else ["no reason given"]
        raise CommandFailed(f"the database cannot be reached: {said[0]}") from error
    except ServiceError as error:
        raise CommandFailed(str(error)) from error
    finally:
        engine.dispose()


SEE = "docs/access.md, Roles of the database"


def role_of(url: str) -> str:
    """The role that a database's URL names."""
    return sql.make_url(url).username or ""


def prepare(settings: Settings, *, make: bool = False) -> None:
    """Migrate, and where the owner's URL is given let the server's role do what it has to.

    `make`: make that role too. Raises `CommandFailed`, and what `migrate` raises.
    """
    owner, role = settings.owner_database_url, role_of(settings.database_url)
    theirs = replace(settings, database_url=owner or settings.database_url)
    with opened(theirs, migrated=False) as engine:
        with engine.connect() as connection:
            others = sorted(connection.scalars(_FOREIGN)) if owner else []
        if others:
            raise CommandFailed(
                f"tables belong to {', '.join(others)}, not to {role_of(owner)} of {OWNER}: hand "
                f"them over once with REASSIGN OWNED ({SEE})"
            )
        try:
            migrate(engine)
        except ProgrammingError as error:
            if not isinstance(error.orig, InsufficientPrivilege):
                raise
            raise CommandFailed(
                "the database is not at this version's schema, and this role may not change it: "
                f"run `spikeguard migrate` with {OWNER} set to the URL of the role that owns the "
                "tables"
            ) from error
        if owner and role != role_of(owner):
            with engine.begin() as connection:
                if make:
                    make_role(connection, role)
                grant_rows(connection, role)


def audit_warning(engine: sql.Engine) -> str | None:
    """What the server's role can do to the audit, in a sentence; None: add to it."""
    with engine.connect() as connection:
        ways = ways_around(connection)
        role = connection.scalar(sql.func.current_user())
    if not ways:
        return None
    return (
        f"the audit is not protected from the server's own role: {role} {', '.join(ways)}. "
        f"Give the tables to another role ({SEE})"
    )


_GRANTED: Final = {"audit": "SELECT, INSERT", "alembic_version": "SELECT"}  # of others: all
_EXISTS = sql.text("SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = :role)")
_TABLES = sql.text("""
    SELECT relname, format('%I.%I', nspname, relname)
    FROM pg_catalog.pg_class t JOIN pg_catalog.pg_namespace s ON s.oid = t.relnamespace
    WHERE nspname = 'public' AND relkind IN ('r', 'p', 'v')
""")
_FOREIGN = sql.text("""
    SELECT DISTINCT pg_get_userbyid(relowner)
    FROM pg_catalog.pg_class t JOIN pg_catalog.pg_namespace s ON s.oid = t.relnamespace
    WHERE nspname = 'public' AND relkind IN ('r', 'p', 'v')
      AND NOT pg_has_role(relowner, 'MEMBER')
""")
_WAYS = sql.text("""
    SELECT r.rolsuper AS "is a superuser",
           r.rolcreaterole AS "may make roles",
           pg_has_role(r.oid, t.relowner, 'MEMBER') AS "owns the table audit",
           pg_has_role(r.oid, s.nspowner, 'MEMBER') AS "owns the schema public",
           pg_has_role(r.oid, d.datdba, 'MEMBER') AS "owns the database",
           has_table_privilege(r.oid, t.oid, 'UPDATE, DELETE, TRUNCATE, TRIGGER')
               OR has_any_column_privilege(r.oid, t.oid, 'UPDATE') AS "may change its entries",
           pg_has_role(r.oid, 'pg_write_server_files', 'MEMBER')
               OR pg_has_role(r.oid, 'pg_execute_server_program', 'MEMBER')
               AS "may write the files of Postgres"
    FROM pg_catalog.pg_roles r
    JOIN pg_catalog.pg_class t ON t.oid = to_regclass('public.audit')
    JOIN pg_catalog.pg_namespace s ON s.oid = t.relnamespace
    JOIN pg_catalog.pg_database d ON d.datname = current_database()
    WHERE r.rolname = current_user
""")


def make_role(connection: sql.Connection, role: str) -> None:
    """Make a role that can log in and do nothing else, unless it is there."""
    if not connection.scalar(_EXISTS, {"role": role}):
        quoted = connection.dialect.identifier_preparer.quote_identifier(role)
        connection.exec_driver_sql(f"CREATE ROLE {quoted} LOGIN")


def grant_rows(connection: sql.Connection, role: str) -> None:
    """Let `role` read and write rows, and read the audit and add to it; called by the owner. Raise
    `CommandFailed` where there is no such role."""
    if not connection.scalar(_EXISTS, {"role": role}):
        raise CommandFailed(f"DATABASE_URL names role {role}, which is not there ({SEE})")
    quoted = connection.dialect.identifier_preparer.quote_identifier(role)
    statements = [
        "REVOKE ALL ON public.audit FROM PUBLIC",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        f"REVOKE CREATE ON SCHEMA public FROM {quoted}",
        f"GRANT USAGE ON SCHEMA public TO {quoted}",
    ]
    for name, table in connection.execute(_TABLES):
        statements.append(f"REVOKE ALL ON {table} FROM {quoted}")
        granted = _GRANTED.get(name, "SELECT, INSERT, UPDATE, DELETE")
        statements.append(f"GRANT {granted} ON {table} TO {quoted}")
    for statement in statements:
        connection.exec_driver_sql(statement)


def ways_around(connection: sql.Connection) -> list[str]:
    """By what the present role can change or delete what stands in the audit; empty: by nothing."""
    found = connection.execute(_WAYS).mappings().first()
    return [] if found is None else [way for way, given in found.items() if given is True]
