"""One look for all who ask at once, and for a moment after."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from spikeguard_server.errors import Unready
from spikeguard_server.http import single_flight as module
from spikeguard_server.http.single_flight import Looks

T = TypeVar("T")
KEPT_S = 0.2
ASKING = 50


class NoThread:
    """What the system says where a process has all the threads that it may have."""

    def __init__(self, **given: object) -> None:
        del given

    def start(self) -> None:
        raise RuntimeError("can't start new thread")


@dataclass
class Counted:
    """How often it was looked; it fails the first time."""

    times: int = 0

    def look(self) -> int:
        self.times += 1
        time.sleep(0.05)
        if self.times == 1:
            raise Unready("Not yet", "Wait")
        return self.times


def run(asking: Coroutine[Any, Any, T]) -> T:
    """In a thread of its own: other tests' browsers may have left this one a loop that runs."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, asking).result()


def test_many_who_ask_share_one_look_also_where_it_fails_and_a_later_one_looks_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock of the test's own: a busy machine may take longer than `KEPT_S` to ask."""
    now = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    counted, looks = Counted(), Looks[int](KEPT_S)

    async def ask() -> list[int | BaseException]:
        asked = (looks.get(counted.look) for _ in range(ASKING))
        return await asyncio.gather(*asked, return_exceptions=True)

    first = run(ask())
    assert {type(said) for said in first} == {Unready}
    assert (len(first), counted.times) == (ASKING, 1)
    now[0] += KEPT_S
    assert run(ask()) == [2] * ASKING
    assert run(ask()) == [2] * ASKING


def test_where_no_thread_can_be_had_the_next_who_asks_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted, looks = Counted(times=1), Looks[int](KEPT_S)
    with monkeypatch.context() as short:
        short.setattr(module, "Thread", NoThread)
        with pytest.raises(RuntimeError):
            run(looks.get(counted.look))
    assert run(asyncio.wait_for(looks.get(counted.look), 5.0)) == 2


def test_who_hangs_up_takes_the_answer_from_nobody_else() -> None:
    looks = Looks[int](KEPT_S)

    def look() -> int:
        time.sleep(0.1)
        return 7

    async def ask() -> int:
        gone = asyncio.create_task(looks.get(look))
        stays = asyncio.create_task(looks.get(look))
        await asyncio.sleep(0.02)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        return await stays

    assert run(ask()) == 7
