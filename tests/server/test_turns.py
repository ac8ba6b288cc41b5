"""Messages wait in a bounded line: clients take turns, of a client its runs, one message a run."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from spikeguard_server.errors import Busy
from spikeguard_server.ingest.fair_queue import MAX_BYTES, MAX_EACH, FairQueue, ServiceOrder

PATIENCE_S = 10.0
WAITING = 64


@pytest.fixture
def turns() -> Iterator[FairQueue]:
    made = FairQueue(workers=2, waiting=WAITING)
    yield made
    made.stop(PATIENCE_S)


def blocked(turns: FairQueue, line: str, client: str = "client") -> threading.Event:
    """Keep `line` busy until the event is set; returns once a thread is at it."""
    go, there = threading.Event(), threading.Event()

    def work() -> None:
        there.set()
        go.wait(PATIENCE_S)

    turns.take(client, line, 1, work)
    assert there.wait(PATIENCE_S)
    return go


def test_a_run_that_waits_for_its_lock_holds_one_thread_and_no_other_run(turns: FairQueue) -> None:
    go = blocked(turns, "slow")
    behind = [turns.take("client", "slow", 1, lambda: "slow") for _ in range(5)]
    assert turns.take("client", "quick", 1, lambda: "quick").result(PATIENCE_S) == "quick"
    assert not any(job.done() for job in behind)
    go.set()
    assert [job.result(PATIENCE_S) for job in behind] == ["slow"] * 5


def test_an_urgent_message_comes_before_the_clients_other_runs_and_no_other_client() -> None:
    turns = FairQueue(workers=1, waiting=WAITING)
    go, seen = blocked(turns, "busy", "first"), list[str]()

    def put(client: str, line: str, urgent: bool = False) -> Future[Any]:
        job = turns.take(client, line, 1, lambda: seen.append(f"{client} {line}"))
        if urgent:
            turns.hurry(client, line)
        return job

    jobs = [put("a", "1"), put("a", "2"), put("b", "1"), put("a", "3"), put("a", "4", urgent=True)]
    go.set()
    for job in jobs:
        job.result(PATIENCE_S)
    assert [name for name in seen if name.startswith("a")] == ["a 4", "a 1", "a 2", "a 3"]
    assert seen.index("b 1") <= 1
    turns.stop(PATIENCE_S)


def test_what_is_urgent_of_a_run_keeps_that_runs_order() -> None:
    turns = FairQueue(workers=1, waiting=WAITING)
    go, seen = blocked(turns, "busy"), list[str]()
    first = turns.take("client", "other", 1, lambda: seen.append("other"))
    calm = turns.take("client", "run", 1, lambda: seen.append("calm"))
    spike = turns.take("client", "run", 1, lambda: seen.append("spike"))
    turns.hurry("client", "run")
    go.set()
    for job in (first, calm, spike):
        job.result(PATIENCE_S)
    assert seen.index("calm") == 0
    assert seen.index("calm") < seen.index("spike")
    turns.stop(PATIENCE_S)


def test_messages_of_one_run_are_taken_in_the_order_in_which_they_came(turns: FairQueue) -> None:
    seen: list[int] = []
    jobs = [
        turns.take("client", "run", 1, lambda n=n: seen.append(n))  # type: ignore[misc]
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


def test_who_floods_one_run_waits_behind_its_own_messages(turns: FairQueue) -> None:
    """With one flooding run before it, a healthy run's message is the next but one."""
    gates, seen = [blocked(turns, "a"), blocked(turns, "b")], list[str]()
    jobs: list[Future[Any]] = [
        turns.take("client", "a", 1, lambda: seen.append("a")) for _ in range(5)
    ]
    jobs.append(turns.take("client", "healthy", 1, lambda: seen.append("healthy")))
    let_go(gates, jobs)
    assert seen.index("healthy") <= 2


def test_who_floods_many_runs_waits_behind_its_own_messages_too(turns: FairQueue) -> None:
    """Thirty runs of another client before it, and a healthy client's message is among the next."""
    gates, seen = [blocked(turns, "a", "flood"), blocked(turns, "b", "flood")], list[str]()
    jobs: list[Future[Any]] = [
        turns.take("flood", number, 1, lambda: seen.append("flood")) for number in range(30)
    ]
    jobs.append(turns.take("client", "healthy", 1, lambda: seen.append("healthy")))
    let_go(gates, jobs)
    assert seen.index("healthy") <= 2


def test_one_client_never_has_all_threads() -> None:
    """Three runs of it are being taken for long, and a fourth waits; another client's does not."""
    turns = FairQueue(workers=4, waiting=WAITING)
    gates = [blocked(turns, run, "slow") for run in "abc"]
    fourth = turns.take("slow", "d", 1, lambda: "slow")
    assert turns.take("quick", "a", 1, lambda: "quick").result(PATIENCE_S) == "quick"
    assert not fourth.done()
    let_go(gates, [fourth])
    turns.stop(PATIENCE_S)


