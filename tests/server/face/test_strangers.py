"""Tokens that are looked up: known ones wait for no stranger, and strangers are few."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event, Semaphore
from typing import Any, TypeVar

import httpx
import pytest
import sqlalchemy as sql
from prometheus_client import CollectorRegistry

from spikeguard_protocol import Ack, Message, Role, encode
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.errors import Busy, Forbidden
from spikeguard_server.http.app import BESIDE, _callers, _workers
from spikeguard_server.http.concurrency import Calls
from spikeguard_server.http.dependencies import Services
from spikeguard_server.http.rate_limits import BURST_S, Rates
from spikeguard_server.http.routes import links
from spikeguard_server.http.routes.messages import JUDGES, MAX_STRANGERS, OpenEndpoint
from spikeguard_server.identity.permissions import hash_secret
from spikeguard_server.ingest import FairQueue, Monitors
from spikeguard_server.metrics import Metrics
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from tests.server.conftest import Databases
from tests.server.face.serving import serving

T = TypeVar("T")
HERE, THERE = "10.0.0.1", "10.0.0.2"
PROMPT_S = 5.0


@dataclass
class Entrance:
    """A door, a token that has worked there, and how often one was looked up."""

    door: OpenEndpoint
    token: str
    looked: int = 0


@pytest.fixture
def entrance(engine: sql.Engine) -> Entrance:
    with engine.begin() as connection:
        token, _ = issue_token(connection, Grant(Role.AGENT), "test")
    services = Services(
        Settings(), engine, Metrics(CollectorRegistry()), Monitors(), None, Calls(1), Calls(1)
    )
    services.known_tokens.note([hash_secret(token)])
    found = Entrance(OpenEndpoint(services, FairQueue(1, 1), Rates(1000.0)), token)

    def note(*given: object) -> None:
        found.looked += "FROM tokens" in str(given[2])

    sql.event.listen(engine, "before_cursor_execute", note)
    return found


def run(asking: Coroutine[Any, Any, T]) -> T:
    """In a thread of its own: other tests' browsers may have left this one a loop that runs."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, asking).result()


def test_a_known_token_waits_for_no_stranger_and_one_address_leaves_room_to_others(
    entrance: Entrance,
) -> None:
    door = entrance.door

    async def flood() -> tuple[list[asyncio.Task[bytes]], bytes, int]:
        await door.examiners.acquire_on_behalf_of("one that takes for ever")
        here = [asyncio.create_task(door.admit(f"guess-{n}", HERE)) for n in range(MAX_STRANGERS)]
        await asyncio.sleep(0.5)
        there = asyncio.create_task(door.admit("guess", THERE))
        admitted = await asyncio.wait_for(door.admit(entrance.token, HERE), PROMPT_S)
        await asyncio.sleep(0.5)
        waiting = door.examiners.statistics().tasks_waiting
        refused = [task for task in here if task.done()]
        door.examiners.release_on_behalf_of("one that takes for ever")
        await asyncio.gather(*here, there, return_exceptions=True)
        return refused, admitted, waiting

    refused, admitted, waiting = run(flood())
    assert admitted == hash_secret(entrance.token)
    assert {type(task.exception()) for task in refused} == {Busy}
    assert (len(refused), waiting) == (MAX_STRANGERS // 2, MAX_STRANGERS // 2 + 1)


def test_strangers_of_one_network_have_few_tokens_of_messages_looked_up(
    entrance: Entrance,
) -> None:
    entrance.door.rates = Rates(1.0)
    hosts = [f"2001:db8::{n:x}" for n in range(30)]

    async def guess() -> list[Any]:
        asked = [entrance.door.admit(f"guess-{n}", host) for n, host in enumerate(hosts)]
        return await asyncio.gather(*asked, return_exceptions=True)

    tried = [answer for answer in run(guess()) if not isinstance(answer, Busy)]
    assert len(tried) == entrance.looked == BURST_S


def test_messages_of_one_token_that_come_together_cost_no_look_up_each(entrance: Entrance) -> None:
    async def together() -> list[bytes]:
        return await asyncio.gather(*(entrance.door.admit(entrance.token, HERE) for _ in range(50)))

    assert set(run(together())) == {hash_secret(entrance.token)}
    assert 1 <= entrance.looked <= JUDGES


def test_messages_of_all_tokens_of_a_project_leave_a_thread_to_other_projects(
    entrance: Entrance, engine: sql.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tokens of one project, eight messages that took 10 s of a core each: another project's
    message waited 37 s."""
    turns, enough, begun = FairQueue(3, 64), Event(), Semaphore(0)
    door = replace(entrance.door, turns=turns)

    def store(_: object, body: bytes, __: bytes) -> Ack:
        if b"slow" in body:
            begun.release()
            enough.wait(PROMPT_S)
        return Ack(1)

    monkeypatch.setattr(OpenEndpoint, "_store", store)
    with engine.begin() as connection:
        slow, again, other = (
            issue_token(connection, Grant(Role.AGENT, project=project), "test")[0]
            for project in ("slow", "slow", "other")
        )

    async def send(token: str, project: str, number: int) -> bytes:
        message = Message(project, f"run-{number}", "a" * 16, 1, 0.0, ())
        return (await door.take(await door.admit(token, HERE), encode(message), HERE))[0]

    async def flood() -> float:
        sent = [asyncio.create_task(send(t, "slow", n)) for n in range(4) for t in (slow, again)]
        for _ in range(3):
            assert await asyncio.to_thread(begun.acquire, timeout=PROMPT_S)
        began = time.monotonic()
        await send(other, "other", 9)
        took_s = time.monotonic() - began
        enough.set()
        await asyncio.gather(*sent)
        return took_s

    assert run(flood()) < PROMPT_S / 2
    turns.stop(PROMPT_S)


def test_all_that_works_at_once_finds_a_connection() -> None:
    settings = Settings()
    at_once = _workers(settings) + 1 + _callers(settings) + sum(BESIDE.values())
    assert (_workers(settings), at_once) == (settings.ingest_workers, settings.pool_size)


def test_whoever_floods_the_pages_of_links_leaves_threads_to_who_is_signed_in(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those pages need no token: each look here takes for ever, and the list of runs is read."""
    enough = Event()

    def hang(*_: object) -> None:
        enough.wait(60)
        raise Forbidden("too late", "look again")

    monkeypatch.setattr(links, "read_link", hang)
    with databases.lent() as database, ThreadPoolExecutor(12) as flood:
        settings = Settings(database_url=database)
        engine = open_engine(settings)
        with engine.begin() as connection:
            token, _ = issue_token(connection, Grant(Role.VIEWER), "test")
        engine.dispose()
        with serving(settings) as url:
            try:
                looks = [
                    flood.submit(httpx.get, f"{url}/approve/{'x' * 30}{n}", timeout=90)
                    for n in range(12)
                ]
                time.sleep(1)
                headers = {"Authorization": f"Bearer {token}"}
                answer = httpx.get(f"{url}/v1/runs", headers=headers, timeout=20)
            finally:
                enough.set()
            assert answer.status_code == 200
            assert {look.result().status_code for look in looks} == {403}
