"""The schema: what migrations make is what the tables say, however many make it."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sql
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from spikeguard_server.settings import Settings
from spikeguard_server.store.migrations import SCRIPTS, current_revision, migrate
from spikeguard_server.store.tables.core import metadata
from tests.agent.wire import await_that
from tests.server.face.serving import serving
from tests.server.store.jobs import execute

NEWEST = ScriptDirectory(str(SCRIPTS)).get_current_head()
LATER = """
from alembic import op

revision = "9999_later"
down_revision = "{newest}"


def upgrade() -> None:
    op.execute("ALTER TABLE commands ADD COLUMN later text")
"""


def make_empty(connection: sql.Connection) -> None:
    """Take away what the migrations made."""
    connection.execute(sql.text("drop schema public cascade"))
    connection.execute(sql.text("create schema public"))


def other_columns(connection: sql.Connection) -> list[Any]:
    """Where tables and columns of the database are not those that queries know."""
    known = MigrationContext.configure(connection, opts={"include_object": is_column})
    found: list[Any] = compare_metadata(known, metadata)
    return found


def is_column(_item: Any, _name: str | None, kind: str, *_: Any) -> bool:
    """Keys, indexes and constraints stand in the schema alone."""
    return kind in ("table", "column")


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """The migrations with one more, as a later release brings them."""
    scripts = Path(shutil.copytree(SCRIPTS, tmp_path / "migrations"))
    (scripts / "versions/9999_later.py").write_text(LATER.format(newest=NEWEST))
    return scripts


def test_migrations_make_what_the_tables_say(engine: sql.Engine) -> None:
    with engine.connect() as connection:
        assert other_columns(connection) == []
        assert current_revision(connection) == NEWEST


def test_no_migration_reads_the_tables_of_today() -> None:
    """It would make another database with every release."""
    for file in (SCRIPTS / "versions").glob("[0-9]*.py"):
        assert "spikeguard" not in re.findall(r"^(?:from|import) (\w+)", file.read_text(), re.M)


def test_replicas_that_start_together_migrate_once(engine: sql.Engine) -> None:
    with engine.begin() as connection:
        make_empty(connection)
        assert current_revision(connection) is None
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(migrate, engine) for _ in range(4)]:
            done.result(120)
    with engine.connect() as connection:
        assert current_revision(connection) == NEWEST


BLOCKED = "select count(*) from pg_locks where not granted and relation = '{}'::regclass"


def blocked_at(engine: sql.Engine, table: str) -> bool:
    with engine.connect() as connection:
        return bool(connection.execute(sql.text(BLOCKED.format(table))).scalar_one())


def wait_until_blocked(engine: sql.Engine, table: str) -> None:
    await_that(lambda: blocked_at(engine, table))


def test_a_migration_waits_for_a_message_that_is_being_taken(
    engine: sql.Engine, later: Path
) -> None:
    """Its transaction begins with its run, and may need any table after that."""
    with engine.connect() as message:
        message.execute(sql.text("select from runs for no key update"))
        with ThreadPoolExecutor(1) as pool:
            migration = pool.submit(migrate, engine, later)
            wait_until_blocked(engine, "runs")
            message.execute(sql.text("set local lock_timeout = '500ms'"))
            message.execute(sql.text("select from commands"))
            message.commit()
            migration.result(120)
    with engine.connect() as connection:
        assert current_revision(connection) == "9999_later"


def test_a_migration_that_gets_in_somebodys_way_is_tried_again(
    engine: sql.Engine, later: Path
) -> None:
    """Whoever only reads begins with any table."""
    with engine.connect() as reader, ThreadPoolExecutor(1) as pool:
        reader.execute(sql.text("set local deadlock_timeout = '60s'"))  # the other one gives way
        reader.execute(sql.text("select from commands"))
        migration = pool.submit(migrate, engine, later)
        wait_until_blocked(engine, "commands")
        reader.execute(sql.text("select from runs"))
        reader.commit()
        migration.result(120)
    with engine.connect() as connection:
        assert current_revision(connection) == "9999_later"


def stand_at(engine: sql.Engine, revision: str) -> None:
    execute(engine, f"update alembic_version set version_num = '{revision}'")


@pytest.mark.parametrize(
    ("revision", "told"),
    [("9999_later", "newer release"), ("", "spikeguard migrate")],
)
def test_a_server_says_why_its_database_keeps_it_from_being_ready(
    engine: sql.Engine, database_url: str, revision: str, told: str
) -> None:
    if revision:
        stand_at(engine, revision)
    else:
        with engine.begin() as connection:
            make_empty(connection)
    with serving(Settings(database_url=database_url)) as url:
        answer = httpx.get(f"{url}/readyz", timeout=120)
    assert answer.status_code == 503
    error = answer.json()["error"]
    assert told in error["remedy"]
    assert revision in error["message"]
