"""Messages wait in a bounded line, one at a time a run, and runs take turns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from spikeguard_server.errors import Busy
from spikeguard_server.ingest.turns import MAX_BYTES, MAX_EACH, Turns

PATIENCE_S = 10.0


@pytest.fixture
def turns() -> Iterator[Turns]:
    made = Turns(workers=2, waiting=64)
    yield made
    made.stop(PATIENCE_S)


def blocked(turns: Turns, line: str) -> threading.Event:
    """Keep `line` busy until the event is set; returns once a thread is at it."""
    go, there = threading.Event(), threading.Event()

    def work() -> None:
        there.set()
        go.wait(PATIENCE_S)

    turns.take(line, 1, work)
    assert there.wait(PATIENCE_S)
    return go


def test_a_run_that_waits_for_its_lock_holds_one_thread_and_no_other_run(turns: Turns) -> None:
    go = blocked(turns, "slow")
    behind = [turns.take("slow", 1, lambda: "slow") for _ in range(5)]
    assert turns.take("quick", 1, lambda: "quick").result(PATIENCE_S) == "quick"
    assert not any(job.done() for job in behind)
    go.set()
    assert [job.result(PATIENCE_S) for job in behind] == ["slow"] * 5


def test_messages_of_one_run_are_taken_in_the_order_in_which_they_came(turns: Turns) -> None:
    seen: list[int] = []
    jobs = [turns.take("run", 1, lambda n=n: seen.append(n)) for n in range(MAX_EACH)]  # type: ignore[misc]
    for job in jobs:
        job.result(PATIENCE_S)
    assert seen == list(range(MAX_EACH))


def test_who_floods_waits_behind_its_own_messages(turns: Turns) -> None:
    """With one flooding run before it, a healthy run's message is the next but one."""
    gates, seen = [blocked(turns, "a"), blocked(turns, "b")], list[str]()
    jobs: list[Future[Any]] = [turns.take("a", 1, lambda: seen.append("a")) for _ in range(5)]
    jobs.append(turns.take("healthy", 1, lambda: seen.append("healthy")))
    for gate in gates:
        gate.set()
    for job in jobs:
        job.result(PATIENCE_S)
    assert seen.index("healthy") <= 2


def fill(turns: Turns, lines: int, size: int) -> None:
    for number in range(100):
        turns.take(f"line {number % lines}", size, lambda: None)


@pytest.mark.parametrize(
    ("lines", "size", "limit"),
    [(1, 1, MAX_EACH), (64, 1, 64), (4, MAX_BYTES // 2, MAX_BYTES)],
    ids=["of one run", "of all", "bytes"],
)
def test_what_does_not_fit_is_refused_with_the_limit(
    turns: Turns, lines: int, size: int, limit: int
) -> None:
    gates = [blocked(turns, "first"), blocked(turns, "second")]
    with pytest.raises(Busy) as refused:
        fill(turns, lines, size)
    assert refused.value.extra["limit"] == limit
    assert str(limit) in refused.value.message
    assert refused.value.headers["Retry-After"] == "1"
    for gate in gates:
        gate.set()


def test_room_is_made_again(turns: Turns) -> None:
    for _ in range(3 * MAX_EACH):
        turns.take("run", MAX_BYTES, lambda: None).result(PATIENCE_S)
    while turns.length:
        threading.Event().wait(0.01)


def test_what_fails_fails_for_its_sender_alone(turns: Turns) -> None:
    failing = turns.take("run", 1, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failing.result(PATIENCE_S)
    assert turns.take("run", 1, lambda: "next").result(PATIENCE_S) == "next"
