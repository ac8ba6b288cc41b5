"""A real server on a real socket and a real database, one for the session, and training jobs that
talk to it; every test names its own run."""

from __future__ import annotations

import math
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from socket import socket
from typing import Any

import httpx
import pytest
import sqlalchemy as sql
import uvicorn

from spikeguard_cli.main import main
from spikeguard_client import Client
from spikeguard_protocol import (
    Ack,
    AttemptStarted,
    BatchRange,
    CommandId,
    IncidentId,
    Medium,
    Message,
    Record,
    Role,
    RunId,
    Samples,
    SegmentReason,
    SegmentStarted,
    TargetSaved,
    decode_ack,
    encode,
)
from spikeguard_protocol.identity import RUN_HEADER
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.cli.serve import listen, server_config
from spikeguard_server.http.app import create_app
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from tests.agent.wire import await_that
from tests.server.conftest import Databases
from tests.server.face.serving import SILENT_S, cookie_of

DATABASE = "face"
NOTIFY: dict[str, Any] = {
    "notify_every_s": 0.5,
    "notify_networks": "127.0.0.0/8",
}
VERBS = ("rollback", "skip_batches", "scale_lr", "checkpoint_now", "watch", "stop")
Typed = Callable[..., str]
_ATTEMPTS = count(1)
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # made once: reading certificates takes long


@dataclass(frozen=True)
class Live:
    """A running server and a token of every role."""

    url: str
    engine: sql.Engine
    tokens: dict[Role, str]

    def client(self, role: Role | None = None) -> httpx.Client:
        """Calls as `role`, or as nobody."""
        return self.bearing(None if role is None else self.tokens[role])

    def bearing(self, token: str | None) -> httpx.Client:
        """Calls with `token`."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=120, verify=_NO_TLS)

    def token(self, grant: Grant) -> str:
        """A new token."""
        with self.engine.begin() as connection:
            return issue_token(connection, grant, "test")[0]

    def operator(self, project: str | None = None, person: str = "Ada") -> str:
        """The token of somebody who decides."""
        return self.token(Grant(Role.OPERATOR, project, person=person))

    def browser(self, token: str) -> httpx.Client:
        """A browser in which whoever holds `token` is signed in."""
        client = self.client()
        client.cookies.set("spikeguard_session", cookie_of(self.engine, token))
        return client

    def person(self, name: str, role: Role = Role.OPERATOR) -> httpx.Client:
        """Calls as a person who logged in."""
        return self.bearing(self.session(name, role))

    def session(self, name: str, role: Role = Role.OPERATOR) -> str:
        """The token of a person's login."""
        login = {"token": self.tokens[role], "name": name}
        with self.client() as client:
            token: str = client.post("/v1/sessions", json=login).json()["token"]
        return token


@dataclass
class Job:
    """A training job as the server sees it: one attempt, one segment, a calm loss."""

    live: Live
    run: str
    project: str = "default"
    attempt: str = field(default_factory=lambda: f"{next(_ATTEMPTS):016x}")
    sequence: int = 0
    step: int = 0
    random: Random = field(default_factory=lambda: Random(7))
    agents: httpx.Client | None = None  # kept between messages, as an agent does

    @property
    def path(self) -> str:
        return f"/v1/runs/{self.project}/{self.run}"

    @property
    def id(self) -> RunId:
        return RunId(self.project, self.run)

    @property
    def incident_id(self) -> IncidentId:
        """Its first incident."""
        return IncidentId(self.id, 1)

    def offer(self) -> tuple[CommandId, int]:
        """What is proposed now, and its revision."""
        found = self.incident()["proposal"]
        return CommandId.parse(found["id"]), found["revision"]

    def send(self, *records: Record) -> Ack:
        """Send one message and expect it to be taken."""
        answer = self.post(encode(self.message(*records)))
        assert answer.status_code == 200, answer.text
        return decode_ack(answer.content)

    def message(self, *records: Record) -> Message:
        self.sequence += 1
        return Message(self.project, self.run, self.attempt, self.sequence, 0.0, records)

    def post(self, body: bytes, role: Role = Role.AGENT) -> httpx.Response:
        headers = {RUN_HEADER: f"{self.project}/{self.run}"}
        if role is not Role.AGENT:
            with self.live.client(role) as client:
                return client.post("/v1/messages", content=body, headers=headers)
        self.agents = self.agents or self.live.client(Role.AGENT)
        return self.agents.post("/v1/messages", content=body, headers=headers)

    def start(self) -> Job:
        self.send(
            AttemptStarted(None, 1, VERBS, "test", tokens_per_step=4096),
            SegmentStarted(0, SegmentReason.START, None, 0),
        )
        return self

    def train(self, steps: int, excess: float = 0.0, **signals: float) -> Ack:
        """Train `steps` steps with a loss `excess` above the trend, and tell."""
        return self.send(self.steps(steps, excess, **signals))

    def steps(self, steps: int, excess: float = 0.0, **signals: float) -> Samples:
        """What `steps` more steps measure."""
        first, self.step = self.step + 1, self.step + steps
        numbers = tuple(range(first, self.step + 1))
        columns = {
            "loss": tuple(self._loss(step) + excess for step in numbers),
            "grad_norm": tuple(0.4 + self.random.gauss(0, 0.01) + excess for _ in numbers),
            "step_time": (0.5,) * steps,
            **{name: (value,) * steps for name, value in signals.items()},
        }
        positions = tuple(BatchRange(step - 1, step) for step in numbers)
        return Samples(0, numbers, columns, positions)

    def saved(self) -> TargetSaved:
        """A checkpoint taken here."""
        return TargetSaved(f"step-{self.step}", 0, self.step, self.step, Medium.DISK)

    def spike(self) -> Job:
        """Train calmly with checkpoints, then lose the trend until a rollback is proposed."""
        self.send(*(told for _ in range(4) for told in (self.steps(100), self.saved())))
        return self.climb()

    def climb(self) -> Job:
        """Lose the trend until a rollback is proposed."""
        self.train(40, excess=3.0)
        for _ in range(10):
            self.train(40, excess=3.0)
            proposal = self.incident()["proposal"]
            if proposal is not None and proposal["verb"] == "rollback":
                return self
        raise AssertionError(f"nothing was proposed: {self.incident()}")

    def _loss(self, step: int) -> float:
        return 2.0 + math.exp(-step / 200) + self.random.gauss(0, 0.01)

    def incident(self) -> dict[str, Any]:
        """The newest incident with its details."""
        with self.live.client(Role.VIEWER) as client:
            found = client.get("/v1/incidents", params={"run": f"{self.project}/{self.run}"}).json()
            number = found["items"][0]["number"]
            detail: dict[str, Any] = client.get(f"{self.path}/incidents/{number}").json()
            return detail

    def reported(self) -> dict[str, Any]:
        """The newest incident, once its post-mortem is written."""

        def found() -> dict[str, Any] | None:
            incident = self.incident()
            return incident if incident["has_postmortem"] else None

        incident: dict[str, Any] = await_that(found)
        return incident

    def command_path(self, command: dict[str, Any]) -> str:
        number = command["incident"].rpartition("#")[2]
        return f"{self.path}/incidents/{number}/commands/{command['number']}"


