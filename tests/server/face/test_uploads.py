"""What is on its way to the server: bounded, cut at will, and answered however bad it is."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
import sqlalchemy as sql

from spikeguard_protocol import MAX_BYTES, Role, decode_ack, to_json
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.http.middleware import BURST_S
from spikeguard_server.http.routes import messages as express
from spikeguard_server.ingest.message_pool import SharedQuota
from spikeguard_server.settings import Settings
from tests.agent.wire import await_that
from tests.programs import running
from tests.server.conftest import Databases
from tests.server.face.conftest import Job, Live
from tests.server.face.serving import serving

INFLOW = 256 * 1024
PART = 100 * 1024  # of a message that never comes to its end
WHOLE = 4_000_000


@pytest.fixture
def tokens(engine: sql.Engine) -> dict[Role, str]:
    with engine.begin() as connection:
        return {r: issue_token(connection, Grant(r), "test")[0] for r in (Role.AGENT, Role.METRICS)}


@pytest.fixture
def another(engine: sql.Engine) -> str:
    """The token of other agents."""
    with engine.begin() as connection:
        return issue_token(connection, Grant(Role.AGENT), "test")[0]


@pytest.fixture
def inflow(monkeypatch: pytest.MonkeyPatch) -> SharedQuota:
    """What is on its way to the server, which holds little of it."""
    held = SharedQuota(INFLOW, "bytes of messages are on their way")
    monkeypatch.setattr(express, "SharedQuota", lambda *_: held)
    return held


@pytest.fixture
def url(database_url: str, inflow: SharedQuota) -> Iterator[str]:
    del inflow  # to be there before the server
    with serving(Settings(database_url=database_url)) as found:
        yield found


def begin(url: str, token: str, sent: int, length: int = WHOLE) -> socket.socket:
    """A message of so many bytes of which so many are sent."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    line = socket.create_connection((parts.hostname, parts.port or 80), 10)
    head = f"POST /v1/messages HTTP/1.1\r\nHost: guard\r\nAuthorization: Bearer {token}\r\n"
    line.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + b" " * sent)
    return line


def answer(line: socket.socket) -> tuple[int, dict[str, object]]:
    """Status and error of what comes back now."""
    head, _, body = line.recv(65536).decode().partition("\r\n\r\n")
    body = body or line.recv(65536).decode()
    return int(head.split()[1]), json.loads(body)["error"]


def test_a_token_is_refused_before_anything_of_its_message_has_come(url: str) -> None:
    with begin(url, "guess" * 8, sent=0) as line:
        status, error = answer(line)
    assert (status, error["code"]) == (401, "not_signed_in")


def test_what_is_on_its_way_is_bounded_and_there_is_room_again_when_it_ends(
    url: str, tokens: dict[Role, str], another: str, inflow: SharedQuota
) -> None:
    with ExitStack() as held:
        for token in (tokens[Role.AGENT], another):
            held.enter_context(begin(url, token, PART))
        await_that(lambda: inflow.held == 2 * PART)
        with begin(url, tokens[Role.AGENT], PART) as line:
            status, error = answer(line)
        assert (status, error["code"], error["limit"]) == (429, "busy", INFLOW)
        small = post(url, tokens, b"{}")  # comes at once, and waits for nothing
        assert small.status_code in (400, 422), small.text
    await_that(lambda: post(url, tokens, b" " * PART).status_code == 400)


def post(url: str, tokens: dict[Role, str], body: bytes) -> httpx.Response:
    headers = {"Authorization": f"Bearer {tokens[Role.AGENT]}"}
    return httpx.post(f"{url}/v1/messages", content=body, headers=headers, timeout=120)


