"""The database's roles: one owns the tables, the server's reads and writes rows.

Law: the server's role may read the audit and add to it, and no more. Where one role does both,
everything works, and `ways_around` says what that role can do to the audit.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

APPEND_ONLY: Final = "audit"
READ_ONLY: Final = "alembic_version"
_EXISTS = sql.text("SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = :role)")
_QUOTED = sql.text("SELECT quote_ident(:role)")
_TABLES = sql.text("""
    SELECT relname, format('%I.%I', nspname, relname)
    FROM pg_catalog.pg_class t JOIN pg_catalog.pg_namespace s ON s.oid = t.relnamespace
    WHERE nspname = 'public' AND relkind IN ('r', 'p', 'v')
""")
_FOREIGN = sql.text("""
    SELECT DISTINCT pg_get_userbyid(relowner)
    FROM pg_catalog.pg_class t JOIN pg_catalog.pg_namespace s ON s.oid = t.relnamespace
    WHERE nspname IN ('public', 'partitions') AND relkind IN ('r', 'p', 'v')
      AND NOT pg_has_role(relowner, 'MEMBER')
""")
_WAYS = sql.text("""
    SELECT r.rolname AS role,
           r.rolsuper AS "is a superuser",
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
    WHERE r.rolname = :role
    ORDER BY r.rolname
""")


def role_exists(connection: sql.Connection, role: str) -> bool:
    """Whether the database has a role of this name."""
    return bool(connection.execute(_EXISTS, {"role": role}).scalar_one())


def make_role(connection: sql.Connection, role: str) -> None:
    """Make a role that can log in and do nothing else, unless it is there."""
    if not role_exists(connection, role):
        connection.exec_driver_sql(f"CREATE ROLE {_quoted(connection, role)} LOGIN")


def foreign_owners(connection: sql.Connection) -> list[str]:
    """Who owns tables of ours that the present role can't change."""
    return sorted(connection.execute(_FOREIGN).scalars())


def grant_rows(connection: sql.Connection, role: str) -> None:
    """Let `role` read and write rows, and read the audit and add to it; called by the owner."""
    quoted = _quoted(connection, role)
    statements = [
        "REVOKE ALL ON public.audit FROM PUBLIC",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        f"REVOKE CREATE ON SCHEMA public FROM {quoted}",
        f"GRANT USAGE ON SCHEMA public, partitions TO {quoted}",
        f"GRANT EXECUTE ON FUNCTION partitions.make_partitions, partitions.drop_partitions "
        f"TO {quoted}",
    ]
    for name, table in connection.execute(_TABLES):
        statements.append(f"REVOKE ALL ON {table} FROM {quoted}")
        statements.append(f"GRANT {_granted(name)} ON {table} TO {quoted}")
    for statement in statements:
        connection.exec_driver_sql(statement)


def _granted(table: str) -> str:
    return {APPEND_ONLY: "SELECT, INSERT", READ_ONLY: "SELECT"}.get(
        table, "SELECT, INSERT, UPDATE, DELETE"
    )


def ways_around(connection: sql.Connection) -> list[str]:
    """By what the present role can change or delete what stands in the audit; empty: by nothing."""
    found = connection.execute(_WAYS, {"role": current_role(connection)}).mappings().first()
    return [] if found is None else [way for way, given in found.items() if given is True]


def current_role(connection: sql.Connection) -> str:
    """As whom this connection works."""
    return str(connection.execute(sql.text("SELECT current_user")).scalar_one())


def _quoted(connection: sql.Connection, role: str) -> str:
    return str(connection.execute(_QUOTED, {"role": role}).scalar_one())
