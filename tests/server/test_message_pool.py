"""Messages wait in a bounded pool: clients take turns, of a client its runs, one message a run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from spikeguard_server.errors import Busy
from spikeguard_server.ingest.message_pool import MAX_EACH, MessagePool

PATIENCE_S = 120.0
WAITING = 64


@pytest.fixture
def pool() -> Iterator[MessagePool]:
    made = MessagePool(workers=2, waiting=WAITING)
    yield made
    made.stop()


def blocked(pool: MessagePool, line: str, client: str = "client") -> threading.Event:
    """Keep `line` busy until the event is set; returns once a thread is at it."""
    go, there = threading.Event(), threading.Event()

    def work() -> None:
        there.set()
        go.wait(PATIENCE_S)

    pool.take(client, line, work)
    assert there.wait(PATIENCE_S)
    return go


def test_a_run_that_waits_for_its_lock_holds_one_thread_and_no_other_run(pool: MessagePool) -> None:
    go = blocked(pool, "slow")
    behind = [pool.take("client", "slow", lambda: "slow") for _ in range(5)]
    assert pool.take("client", "quick", lambda: "quick").result(PATIENCE_S) == "quick"
    assert not any(job.done() for job in behind)
    go.set()
    assert [job.result(PATIENCE_S) for job in behind] == ["slow"] * 5


def test_an_urgent_message_comes_before_the_clients_other_runs_and_no_other_client() -> None:
    pool = MessagePool(workers=1, waiting=WAITING)
    gates, seen = [blocked(pool, "busy", client) for client in ("x", "y")], list[str]()

    def put(client: str, line: str, urgent: bool = False) -> Future[Any]:
        return pool.take(client, line, lambda: seen.append(f"{client} {line}"), first=urgent)

    jobs = [put("a", "1"), put("a", "2"), put("b", "1"), put("a", "3"), put("a", "4", urgent=True)]
    let_go(gates, jobs)
    assert [name for name in seen if name.startswith("a")] == ["a 4", "a 1", "a 2", "a 3"]
    assert seen.index("b 1") <= 1
    pool.stop()


def test_what_is_urgent_of_a_run_keeps_that_runs_order() -> None:
    pool = MessagePool(workers=1, waiting=WAITING)
    gates, seen = [blocked(pool, "busy", client) for client in ("x", "y")], list[str]()
    first = pool.take("client", "other", lambda: seen.append("other"))
    calm = pool.take("client", "run", lambda: seen.append("calm"))
    spike = pool.take("client", "run", lambda: seen.append("spike"), first=True)
    let_go(gates, [first, calm, spike])
    assert seen.index("calm") == 0
    assert seen.index("calm") < seen.index("spike")
    pool.stop()


def test_messages_of_one_run_are_taken_in_the_order_in_which_they_came(pool: MessagePool) -> None:
    seen: list[int] = []
    jobs = [
        pool.take("client", "run", lambda n=n: seen.append(n))  # type: ignore[misc]
        for n in range(MAX_EACH)
    ]
    for job in jobs:
        job.result(PATIENCE_S)
    assert seen == list(range(MAX_EACH))


def let_go(gates: list[threading.Event], jobs: list[Future[Any]]) -> None:
    """Open the gates and wait until all jobs are done."""
    for gate in gates:
        gate.set()
    for job in jobs:
        job.result(PATIENCE_S)


def test_who_floods_many_runs_waits_behind_its_own_messages_too(pool: MessagePool) -> None:
    """Thirty runs of another client before it, and a healthy client's message is among the next."""
    gates, seen = [blocked(pool, "a", "flood"), blocked(pool, "b", "flood")], list[str]()
    jobs: list[Future[Any]] = [
        pool.take("flood", number, lambda: seen.append("flood")) for number in range(30)
    ]
    jobs.append(pool.take("client", "healthy", lambda: seen.append("healthy")))
    let_go(gates, jobs)
    assert seen.index("healthy") <= 2


def test_one_client_never_has_all_threads() -> None:
    """Four runs of it are being taken for long, and a fifth waits; another client's does not."""
    pool = MessagePool(workers=4, waiting=WAITING)
    gates = [blocked(pool, run, "slow") for run in "abcd"]
    fifth = pool.take("slow", "e", lambda: "slow")
    assert pool.take("quick", "a", lambda: "quick").result(PATIENCE_S) == "quick"
    assert not fifth.done()
    let_go(gates, [fifth])
    pool.stop()


def fill(pool: MessagePool, clients: int, lines: int) -> None:
    for number in range(300):
        pool.take(number % clients, number % lines, lambda: None)


@pytest.mark.parametrize(
    ("clients", "lines", "limit"),
    [(1, 1, MAX_EACH), (1, 61, (WAITING - 2) // 2), (300, 300, WAITING)],
    ids=["of one run", "of one client", "of all"],
)
def test_what_does_not_fit_is_refused_with_the_limit(
    pool: MessagePool, clients: int, lines: int, limit: int
) -> None:
    gates = [blocked(pool, "first", "x"), blocked(pool, "second", "y")]
    with pytest.raises(Busy) as refused:
        fill(pool, clients, lines)
    assert refused.value.extra["limit"] == pytest.approx(limit, abs=2)
    assert str(refused.value.extra["limit"]) in refused.value.message
    assert refused.value.headers["Retry-After"] == "1"
    for gate in gates:
        gate.set()


def test_what_fails_fails_for_its_sender_alone(pool: MessagePool) -> None:
    failing = pool.take("client", "run", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failing.result(PATIENCE_S)
    assert pool.take("client", "run", lambda: "next").result(PATIENCE_S) == "next"
