"""A real Postgres for every test of the server: one for the session, one database a test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy as sql

from spikeguard_server.migrations import migrate
from spikeguard_server.postgres import embedded
from spikeguard_server.repository.engine import open_engine
from spikeguard_server.settings import Settings

_NUMBERS = count()
TEMPLATE = "migrated"


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of an embedded Postgres with a migrated template database."""
    directory = Path(tempfile.mkdtemp(prefix="spikeguard-tests-", dir="/tmp"))
    directory.chmod(0o755)  # the account that Postgres runs as must be able to pass
    try:
        with embedded(directory / "postgres", durable=False) as url:
            _execute(url, f"CREATE DATABASE {TEMPLATE}")
            engine = sql.create_engine(_named(url, TEMPLATE))
            migrate(engine)
            engine.dispose()
            yield url
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def database_url(postgres: str) -> Iterator[str]:
    """An empty, migrated database of the test's own."""
    name = f"test_{next(_NUMBERS)}"
    _execute(postgres, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY file_copy")
    yield _named(postgres, name)
    _execute(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def engine(database_url: str) -> Iterator[sql.Engine]:
    """A pool on the test's database."""
    engine = open_engine(Settings(database_url=database_url))
    yield engine
    engine.dispose()


def _named(url: str, database: str) -> str:
    return url.replace("/postgres?", f"/{database}?")


def _execute(url: str, statement: str) -> None:
    engine = sql.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sql.text(statement))
    engine.dispose()
