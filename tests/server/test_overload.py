"""A real server process that is told to stop while it works."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import pytest
import sqlalchemy as sql

from spikeguard_protocol import Role, encode
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from tests.programs import serve
from tests.server.conftest import Databases
from tests.server.store.jobs import Job, columns, healthy


@dataclass
class Service:
    """`spikeguard serve` as its own process."""

    process: subprocess.Popen[bytes]
    url: str
    token: str

    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)


@pytest.fixture(scope="module")
def pool(databases: Databases) -> Iterator[sql.Engine]:
    """A pool on a database that the tests of this file share."""
    made = open_engine(Settings(database_url=databases.make("overload")))
    yield made
    made.dispose()


@pytest.fixture(scope="module")
def service(pool: sql.Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One process for this file: its last test ends it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    database_url = pool.url.render_as_string(hide_password=False)
    with pool.begin() as connection:
        token, _ = issue_token(connection, Grant(Role.AGENT), "test")
    settings = {"DATABASE_URL": database_url}
    log = tmp_path_factory.mktemp("overload") / "log"
    process = serve(port, log=log, environment={**os.environ, **settings})
    made = Service(process, f"http://127.0.0.1:{port}", token)
    try:
        _await_ready(made)
        yield made
    finally:
        process.kill()
        process.wait()


def _await_ready(service: Service) -> None:
    for _ in range(600):
        try:
            if httpx.get(f"{service.url}/readyz", timeout=30).status_code == 200:
                return
        except httpx.TransportError:
            assert service.process.poll() is None
        time.sleep(0.05)
    raise AssertionError("the server never became ready")


def bodies(engine: sql.Engine, run: str, count: int, steps: int = 10) -> list[bytes]:
    """A run's first messages: its start, then so many steps each."""
    job = Job(engine, run=run)
    sent = [job.message(*job.beginning())]
    parts = [range(steps * n + 1, steps * (n + 1) + 1) for n in range(count)]
    sent += [job.message(columns(part, healthy)) for part in parts]
    return [encode(message) for message in sent]


def test_what_is_under_way_at_sigterm_is_finished_and_acknowledged(
    pool: sql.Engine, service: Service
) -> None:
    """The message waits for its run's lock when the signal comes; the connection is not cut."""
    start, more = bodies(pool, "late", 1)
    with service.client() as client, ThreadPoolExecutor(1) as thread:
        assert client.post("/v1/messages", content=start).status_code == 200
        with pool.begin() as holder:
            holder.execute(sql.text("select from runs where name = 'late' for update"))
            answer = thread.submit(client.post, "/v1/messages", content=more)
            _await_waiting(pool)
            service.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert service.process.poll() is None
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{service.url}/healthz", timeout=2)
        assert answer.result(10).status_code == 200
    service.process.wait(15)
    with pool.connect() as connection:
        assert (
            connection.execute(
                sql.text(
                    "select count(*) from samples join runs using (run_id) where name = 'late'"
                )
            ).scalar_one()
            == 10
        )


def _await_waiting(engine: sql.Engine) -> None:
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
    for _ in range(200):
        with engine.connect() as connection:
            if connection.execute(sql.text(waiting)).scalar_one():
                return
        time.sleep(0.02)
    raise AssertionError("no message ever waited")