def test_a_body_that_does_not_come_to_its_end_is_let_go(
    url: str, tokens: dict[Role, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(express, "BODY_S", 0.3)
    with begin(url, tokens[Role.AGENT], PART) as line:
        status, error = answer(line)
    assert (status, error["limit"]) == (429, 0.3)


MORE_MIB = 8 * 2  # that eight attacks may cost together


@dataclass(frozen=True)
class Served:
    """A server process and its address."""

    process: psutil.Process
    port: int

    def dial(self) -> socket.socket:
        """A new connection."""
        return socket.create_connection(("127.0.0.1", self.port), 20)

    def mib(self) -> float:
        return float(self.process.memory_info().rss / 2**20)


@pytest.fixture(scope="module")
def served(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("served") / "log"
    with databases.lent() as database:
        environment = {**os.environ, "SPIKEGUARD_KEEP_ALIVE_S": "2", "DATABASE_URL": database}
        with running(log, environment) as (url, process):
            yield Served(psutil.Process(process.pid), int(url.rpartition(":")[2]))


def flood(connection: socket.socket, piece: bytes, most: int) -> int:
    """Send `piece` again and again; how many bytes went out before the server hung up."""
    sent = 0
    try:
        while sent < most:
            connection.sendall(piece)
            sent += len(piece)
    except OSError:
        pass
    return sent


HEADER = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("beginning", "piece"),
    [
        pytest.param(HEADER, b"".join(b"X-%d: y\r\n" % n for n in range(5000)), id="fields"),
        pytest.param(CHUNKED + b"0\r\nX: ", b"y" * 65_536, id="one trailer"),
        pytest.param(CHUNKED + b"1;", b"y" * 65_536, id="chunk extension"),
    ],
)
def test_an_endless_header_costs_the_server_no_memory(
    served: Served, beginning: bytes, piece: bytes
) -> None:
    """Eight of them at once, each of up to 64 MB."""
    before, highest = served.mib(), 0.0

    def attack() -> int:
        with served.dial() as connection:
            connection.sendall(beginning)
            return flood(connection, piece, 64 * 10**6)

    with ThreadPoolExecutor(8) as pool:
        attacks = [pool.submit(attack) for _ in range(8)]
        while not all(done.done() for done in attacks):
            highest = max(highest, served.mib())
            time.sleep(0.02)
    assert max(done.result() for done in attacks) < 64 * 10**6
    assert max(highest, served.mib()) - before < MORE_MIB


PER_S = 1.0  # a machine that takes a second for a call would be let through
BURST = int(PER_S * BURST_S)


@pytest.fixture
def calls(engine: sql.Engine, database_url: str) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Two viewers' clients of a server that lets each call so often a second."""
    with engine.begin() as connection:
        tokens = [issue_token(connection, Grant(Role.VIEWER), "test")[0] for _ in range(2)]
    settings = Settings(database_url=database_url, requests_per_s=PER_S)
    with serving(settings) as url:
        clients = [_client(url, token) for token in tokens]
        yield clients[0], clients[1]
        for client in clients:
            client.close()


def _client(url: str, token: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=url, headers=headers, timeout=120, verify=False)


def test_a_token_that_calls_too_often_is_told_the_limit_and_when_to_come_back(
    calls: tuple[httpx.Client, httpx.Client],
) -> None:
    hasty, calm = calls
    answers = [hasty.get("/v1/me") for _ in range(BURST + 30)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert answers[0].status_code == 200
    assert refused
    error = refused[0].json()["error"]
    assert (error["code"], error["limit"]) == ("busy", PER_S)
    assert int(refused[0].headers["Retry-After"]) >= 1
    assert refused[0].headers["X-Content-Type-Options"] == "nosniff"
    assert calm.get("/v1/me").status_code == 200


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer, which has the one shape."""
    body = answer.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() >= {"code", "field", "message", "remedy"}
    assert error["message"]
    assert error["remedy"]
    return error


def plain(job: Job) -> dict[str, Any]:
    """A heartbeat of `job` as JSON."""
    body: dict[str, Any] = to_json(job.message())
    return body


def test_an_unknown_version_is_told_which_ones_are_spoken(job: Job) -> None:
    answer = job.post(json.dumps({**plain(job), "version": 99}).encode())
    assert answer.status_code == 400
    assert error_of(answer)["supported"] == [1]


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000])
def test_what_is_no_json_object_is_malformed(job: Job, body: bytes) -> None:
    answer = job.post(body)
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "malformed"


def test_a_missing_field_is_named(job: Job) -> None:
    body = plain(job)
    del body["attempt"]
    answer = job.post(json.dumps(body).encode())
    assert answer.status_code == 422
    assert error_of(answer)["field"] == "body.attempt"


@pytest.mark.parametrize(
    ("field", "value"),
    [("sequence", -1), ("sequence", "2"), ("age_s", "nan"), ("run", "../x"), ("records", [{}])],
)
def test_a_wrong_field_is_named_and_nothing_is_stored(job: Job, field: str, value: Any) -> None:
    body = plain(job)
    answer = job.post(json.dumps({**body, field: value}).encode())
    assert answer.status_code == 422
    assert error_of(answer)["field"].startswith(f"body.{field}")
    assert decode_ack(job.post(json.dumps(body).encode()).content).sequence == 2


@pytest.mark.parametrize("streamed", [False, True])
def test_ten_megabytes_are_refused_without_being_kept(live: Live, streamed: bool) -> None:
    chunk = b" " * 65536
    body = (chunk for _ in range(160)) if streamed else chunk * 160
    with live.client(Role.AGENT) as client:
        answer = client.post("/v1/messages", content=body)
    assert answer.status_code == 413
    assert str(MAX_BYTES) in error_of(answer)["message"]


def test_a_large_body_to_a_small_call_is_refused_too(live: Live) -> None:
    with live.client() as client:
        answer = client.post("/v1/sessions", json={"token": "x" * 100_000, "name": "Ada"})
    assert answer.status_code == 413
    assert error_of(answer)["code"] == "too_large"


def test_text_that_no_database_takes_is_taken(job: Job) -> None:
    """NUL and half a surrogate pair are legal JSON."""
    body = plain(job)
    end = {"type": "AttemptEnded", "reason": "a\u0000b\ud800"}
    answer = job.post(json.dumps({**body, "records": [end]}).encode())
    assert answer.status_code == 200
