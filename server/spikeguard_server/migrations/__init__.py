"""The schema's history, inside the package so that an installed wheel can migrate.

Law: forward only, one transaction, under an advisory lock: of several replicas that start together
one migrates and the others wait, then find nothing to do. A revision, once released, never changes.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sql
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

LOCK = 0x5350494B45  # "SPIKE"


def migrate(engine: sql.Engine) -> None:
    """Bring the schema to this version's revision; does nothing where it is there already."""
    with engine.begin() as connection:
        connection.execute(sql.text("SET LOCAL statement_timeout = 0"))
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(LOCK)))
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def newest_revision() -> str:
    """The revision that this version of the server needs."""
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def current_revision(connection: sql.Connection) -> str | None:
    """The revision that the database stands at; None when it is empty."""
    return MigrationContext.configure(connection).get_current_revision()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config
