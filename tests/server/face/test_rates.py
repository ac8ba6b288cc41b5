"""How often one token may call."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
import sqlalchemy as sql

from spikeguard_protocol import Role
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.http.middleware import BURST_S
from spikeguard_server.settings import Settings
from tests.server.face.serving import serving

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
