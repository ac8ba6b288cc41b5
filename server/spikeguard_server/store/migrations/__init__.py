"""The schema's history, inside the package so that an installed wheel can migrate.

Forward only from 0.1.0 on, one transaction, under an advisory lock: of several replicas that start
together one migrates and the others wait, then find nothing to do. A revision, once released, never
changes. Others may be serving meanwhile: it takes the lock of every message first, waits for no
lock long, since all who come later wait behind it, and tries again where it got in somebody's way.
"""

from __future__ import annotations

import time
from pathlib import Path

import sqlalchemy as sql
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg.errors import DeadlockDetected, LockNotAvailable
from sqlalchemy.exc import OperationalError

from spikeguard_server.errors import Unready

LOCK = 0x5350494B45  # "SPIKE"
LOCK_TIMEOUT_S = 5
TRIES = 12
REST_S = 1.0  # between two tries, for those who waited behind
SCRIPTS = Path(__file__).parent


class OlderSchema(Unready):
    """The database is of an earlier release, and can be migrated."""


class NewerSchema(Unready):
    """The database was migrated by a newer release, which this one may only serve beside."""


def migrate(engine: sql.Engine, scripts: Path = SCRIPTS) -> None:
    """Bring the schema to the newest revision of `scripts`; does nothing where it is there already.

    Raises `OperationalError` where no try of `TRIES` got its locks, and `NewerSchema`.
    """
    for tries_left in reversed(range(TRIES)):
        try:
            _migrate(engine, scripts)
        except OperationalError as error:
            if not tries_left or not isinstance(error.orig, DeadlockDetected | LockNotAvailable):
                raise
            time.sleep(REST_S)
        else:
            break


def _migrate(engine: sql.Engine, scripts: Path) -> None:
    config = _config(scripts)
    with engine.begin() as connection:
        connection.execute(sql.text("SET LOCAL statement_timeout = 0"))
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(LOCK)))
        if not isinstance(found := _mismatch(connection, config), OlderSchema):
            if found is not None:
                raise found
            return
        connection.execute(sql.text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'"))
        if sql.inspect(connection).has_table("runs"):
            connection.execute(sql.text("LOCK TABLE runs"))  # as messages do, before all else
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def require_schema(connection: sql.Connection) -> None:
    """Raise `OlderSchema` or `NewerSchema` where this release can't work."""
    if (problem := _mismatch(connection, _config(SCRIPTS))) is not None:
        raise problem


def current_revision(connection: sql.Connection) -> str | None:
    """The revision that the database stands at; None when it is empty."""
    return MigrationContext.configure(connection).get_current_revision()


def _mismatch(connection: sql.Connection, config: Config) -> Unready | None:
    """Why the database is not at the head of those scripts; None where it is."""
    directory = ScriptDirectory.from_config(config)
    found, newest = current_revision(connection), directory.get_current_head()
    if found == newest:
        return None
    stands = f"stands at revision {found}" if found else "is empty"
    if found is not None and found not in {s.revision for s in directory.walk_revisions()}:
        said = f"The database {stands}, this release ends at {newest}"
        return NewerSchema(said, "Run the newer release")
    said = f"The database {stands}, this release needs {newest}"
    return OlderSchema(said, "Run `spikeguard migrate`")


def _config(scripts: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    return config
