"""A database that cannot write, or is gone: it is said which, where a balancer and a person look.

Law: a real Postgres on a small disk that is really full, and a real server process.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import sqlalchemy as sql

from spikeguard_protocol import Role, encode
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.cli.embedded_postgres import embedded
from spikeguard_server.retries import survive
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from spikeguard_server.store.migrations import migrate
from tests.programs import running
from tests.server.conftest import Databases
from tests.server.face.conftest import Job, Live
from tests.server.face.serving import serving

DISK = 220 * 2**20  # bytes


@dataclass(frozen=True)
class Site:
    """A server whose database lies on a disk that can be filled."""

    live: Live
    disk: Path
    log: Path
    stop_database: Callable[[], None]

    def ready(self) -> tuple[int, str | None]:
        """What a balancer is told: the status, and the cause of a 503."""
        answer = httpx.get(f"{self.live.url}/readyz", timeout=120)
        error: dict[str, Any] = answer.json().get("error", {})
        return answer.status_code, error.get("cause")

    def until(self, expected: tuple[int, str | None]) -> None:
        deadline = time.monotonic() + 120
        while (found := self.ready()) != expected:
            assert time.monotonic() < deadline, found
            time.sleep(0.2)

    def fill(self) -> None:
        with suppress(OSError), (self.disk / "ballast").open("wb", buffering=0) as file:
            for size in (2**20, 2**12, 1):
                with suppress(OSError):
                    while True:
                        file.write(b"\0" * size)


@pytest.fixture
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        folder.chmod(0o755)
        disk = folder / "disk"
        disk.mkdir(mode=0o755)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=755", "tmpfs", str(disk)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("mounting a small disk needs root")
        stack.callback(subprocess.run, ["umount", str(disk)], check=True)
        database = stack.enter_context(ExitStack())
        url, _ = database.enter_context(embedded(disk / "postgres"))
        engine = sql.create_engine(url)
        migrate(engine)
        with engine.begin() as connection:
            tokens = {role: issue_token(connection, Grant(role), "test")[0] for role in Role}
        engine.dispose()
        log = folder / "log"
        words = {**os.environ, "DATABASE_URL": url, "SPIKEGUARD_TICK_S": "0.05"}
        server, _ = stack.enter_context(running(log, words))
        yield Site(Live(server, engine, tokens), disk, log, database.close)


def test_a_full_disk_and_a_database_that_is_gone_are_told_apart(site: Site) -> None:
    """In the answer to an agent and in the log, which stays short; what only reads is answered
    while the disk is full."""
    job = Job(site.live, "full").start()
    job.train(20)
    site.until((200, None))
    site.fill()
    for _ in range(200):
        refused = job.post(encode(job.message(job.steps(500))))
        if refused.status_code != 200:
            break
    assert (refused.status_code, refused.json()["error"].get("cause")) == (503, "disk_full")
    with site.live.client(Role.VIEWER) as client:
        assert client.get(job.path).json()["last_step"] >= 20
    (site.disk / "ballast").unlink()
    site.until((200, None))
    site.stop_database()
    site.until((503, "unreachable"))
    time.sleep(3.0)
    with site.live.client(Role.VIEWER) as client:
        assert client.get(job.path).json()["error"]["cause"] == "unreachable"
    log = site.log.read_text()
    assert "(unreachable)" in log
    assert len(log) < 8000, log


def test_why_the_database_gives_no_connection_stands_in_the_log_alone(
    databases: Databases, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its words may name hosts and roles."""
    role = "CREATE ROLE late LOGIN CONNECTION LIMIT 0"
    with suppress(psycopg.errors.DuplicateObject):
        databases.control.execute(role.encode())
    url = database_url.replace("spikeguard@", "late@")
    settings = Settings(database_url=url)
    with serving(settings) as server:
        answer = httpx.get(f"{server}/readyz", timeout=120)
    survive(lambda: open_engine(settings).connect(), "the ticker")
    assert (answer.status_code, answer.json()["error"]["cause"]) == (503, "unreachable")
    assert "late" not in answer.text
    assert "too many connections for role" in caplog.text
