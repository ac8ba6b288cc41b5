"""A real Postgres for every test of the server: one for the session, one database a test."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sql

from spikeguard_server.cli.embedded_postgres import embedded
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from spikeguard_server.store.migrations import migrate
from tests.server.notify.listener import Listener, listening

_NUMBERS = count()
TEMPLATE = "migrated"
ROOM_BYTES = 2**31  # a worker's server takes a tenth of it
# `FROM a, b`: a select that was meant to correlate with the one around it, and does not, reads so.
IMPLICIT_JOIN = re.compile(r"\bFROM\s+\w+(\s+AS\s+\w+)?\s*,(?!\s*unnest)", re.IGNORECASE)


@sql.event.listens_for(sql.Engine, "before_cursor_execute")
def _refuse_implicit_joins(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
    assert not IMPLICIT_JOIN.search(statement), f"join explicitly, or correlate: {statement}"


@dataclass(frozen=True)
class Databases:
    """Those of the embedded Postgres, made over one connection: another one for each takes longer
    than the copy."""

    url: str
    control: psycopg.Connection[Any]

    def url_of(self, name: str) -> str:
        return _named(self.url, name)

    def make(self, name: str, template: str = TEMPLATE) -> str:
        """Copy `template`; the URL of what was made."""
        self._run(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return self.url_of(name)

    @contextmanager
    def lent(self, template: str = TEMPLATE) -> Iterator[str]:
        """A copy of `template` that goes in the end."""
        name = f"test_{next(_NUMBERS)}"
        yield self.make(name, template)
        self._run(f"DROP DATABASE {name} WITH (FORCE)")

    def _run(self, statement: str) -> None:
        self.control.execute(statement.encode())


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of an embedded Postgres with a migrated template database."""
    directory = Path(tempfile.mkdtemp(prefix="spikeguard-tests-", dir=_quick_folder()))
    directory.chmod(0o755)  # the account that Postgres runs as must be able to pass
    try:
        with embedded(directory / "postgres", durable=False) as (url, _):
            with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as control:
                control.execute(f"CREATE DATABASE {TEMPLATE}".encode())
            engine = sql.create_engine(_named(url, TEMPLATE))
            migrate(engine)
            engine.dispose()
            yield url
    finally:
        shutil.rmtree(directory)


def _quick_folder() -> str:
    """In memory where there is room: to make and drop a database there takes a third of the CPU."""
    memory = Path("/dev/shm")
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOM_BYTES
    return str(memory) if roomy else "/tmp"


@pytest.fixture(scope="session")
def databases(postgres: str) -> Iterator[Databases]:
    """Makes copies of the migrated database."""
    with psycopg.connect(postgres.replace("+psycopg", ""), autocommit=True) as control:
        yield Databases(postgres, control)


@pytest.fixture
def database_url(databases: Databases) -> Iterator[str]:
    """An empty, migrated database of the test's own."""
    with databases.lent() as url:
        yield url


@pytest.fixture
def engine(database_url: str) -> Iterator[sql.Engine]:
    """A pool on the test's database."""
    engine = open_engine(Settings(database_url=database_url))
    yield engine
    engine.dispose()


def _named(url: str, database: str) -> str:
    return url.replace("/postgres?", f"/{database}?")


@pytest.fixture
def listener() -> Iterator[Listener]:
    """Takes what webhooks send."""
    with listening() as found:
        yield found
