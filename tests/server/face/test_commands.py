"""`serve`, `migrate`, `token` and `policy` as whoever runs the server types them.

Each is a process once. What is typed further runs in this one: a process takes a second to begin.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sql

from spikeguard_cli.main import main
from spikeguard_server.http.dependencies import READY_S
from tests.programs import running, typed
from tests.server.conftest import Databases


def environment(**given: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPIKEGUARD", "DATABASE"))}
    return {**kept, **given}


def type_in(database_url: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run one command on a database."""
    return typed(*words, environment=environment(DATABASE_URL=database_url))


@dataclass(frozen=True)
class Said:
    """What became of a command."""

    returncode: int
    stdout: str
    stderr: str


Say = Callable[..., Said]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs one command on a database, in this process."""

    def run(database_url: str, *words: str) -> Said:
        monkeypatch.setenv("DATABASE_URL", database_url)
        capsys.readouterr()
        return Said(main(words), *capsys.readouterr())

    for name in os.environ.keys() - environment().keys():
        monkeypatch.delenv(name)
    return run


def test_serve_refuses_to_start_without_a_database() -> None:
    done = typed("serve", environment=environment())
    assert done.returncode == 1
    assert "DATABASE_URL: is not set" in done.stderr


CREATE = ("token", "create", "--role", "agent")


def test_a_token_needs_a_database_that_was_named(tmp_path: Path) -> None:
    done = typed(*CREATE, "--directory", str(tmp_path), environment=environment())
    assert done.returncode == 1
    assert "Set DATABASE_URL" in done.stderr


@pytest.fixture(scope="module")
def shared_url(databases: Databases) -> Iterator[str]:
    """A database of the tests that need a server."""
    with databases.lent() as url:
        yield url


@pytest.fixture(scope="module")
def served(shared_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`spikeguard serve` as a process that is ready, and ends well when it is told to stop."""
    log = tmp_path_factory.mktemp("served") / "log"
    with running(log, environment(DATABASE_URL=shared_url)) as (url, process):
        yield url
        process.terminate()
        assert process.wait(120) in (0, -signal.SIGTERM)


def test_a_token_is_made_on_the_database_or_registered_there(
    served: str, shared_url: str, say: Say, tmp_path: Path
) -> None:
    made = type_in(shared_url, "token", "create", "--role", "viewer", "--person", "Ada")
    secret = made.stdout.strip()
    header = {"Authorization": f"Bearer {secret}"}
    assert httpx.get(f"{served}/v1/me", headers=header, timeout=120).json()["name"] == "Ada"
    file = tmp_path / "secret"
    file.write_text("elsewhere-made-secret-0123456789\n")
    words = ["token", "register", "--role", "metrics", "--file", str(file), "--name", "prometheus"]
    for _ in range(2):  # the second time changes nothing
        assert say(shared_url, *words).returncode == 0
    scraper = {"Authorization": "Bearer elsewhere-made-secret-0123456789"}
    assert httpx.get(f"{served}/metrics", headers=scraper, timeout=120).status_code == 200


def test_a_replica_that_starts_amid_an_upgrade_serves_on_and_is_not_ready(
    served: str, shared_url: str, tmp_path: Path
) -> None:
    """The newer release has migrated; this process stands for one that had to start again."""
    with standing_at(shared_url, "9999"):
        time.sleep(READY_S)  # so old may the word be that all is well
        assert httpx.get(f"{served}/readyz", timeout=120).status_code == 503
        given = environment(DATABASE_URL=shared_url)
        with running(tmp_path / "log", given, "healthz") as (again, _):
            migrating = type_in(shared_url, "migrate")
            assert migrating.returncode == 1
            assert "stands at revision 9999" in migrating.stderr
            assert "Traceback" not in migrating.stderr
            assert httpx.get(f"{again}/readyz", timeout=120).status_code == 503
            assert httpx.get(f"{again}/v1/me", timeout=120).status_code == 401


@contextmanager
def standing_at(database_url: str, revision: str) -> Iterator[None]:
    """Let the database be at another release's schema for a while."""
    engine = sql.create_engine(database_url)
    move = sql.text("update alembic_version set version_num = :to")
    with engine.begin() as connection:
        was = connection.scalar(sql.text("select version_num from alembic_version"))
        connection.execute(move, {"to": revision})
    try:
        yield
    finally:
        with engine.begin() as connection:
            connection.execute(move, {"to": was})
        engine.dispose()
