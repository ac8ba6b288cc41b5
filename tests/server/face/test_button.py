"""The test button of a channel that does not answer harms nobody else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import httpx
import pytest
import sqlalchemy as sql

from spikeguard_protocol import Role
from spikeguard_server.notify.button import AT_ONCE, EVERY_S
from spikeguard_server.store.test_messages import UNDER_WAY
from tests.server.face.test_channels import webhook
from tests.server.notify.listener import Listener, listening

if TYPE_CHECKING:
    from tests.server.face.conftest import Live

CHANNELS = [f"hung-{number}" for number in range(AT_ONCE + 2)]
PROMPT_S = 3.0  # far below what a channel is waited for, far above what a busy machine takes
_PROJECTS = count(1)


@dataclass(frozen=True)
class Hung:
    """A project whose channels lead to what answers nobody, until it is set free."""

    live: Live
    project: str
    listener: Listener

    def press(self, ada: httpx.Client, name: str) -> httpx.Response:
        return ada.post(f"/v1/channels/{self.project}/{name}/test")

    def until(self, tests: int) -> None:
        """Until so many have come."""
        deadline = time.monotonic() + 10
        while len(self.listener.received) < tests:
            assert time.monotonic() < deadline, self.listener.received
            time.sleep(0.01)

    def log(self, ada: httpx.Client) -> list[tuple[str, str]]:
        found = ada.get("/v1/deliveries", params={"project": self.project}).json()["items"]
        return [(entry["result"], entry["reason"]) for entry in found]

    def age_by(self, seconds: float, result: str) -> None:
        """As if the last test had been pressed so long ago and come to `result`."""
        with self.live.engine.begin() as connection:
            connection.execute(
                sql.text(
                    "update deliveries set result = :result, at = at - make_interval(secs => :s) "
                    "where project = :project"
                ),
                {"result": result, "s": seconds, "project": self.project},
            )


@pytest.fixture
def hung(live: Live) -> Iterator[Hung]:
    project = f"of-buttons-{next(_PROJECTS)}"
    with listening() as listener, live.client(Role.ADMIN) as admin:
        listener.free.clear()
        for name in CHANNELS:
            admin.put(f"/v1/channels/{project}/{name}", json=webhook(listener))
        yield Hung(live, project, listener)


def test_tests_that_hang_keep_no_other_call_waiting(live: Live, hung: Hung) -> None:
    with live.person("Ada") as ada, ThreadPoolExecutor(len(CHANNELS)) as threads:
        pressed = [threads.submit(hung.press, ada, name) for name in CHANNELS]
        hung.until(AT_ONCE)
        for path in ("/v1/runs", "/readyz", "/healthz"):
            began = time.monotonic()
            assert ada.get(path).status_code == 200
            assert time.monotonic() - began < PROMPT_S
        hung.listener.free.set()
        answers = [each.result() for each in pressed]
    refused = [answer.json()["error"] for answer in answers if answer.status_code == 429]
    assert [error["limit"] for error in refused] == [AT_ONCE] * 2
    assert [a.json()["result"] for a in answers if a.status_code == 200] == ["sent"] * AT_ONCE


def test_of_many_who_press_at_once_one_is_carried(live: Live, hung: Hung) -> None:
    with live.person("Ada") as ada, ThreadPoolExecutor(AT_ONCE) as threads:
        pressed = [threads.submit(hung.press, ada, CHANNELS[0]) for _ in range(AT_ONCE)]
        hung.until(1)
        time.sleep(0.3)  # for one that should not come
        assert hung.log(ada) == [("held", UNDER_WAY)]
        hung.listener.free.set()
        answers = [each.result() for each in pressed]
        assert sorted(answer.status_code for answer in answers) == [200, 429, 429, 429]
        assert len(hung.listener.received) == 1
        assert [result for result, _ in hung.log(ada)] == ["sent"]


def test_a_press_whose_server_was_killed_holds_up_the_next_no_longer_than_a_lease(
    live: Live, hung: Hung
) -> None:
    hung.listener.free.set()
    with live.person("Ada") as ada:
        hung.press(ada, CHANNELS[0])
        hung.age_by(2 * EVERY_S, "held")
        refused = hung.press(ada, CHANNELS[0]).json()["error"]
        assert "is on its way" in refused["message"]
        hung.age_by(90.0, "held")
        assert hung.press(ada, CHANNELS[0]).json()["result"] == "sent"
        channels = ada.get("/v1/channels", params={"project": hung.project}).json()["items"]
        told = {one["name"]: one["delivered_at"] for one in channels}
        assert [name for name in told if told[name]] == [CHANNELS[0]]
