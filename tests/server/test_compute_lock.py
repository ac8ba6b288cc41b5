"""Threads that take messages compute one at a time, and none of them is ever stopped by that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sql
from sqlalchemy.exc import DBAPIError

from spikeguard_server.store.fast import compute_lock
from spikeguard_server.store.fast.compute_lock import in_turn
from spikeguard_server.store.fast.pipeline import INT, ask, statement

THREADS, ROUNDS = 4, 10
PATIENCE_S = 10.0
_ONE = statement("one", "SELECT %(one)s::bigint", {"one": INT})


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, nobody goes on without it."""
    monkeypatch.setattr(compute_lock, "PATIENCE_S", PATIENCE_S)


def query(connection: sql.Connection) -> None:
    """Through SQLAlchemy."""
    assert connection.execute(sql.text("SELECT 1")).scalar_one() == 1


def asked(connection: sql.Connection) -> None:
    """Through the pipeline."""
    assert ask(connection, (_ONE, {"one": 1})) == [[(1,)]]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("talk", [query, asked])
def test_one_thread_computes_at_a_time(
    engine: sql.Engine, talk: Callable[[sql.Connection], None]
) -> None:
    computing, most = 0, list[int]()

    def work() -> None:
        nonlocal computing
        with in_turn(), engine.begin() as connection:
            for _ in range(ROUNDS):
                talk(connection)
                computing += 1
                most.append(computing)
                time.sleep(0.001)
                computing -= 1

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work) for _ in range(THREADS)]:
            done.result(60)
    assert most == [1] * THREADS * ROUNDS
    assert not compute_lock._lock.locked()


@pytest.mark.usefixtures("patient")
def test_whoever_waits_for_the_database_leaves_it_to_the_others(engine: sql.Engine) -> None:
    waits = threading.Event()

    def slow() -> None:
        with in_turn(), engine.begin() as connection:
            query(connection)
            waits.set()
            connection.execute(sql.text("SELECT pg_sleep(2)"))

    def quick() -> None:
        with in_turn(), engine.begin() as connection:
            for _ in range(ROUNDS):
                query(connection)

    with ThreadPoolExecutor(2) as pool:
        sleeper = pool.submit(slow)
        assert waits.wait(PATIENCE_S)
        pool.submit(quick).result(PATIENCE_S)
        assert not sleeper.done()
        sleeper.result(PATIENCE_S)


def test_one_that_never_releases_it_delays_the_others_and_stops_nobody(
    engine: sql.Engine,
) -> None:
    holds, enough = threading.Event(), threading.Event()

    def hog() -> None:
        with in_turn(), engine.begin() as connection:
            query(connection)
            holds.set()
            assert enough.wait(60)

    def other() -> bool:
        with in_turn(), engine.begin() as connection:
            query(connection)
        return compute_lock._lock.locked()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(hog)
        assert holds.wait(PATIENCE_S)
        assert pool.submit(other).result(PATIENCE_S), "it gave away what another one held"
        enough.set()
        first.result(PATIENCE_S)
    assert not compute_lock._lock.locked()


@pytest.mark.parametrize("words", ["SELECT 1 / 0", "SELECT pg_terminate_backend(pg_backend_pid())"])
def test_a_talk_that_fails_leaves_it_free(engine: sql.Engine, words: str) -> None:
    with in_turn(), engine.connect() as connection:
        query(connection)
        with pytest.raises(DBAPIError):
            connection.execute(sql.text(words))
    assert not compute_lock._lock.locked()


def test_who_takes_no_part_waits_for_nobody(engine: sql.Engine) -> None:
    with compute_lock._lock, engine.connect() as connection:
        began = time.monotonic()
        for _ in range(ROUNDS):
            query(connection)
        assert time.monotonic() - began < ROUNDS * compute_lock.PATIENCE_S
