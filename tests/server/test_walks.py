"""How much code four walks of docs/architecture.md run: modules and functions, by the profiler."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from spikeguard_protocol import Role, encode
from spikeguard_server.cli.serve import listen
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from tests.server.face.conftest import NOTIFY, Job, Live, ticking, tokens_of
from tests.walks import ROOT, within

OURS = tuple(str(ROOT / part) for part in ("agent/", "server/"))
BESIDE = {"notifier", "post-mortems", "ticker"}  # threads that time drives


class Profile:
    """Which functions of the project were called, in any thread that serves."""

    def __init__(self) -> None:
        self.called: set[tuple[str, str]] = set()
        self._on = False

    def note(self, frame: FrameType, event: str, _given: Any) -> None:
        code = frame.f_code
        if not self._on or event != "call" or threading.current_thread().name in BESIDE:
            return
        if code.co_filename.startswith(OURS):
            self.called.add((code.co_filename, code.co_qualname))

    @contextmanager
    def on(self) -> Iterator[None]:
        self._on = True
        yield
        self._on = False

    def counts(self) -> tuple[int, int]:
        """Modules, functions."""
        return len({path for path, _ in self.called}), len(self.called)


@contextmanager
def served(database_url: str) -> Iterator[Live]:
    """A server in which nothing happens by time."""
    settings = Settings(database_url=database_url, tick_s=600.0, **NOTIFY)
    engine = open_engine(settings)
    with listen("127.0.0.1", 0) as listener, ticking(settings, engine, listener):
        yield Live(f"http://127.0.0.1:{listener.getsockname()[1]}", engine, tokens_of(engine))
    engine.dispose()


@contextmanager
def looked_at(database_url: str) -> Iterator[tuple[Live, Profile]]:
    """The same, its threads looked at from their beginning."""
    found = Profile()
    threading.setprofile(found.note)
    try:
        with served(database_url) as live:
            yield live, found
    finally:
        threading.setprofile(None)
        sys.setprofile(None)


def test_a_calm_message_and_a_chart_run_no_more_code_than_stated(database_url: str) -> None:
    with looked_at(database_url) as (live, profile):
        job = Job(live, "walk").start()
        for _ in range(6):
            job.train(100)
        body, viewer = encode(job.message(job.steps(1))), live.client(Role.VIEWER)
        with profile.on():
            assert job.post(body).status_code == 200
            chart = viewer.get(f"{job.path}/series", params={"signals": "loss"})
    assert chart.status_code == 200
    assert within(profile.counts(), "a calm message and a chart")


def test_an_approval_and_its_order_run_no_more_code_than_stated(database_url: str) -> None:
    """What leads up to it is not looked at: that takes six times as long."""
    with served(database_url) as before:
        job = Job(before, "walk").start().spike()
    with looked_at(database_url) as (job.live, profile):
        job.agents = None
        job.send()
        proposal, ada = job.incident()["proposal"], job.live.person("Ada")
        path = f"{job.command_path(proposal)}/approve"
        with profile.on():
            answer = ada.post(path, json={"revision": proposal["revision"]})
        assert answer.status_code == 200
        assert [str(order.command) for order in job.send().orders] == [proposal["id"]]
    assert within(profile.counts(), "an approval and its order")
