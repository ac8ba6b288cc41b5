"""Messages on their way: judged by their header first, bounded while they come, and cut at will."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest
import sqlalchemy as sql

from spikeguard_protocol import Role
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.http.routes import messages as express
from spikeguard_server.ingest.message_pool import SharedQuota
from spikeguard_server.settings import Settings
from tests.agent.wire import await_that
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
