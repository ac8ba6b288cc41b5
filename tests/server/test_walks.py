"""The two walks of docs/architecture.md are what the server does, and short enough to be read."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import spikeguard_server
from spikeguard_protocol import Role, encode
from spikeguard_server.cli.sockets import listen
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from tests.server.face.conftest import NOTIFY, Job, Live, _tokens, ticking

SERVER = Path(spikeguard_server.__file__).parent
PAGE = Path(__file__).parents[2] / "docs/architecture.md"
FIRST, SECOND = "### A sample on its way from POST to chart", "### An approval on its way"
BESIDE = {"notifier", "post-mortems", "ticker"}  # threads that time drives
RINGS = {"ingest/order_waiters.py", "store/order_notifier.py"}  # a thread that is woken, sometime
MOST = {FIRST: 25, SECOND: 18}  # modules


class Profile:
    """Which modules of the server have functions that were called, in any thread that serves."""

    def __init__(self) -> None:
        self.called: set[str] = set()
        self._on = False

    def note(self, frame: FrameType, event: str, _given: Any) -> None:
        code = frame.f_code
        if not self._on or event != "call" or threading.current_thread().name in BESIDE:
            return
        if code.co_filename.startswith(str(SERVER)):
            self.called.add(Path(code.co_filename).relative_to(SERVER).as_posix())

    @contextmanager
    def on(self) -> Iterator[None]:
        self._on = True
        yield
        self._on = False


@pytest.fixture
def profile() -> Iterator[Profile]:
    """Threads that begin from here on are looked at."""
    found = Profile()
    threading.setprofile(found.note)
    yield found
    threading.setprofile(None)
    sys.setprofile(None)


@pytest.fixture
def quiet(database_url: str, profile: Profile) -> Iterator[Live]:
    """A server in which nothing happens by time."""
    del profile  # first: threads are looked at from their beginning
    settings = Settings(database_url=database_url, tick_s=600.0, **NOTIFY)
    engine = open_engine(settings)
    with listen("127.0.0.1", 0) as listener, ticking(settings, engine, listener):
        yield Live(f"http://127.0.0.1:{listener.getsockname()[1]}", engine, _tokens(engine))
    engine.dispose()


def walk(heading: str) -> set[str]:
    """The modules that carry what the walk is about."""
    return {name for line in section(heading) if line[:1].isdigit() for name in modules(line)}


def section(heading: str) -> list[str]:
    text = PAGE.read_text()
    begin = text.index(heading)
    return re.split(r"\n##", text[begin + 3 :])[0].splitlines()


def modules(text: str) -> list[str]:
    return re.findall(r"`(?!tests/)([\w/]+\.py)`", text)


def known(heading: str) -> set[str]:
    """What the walk names, and what every request passes."""
    passed = "\n".join(section(FIRST)).partition("Passed by every request")[2]
    return {*modules("\n".join(section(heading))), *modules(passed)}


@pytest.mark.parametrize("heading", [FIRST, SECOND])
def test_a_walk_is_short_and_leads_along_files_that_exist(heading: str) -> None:
    assert 10 < len(walk(heading)) <= MOST[heading]
    assert {name for name in known(heading) if not (SERVER / name).is_file()} == set()


def test_a_calm_message_and_a_chart_pass_what_the_walk_names(quiet: Live, profile: Profile) -> None:
    job = Job(quiet, "walk").start()
    for _ in range(6):
        job.train(100)
    body, viewer = encode(job.message(job.steps(1))), quiet.client(Role.VIEWER)
    with profile.on():
        assert job.post(body).status_code == 200
        chart = viewer.get(f"{job.path}/series", params={"signals": "loss"})
    assert chart.status_code == 200
    assert profile.called - known(FIRST) - RINGS == set()
    assert walk(FIRST) - profile.called == {"ingest/spikes.py", "ingest/proposals.py"}


def test_an_approval_passes_what_the_walk_names(quiet: Live, profile: Profile) -> None:
    job = Job(quiet, "walk").start().spike()
    proposal, ada = job.incident()["proposal"], quiet.person("Ada")
    with profile.on():
        answer = ada.post(
            f"{job.command_path(proposal)}/approve", json={"revision": proposal["revision"]}
        )
    assert answer.status_code == 200
    assert [str(order.command) for order in job.send().orders] == [proposal["id"]]
    assert profile.called - known(SECOND) == set()
    later = {"ingest/acknowledgement.py", "http/routes/orders.py", "http/routes/pages.py"}
    assert walk(SECOND) - profile.called - RINGS == later
