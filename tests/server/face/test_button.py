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

from spikeguard_protocol import Role
from spikeguard_server.notify.button import AT_ONCE
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
