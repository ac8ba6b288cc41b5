"""The schema's history, inside the package so that an installed wheel can migrate.

Law: forward only, one transaction, under an advisory lock: of several replicas that start together
one migrates and the others wait, then find nothing to do. A revision, once released, never changes.
Others may be serving meanwhile: it takes the lock of every message first, waits for no lock long,
since all who come later wait behind it, and tries again where it got in somebody's way.
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


class NewerSchema(Unready):
    """The database was migrated by a newer release, which this one may only serve beside."""

    def __init__(self, revision: str) -> None:
        super().__init__(
            f"The database stands at revision {revision}, this release ends at {newest_revision()}",
            "Run the newer release",
        )


def migrate(engine: sql.Engine) -> None:
    """Bring the schema to this version's revision; does nothing where it is there already.

    Raises `OperationalError` where no try of `TRIES` got its locks, and `NewerSchema`.
    """
    for tries_left in reversed(range(TRIES)):
        try:
            _migrate(engine)
        except OperationalError as error:
            if not tries_left or not isinstance(error.orig, DeadlockDetected | LockNotAvailable):
                raise
            time.sleep(REST_S)
        else:
            break


def _migrate(engine: sql.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sql.text("SET LOCAL statement_timeout = 0"))
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(LOCK)))
        if (found := current_revision(connection)) == newest_revision():
            return
        if found is not None and found not in _revisions():
            raise NewerSchema(found)
        connection.execute(sql.text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_S}s'"))
        if sql.inspect(connection).has_table("runs"):
            connection.execute(sql.text("LOCK TABLE runs"))  # as messages do, before all else
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def newest_revision() -> str:
    """The revision that this version of the server needs."""
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def current_revision(connection: sql.Connection) -> str | None:
    """The revision that the database stands at; None when it is empty."""
    return MigrationContext.configure(connection).get_current_revision()


def _revisions() -> set[str]:
    """Those that this version of the server knows."""
    return {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config