def test_all_clients_of_one_team_never_have_all_threads() -> None:
    """Two tokens of a project, each with messages that take long: another project's does not wait
    for them, and theirs go on once a thread is free."""
    turns = FairQueue(workers=3, waiting=WAITING)
    gates, there = [threading.Event() for _ in range(6)], threading.Semaphore(0)

    def slow(gate: threading.Event) -> str:
        there.release()
        gate.wait(PATIENCE_S)
        return "slow"

    jobs = [
        turns.take(f"token {n % 2}", n, 1, partial(slow, gate), team="slow")
        for n, gate in enumerate(gates)
    ]
    assert all(there.acquire(timeout=PATIENCE_S) for _ in range(3))
    other = turns.take("other token", "run", 1, lambda: "quick", team="quick")
    assert other.result(PATIENCE_S) == "quick"
    assert not there.acquire(blocking=False)
    let_go(gates, jobs)
    turns.stop(PATIENCE_S)
    assert not turns._teams


def served(order: ServiceOrder, costs: dict[str, float], turns: int) -> Counter[str]:
    """How often each is served where all always have something to do."""
    found = Counter[str]()
    for name in costs:
        order.enter(name)
    for _ in range(turns):
        key = order.next()
        assert isinstance(key, str)
        found[key] += 1
        order.charge(key, costs[key])
        order.enter(key)
    return found


def test_turns_are_shared_by_the_time_they_take() -> None:
    found = served(ServiceOrder(), {"large": 0.4, "small": 0.1}, 500)
    assert found["small"] == pytest.approx(4 * found["large"], abs=4)


def test_who_was_away_neither_saved_up_turns_nor_pays_for_the_past() -> None:
    order = ServiceOrder()
    served(order, {"busy": 1.0}, 100)
    found = served(order, {"busy": 1.0, "fresh": 1.0}, 100)
    assert abs(found["busy"] - found["fresh"]) <= 2


def test_what_is_remembered_of_who_left_stays_small_and_a_flood_stays_in_mind() -> None:
    """A sender may make up ten thousand names of runs: that neither costs memory nor forgives."""
    order = ServiceOrder()
    order.charge("flood", 5.0)
    for number in range(10_000):
        order.enter(number)
        order.charge(order.next(), 0.01)
    assert len(order._spent) <= 4000
    order.enter("flood")
    order.enter("fresh")
    assert order.next() == "fresh"


def fill(turns: FairQueue, clients: int, lines: int, size: int) -> None:
    for number in range(300):
        turns.take(number % clients, number % lines, size, lambda: None)


@pytest.mark.parametrize(
    ("clients", "lines", "size", "limit"),
    [
        (1, 1, 1, MAX_EACH),
        (1, 61, 1, (WAITING - 2) // 2),
        (300, 300, 1, WAITING),
        (1, 4, MAX_BYTES // 4, MAX_BYTES // 2),
        (4, 4, MAX_BYTES // 2, MAX_BYTES),
    ],
    ids=["of one run", "of one client", "of all", "bytes of one client", "bytes of all"],
)
def test_what_does_not_fit_is_refused_with_the_limit(
    turns: FairQueue, clients: int, lines: int, size: int, limit: int
) -> None:
    gates = [blocked(turns, "first", "x"), blocked(turns, "second", "y")]
    with pytest.raises(Busy) as refused:
        fill(turns, clients, lines, size)
    assert refused.value.extra["limit"] == pytest.approx(limit, abs=2)
    assert str(refused.value.extra["limit"]) in refused.value.message
    assert refused.value.headers["Retry-After"] == "1"
    for gate in gates:
        gate.set()


def test_one_client_leaves_room_for_the_next(turns: FairQueue) -> None:
    gates = [blocked(turns, "first", "x"), blocked(turns, "second", "y")]
    with pytest.raises(Busy):
        fill(turns, 1, 61, 1)
    behind = [turns.take("another", number, 1, lambda: "done") for number in range(WAITING // 5)]
    for gate in gates:
        gate.set()
    assert [job.result(PATIENCE_S) for job in behind] == ["done"] * len(behind)


def test_room_is_made_again(turns: FairQueue) -> None:
    for _ in range(3 * MAX_EACH):
        turns.take("client", "run", MAX_BYTES, lambda: None).result(PATIENCE_S)
    while turns.length:
        threading.Event().wait(0.01)
    assert not turns._clients


def test_what_fails_fails_for_its_sender_alone(turns: FairQueue) -> None:
    failing = turns.take("client", "run", 1, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failing.result(PATIENCE_S)
    assert turns.take("client", "run", 1, lambda: "next").result(PATIENCE_S) == "next"
