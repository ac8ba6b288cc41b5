"""How often one token may call."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import httpx
import pytest
import sqlalchemy as sql

from spikeguard_protocol import Role
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.errors import Busy
from spikeguard_server.http.known_tokens import KnownTokens
from spikeguard_server.http.rate_limits import (
    BURST_S,
    MAX_CALLERS,
    RUNS,
    SESSIONS,
    Rates,
    address_of,
    callers_of,
)
from spikeguard_server.identity.permissions import hash_secret
from spikeguard_server.settings import Settings
from tests.server.face.serving import serving

if TYPE_CHECKING:
    from tests.server.face.conftest import Live

PER_S = 2.0  # on a busy machine, too, fewer come back than are taken
BURST = int(PER_S * BURST_S)


@pytest.fixture
def rates() -> Rates:
    return Rates(PER_S)


def test_who_calls_steadily_below_the_rate_is_never_kept_waiting(rates: Rates) -> None:
    assert not any(rates.take("steady", second / PER_S) for second in range(1000))


def test_a_burst_is_taken_and_then_the_rate_holds(rates: Rates) -> None:
    waits = [rates.take("hasty", 0.0) for _ in range(BURST + 3)]
    assert waits == [0.0] * BURST + [1 / PER_S] * 3
    assert rates.take("hasty", 1 / PER_S) == 0.0
    assert rates.take("hasty", 1 / PER_S) > 0.0


def test_one_who_floods_takes_nothing_from_another(rates: Rates) -> None:
    for _ in range(10 * BURST):
        rates.take("flood", 0.0)
    assert rates.take("calm", 0.0) == 0.0


def test_callers_are_forgotten_rather_than_kept_without_a_bound(rates: Rates) -> None:
    for number in range(MAX_CALLERS + 500):
        rates.take(number, 0.0)
    assert len(rates._left) == MAX_CALLERS


def scope(path: str, secret: str = "", host: str = "10.0.0.7") -> dict[str, object]:
    """A call as the server sees it."""
    headers = [(b"authorization", b"Bearer " + secret.encode())] if secret else []
    return {"type": "http", "path": path, "headers": headers, "client": (host, 4711)}


def test_guesses_of_one_address_are_one_caller_and_tokens_that_worked_one_each() -> None:
    familiar = KnownTokens()
    guesses = [callers_of(scope("/v1/runs", f"guess-{n}"), familiar) for n in range(10)]
    assert all(guess == {"10.0.0.7": 1.0} for guess in guesses)
    familiar.note([hash_secret("good"), hash_secret("better")])
    good, better = (callers_of(scope("/v1/runs", s), familiar) for s in ("good", "better"))
    assert (len(good), len(better)) == (1, 1)
    assert not good.keys() & (better.keys() | guesses[0].keys())
    familiar.forget(hash_secret("good"))
    assert callers_of(scope("/v1/runs", "good"), familiar) == guesses[0]


def test_sessions_of_one_token_have_a_limit_together(rates: Rates) -> None:
    familiar, taken = KnownTokens(), 0
    familiar.note([hash_secret("another")], grant=2)
    for n in range(int(4 * SESSIONS)):
        familiar.note([hash_secret(f"session-{n}")], grant=1)
        for _ in range(BURST):
            try:
                rates.check(callers_of(scope("/v1/runs", f"session-{n}"), familiar), 0.0)
            except Busy:
                continue
            taken += 1
    assert taken == BURST * SESSIONS
    rates.check(callers_of(scope("/v1/runs", "another"), familiar), 0.0)


def test_sessions_of_one_token_have_a_limit_together_at_orders_too(rates: Rates) -> None:
    familiar, taken = KnownTokens(), 0
    for n in range(int(4 * RUNS)):
        familiar.note([hash_secret(f"session-{n}")], grant=1)
        for _ in range(BURST):
            asked = scope(f"/v1/runs/default/run-{n}/orders", f"session-{n}")
            with suppress(Busy):
                rates.check(callers_of(asked, familiar), 0.0)
                taken += 1
    assert taken == BURST * RUNS


def test_a_machine_has_one_bucket_for_all_its_addresses() -> None:
    assert address_of("2001:db8::1") == address_of("2001:db8::ffff:2") != address_of("2001:db9::1")
    assert address_of("10.0.0.7") != address_of("10.0.0.8")
    assert address_of("::ffff:10.0.0.7") == address_of("10.0.0.7") != address_of("::ffff:10.0.0.8")


@pytest.mark.parametrize("trusted", ["", "127.0.0.1"])
def test_a_made_up_forwarded_address_is_no_other_caller(database_url: str, trusted: str) -> None:
    """Also from the server's own machine, unless its operator names a proxy there."""
    settings = Settings(database_url=database_url, requests_per_s=PER_S, trusted_proxies=trusted)
    with serving(settings) as url, _client(url, "guess") as calls:
        statuses = [
            calls.get("/login", headers={"X-Forwarded-For": f"203.0.113.{n}"}).status_code
            for n in range(BURST + 25)
        ]
    assert (429 in statuses) is (trusted == "")