@pytest.fixture(scope="session")
def face_url(databases: Databases) -> str:
    """A migrated database that the tests of this folder share."""
    return databases.make(DATABASE)


@pytest.fixture(scope="session")
def live(face_url: str) -> Iterator[Live]:
    """A server on a free port, its ticker ticking once a second: a look takes 10 ms of a core."""
    with listen("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        settings = Settings(
            database_url=face_url, public_url=url, tick_s=1.0, silent_after_s=SILENT_S, **NOTIFY
        )
        engine = open_engine(settings)
        server = Resting(lambda: ticking(settings, engine, listener))
        SERVERS.append(server)
        server.wake()
        yield Live(url, engine, tokens_of(engine))
        SERVERS.remove(server)
        server.rest()
        engine.dispose()


@dataclass
class Resting:
    """A server that ticks only while tests of this folder run: idle, it takes a tenth of a core."""

    start: Callable[[], AbstractContextManager[None]]
    running: ExitStack | None = None

    def wake(self) -> None:
        if self.running is None:
            self.running = ExitStack()
            self.running.enter_context(self.start())

    def rest(self) -> None:
        if self.running is not None:
            self.running.close()
            self.running = None


SERVERS: list[Resting] = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    for server in SERVERS:
        server.wake()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        for server in SERVERS:
            server.rest()


@contextmanager
def ticking(settings: Settings, engine: sql.Engine, listener: socket) -> Iterator[None]:
    """Answers in a thread of its own, with a ticker; the port stays ours."""
    app = create_app(settings, engine)
    server = uvicorn.Server(server_config(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener.dup()]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        thread.join(120)


def tokens_of(engine: sql.Engine) -> dict[Role, str]:
    with engine.begin() as connection:
        return {role: issue_token(connection, Grant(role), "test")[0] for role in Role}


def client_of(
    live: Live, project: str | None = None, person: str = "Ada", role: Role = Role.OPERATOR
) -> Client:
    return Client(live.url, live.token(Grant(role, project, person=person)))


_RUNS = count(1)
_PROJECTS = count(1)


@pytest.fixture(scope="session")
def document(live: Live) -> dict[str, Any]:
    """The OpenAPI document as anybody reads it."""
    found: dict[str, Any] = httpx.get(f"{live.url}/openapi.json", timeout=120).json()
    return found


@pytest.fixture
def project() -> str:
    """One of the test's own: policies and switches are a project's."""
    return f"project-{next(_PROJECTS)}"


@pytest.fixture
def typed(live: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """What a command of Ada's prints, 80 columns wide."""
    monkeypatch.setenv("SPIKEGUARD_SERVER", live.url)
    monkeypatch.setenv("SPIKEGUARD_TOKEN", live.operator())
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: str, status: int = 0) -> str:
        capsys.readouterr()
        assert main(words) == status
        said = capsys.readouterr()
        return said.out + said.err

    return run


@pytest.fixture
def job(live: Live) -> Job:
    """A job of the test's own that has just started."""
    return Job(live, f"run-{next(_RUNS)}").start()


@pytest.fixture(scope="session")
def new_job(live: Live) -> Callable[[str], Job]:
    """Starts a job of a given name."""
    return lambda run: Job(live, run).start()


@pytest.fixture
def spiking(live: Live, project: str) -> Job:
    """A run with targets at 100, 200, 300 and 400, and a rollback that is proposed."""
    return Job(live, "gpt", project=project).start().spike()


@pytest.fixture(scope="session")
def spiked(live: Live) -> Job:
    """A job with an open incident, for tests that only look."""
    return Job(live, "spiked").start().spike()