@pytest.mark.parametrize("said", ["::::", "10.0.0.7:5678", "unknown", "fe80::1%eth0", ":" * 60_000])
def test_a_proxy_may_call_its_client_anything(live: Live, said: str) -> None:
    with live.client() as client:
        assert client.get("/login", headers={"X-Forwarded-For": said}).status_code == 200
    assert len(address_of(said)) <= 64


def test_secrets_that_worked_are_forgotten_rather_than_kept_without_a_bound() -> None:
    familiar = KnownTokens(2)
    familiar.note([b"a", b"b"])
    familiar.note([b"a", b"c"])
    assert [each in familiar for each in (b"a", b"b", b"c")] == [True, False, True]


def test_runs_that_share_a_token_wait_for_orders_each_at_its_rate_and_all_within_a_larger_one(
    rates: Rates,
) -> None:
    familiar = KnownTokens()
    familiar.note([hash_secret("job")])
    taken = 0
    for number in range(10 * BURST * int(RUNS)):
        path = f"/v1/runs/default/run-{number}/orders"
        callers = callers_of(scope(path, "job"), familiar)
        taken += not any(rates.take(caller, 0.0, times) for caller, times in callers.items())
    assert taken == BURST * RUNS
    long = "a" * 60_000  # no run is called that, and what is remembered of a caller is bounded
    for path in (
        "/orders",
        "/v1/runs/orders",
        "/v1/runs/a/b/c/orders",
        f"/v1/runs/a/{long}/orders",
    ):
        assert callers_of(scope(path, "job"), familiar) == {hash_secret("job"): 1.0}


@pytest.fixture
def calls(engine: sql.Engine, database_url: str) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Two viewers' clients of a server that lets each call five times a second."""
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
    return httpx.Client(base_url=url, headers=headers, timeout=20, verify=False)


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
    assert hasty.get("/healthz").status_code == 200


@pytest.mark.parametrize("path", ["/v1/me", "/v1/messages"])
def test_who_guesses_tokens_is_limited_by_address_and_takes_nothing_from_those_that_work_there(
    calls: tuple[httpx.Client, httpx.Client], path: str
) -> None:
    good, _ = calls
    assert good.get("/v1/me").status_code == 200
    call = "POST" if path == "/v1/messages" else "GET"
    statuses = []
    for _ in range(BURST + 25):
        headers = {"Authorization": f"Bearer {secrets.token_urlsafe(32)}"}
        statuses.append(good.request(call, path, headers=headers, content=b"{}").status_code)
    assert statuses[:5] == [401] * 5
    assert set(statuses[-5:]) == {401, 429} or set(statuses[-5:]) == {429}
    assert statuses.count(401) < BURST + 20
    assert good.get("/v1/me").status_code == 200


def test_tokens_that_worked_before_a_start_are_no_strangers_after_it(
    engine: sql.Engine, database_url: str
) -> None:
    with engine.begin() as connection:
        token = issue_token(connection, Grant(Role.VIEWER), "test")[0]
    with ExitStack() as held:
        settings = Settings(database_url=database_url, requests_per_s=PER_S)
        url = held.enter_context(serving(settings))
        guessing, calm = (held.enter_context(_client(url, each)) for each in ("guess", token))
        while guessing.get("/v1/me").status_code == 401:
            pass
        assert calm.get("/v1/me").status_code == 200
