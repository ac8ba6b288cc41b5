"""Following along: every event once, in order, over breaks and late commits."""

from __future__ import annotations

import base64
import signal
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import sqlalchemy as sql

from spikeguard_client import ApiError, Client, HappenedEvent
from spikeguard_client.stream import Place, read_events
from spikeguard_protocol import Role, RunId
from spikeguard_server.access.grants import Grant
from spikeguard_server.cli.serve import Server, server_config
from spikeguard_server.cli.sockets import listen
from spikeguard_server.http import event_feed as feed
from spikeguard_server.http.app import create_app
from spikeguard_server.settings import Settings
from spikeguard_server.store import audit
from spikeguard_server.store.engine import open_engine
from spikeguard_server.store.reads.feed import Happening
from spikeguard_server.store.tables.core import run_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.server.face.conftest import Job, Live


@pytest.fixture
def client(live: Live) -> Client:
    return Client(live.url, live.tokens[Role.VIEWER])


class Following:
    """Somebody who reads a stream in a thread of their own."""

    def __init__(self, stream: Iterator[HappenedEvent]) -> None:
        self.events: list[HappenedEvent] = []
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: Iterator[HappenedEvent]) -> None:
        for event in stream:
            self.events.append(event)

    def until(self, enough: Callable[[list[HappenedEvent]], bool]) -> list[HappenedEvent]:
        deadline = time.monotonic() + 20
        while not enough(self.events):
            assert time.monotonic() < deadline, self.events
            time.sleep(0.02)
        return self.events


def note(connection: sql.Connection, job: Job, action: str) -> None:
    audit.append(
        connection, run_key(RunId(job.project, job.run)), actor="test", action=action,
        subject=job.run,
    )  # fmt: skip


def test_a_stream_tells_what_the_audit_says_in_its_order(job: Job, client: Client) -> None:
    following = Following(client.events("default", run=job.run))
    time.sleep(0.8)  # from now on: what came before it began is not told
    job.spike()

    def later(found: list[HappenedEvent]) -> list[HappenedEvent]:
        """Without the start, which a look half a second ago may or may not have seen."""
        return [event for event in found if event["number"] > 1]

    names = [e["event"] for e in later(following.until(lambda found: len(later(found)) >= 2))]
    assert names[0] == "incident.open"
    entries = list(client.audit(RunId("default", job.run)))[-2::-1]
    told = later(following.until(lambda found: len(later(found)) >= len(entries)))
    assert [(e["number"], e["action"], e["reason"]) for e in told] == [
        (e["number"], e["action"], e["reason"]) for e in entries
    ]
    assert "command.propose" in {event["event"] for event in told}


def test_a_broken_stream_goes_on_behind_its_last_event(
    live: Live, new_job: Callable[[str], Job], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two runs at once, read a few at a time; nothing is missing, nothing comes twice."""
    monkeypatch.setattr("spikeguard_server.http.routes.events.AT_ONCE", 7)
    jobs = [new_job("broken-a"), new_job("broken-b")]
    following = Following(client.events("default"))
    time.sleep(0.8)
    for count in range(40):
        with live.engine.begin() as connection:
            note(connection, jobs[count % 2], f"step{count}")
    mine = {job.run for job in jobs}

    def ours(found: list[HappenedEvent]) -> list[HappenedEvent]:
        return [event for event in found if event["run"] in mine and event["actor"] == "test"]

    told = ours(following.until(lambda found: len(ours(found)) >= 40))
    assert [event["action"] for event in told] == [f"step{count}" for count in range(40)]
    for broken_after in (0, 7, 38):
        again = client.events("default", after=told[broken_after]["id"])
        rest = list(islice((e for e in again if e["run"] in mine), 39 - broken_after))
        assert [e["action"] for e in rest] == [e["action"] for e in told[broken_after + 1 :]]


def test_a_stream_that_broke_before_it_told_anything_goes_on_where_it_began(
    live: Live, job: Job, client: Client
) -> None:
    asked = {"run": job.run}
    with (
        live.client(Role.VIEWER) as viewer,
        viewer.stream("GET", "/v1/events", params=asked, timeout=20) as stream,
    ):
        place = next(line for line in stream.iter_lines() if line.startswith("id: "))
    with live.engine.begin() as connection:
        note(connection, job, "run.between")
    again = client.events("default", run=job.run, after=place.removeprefix("id: "))
    assert next(e for e in again if e["number"] > 1)["action"] == "run.between"


@pytest.mark.parametrize(
    "written",
    [b"[" * 5_900, b"[-62135596800,{}]", b"[NaN,{}]", b"[1e300,{}]", b'[0,{"x":1}]', b"[0,[]]"],
    ids=["deep", "year 1", "NaN", "far", "no run", "no table"],
)
def test_a_place_that_no_stream_told_is_refused(live: Live, written: bytes) -> None:
    place = base64.urlsafe_b64encode(written).decode().rstrip("=")
    with live.client(Role.VIEWER) as viewer:
        answer = viewer.get("/v1/events", params={"after": place})
    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == "last_event_id"


def test_an_id_without_an_event_is_a_place_to_go_on_from() -> None:
    place = Place()
    assert list(read_events([b"retry: 2000\n", b"\n", b"id: here\n", b"\n"], place)) == []
    assert place.header == {"Last-Event-ID": "here"}
    assert list(read_events([b": still here\n", b"\n", b"id: torn\n"], place)) == []
    assert place.id == "here"


def test_an_entry_that_was_committed_late_is_not_left_out(
    live: Live, new_job: Callable[[str], Job], client: Client
) -> None:
    slow, quick = new_job("late-slow"), new_job("late-quick")
    following = Following(client.events("default"))
    time.sleep(0.8)
    with live.engine.begin() as connection:
        note(connection, slow, "early")
        with live.engine.begin() as other:
            note(other, quick, "later")
        seen = following.until(lambda found: any(e["action"] == "later" for e in found))
        place = next(event["id"] for event in seen if event["action"] == "later")
    following.until(lambda found: any(e["action"] == "early" for e in found))
    rejoined = client.events("default", after=place)
    assert next(e for e in rejoined if e["run"] == slow.run)["action"] == "early"


def test_a_look_that_fails_in_a_way_nobody_thought_of_leaves_nothing_out(
    live: Live, job: Job, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = Following(client.events("default", run=job.run))
    time.sleep(0.8)
    failed = threading.Event()

    def fail(*given: object, **named: object) -> list[Happening]:
        del given, named
        failed.set()
        raise ValueError("nobody thought of this")

    monkeypatch.setattr(feed, "happened_since", fail)
    with live.engine.begin() as connection:
        note(connection, job, "run.test")
    assert failed.wait(5)
    monkeypatch.undo()
    told = following.until(lambda found: any(e["action"] == "run.test" for e in found))
    # A look half a second ago may or may not have seen the start.
    assert [e["action"] for e in told if e["number"] > 1] == ["run.test"]


def test_a_stream_ends_with_its_token(live: Live, job: Job) -> None:
    with live.client(Role.ADMIN) as admin:
        made = admin.post("/v1/tokens", json={"role": "viewer"}).json()
        with live.bearing(made["token"]) as viewer:
            asked = {"run": job.run}
            with viewer.stream("GET", "/v1/events", params=asked) as stream:
                lines = stream.iter_lines()
                assert next(lines) == "retry: 2000"
                assert admin.delete(f"/v1/tokens/{made['id']}").status_code == 204
                told = [line for line in lines if line.startswith("data")]  # it ends by itself
                assert not [line for line in told if "attempt.started" not in line]
            assert viewer.get("/v1/events").status_code == 401


@pytest.mark.parametrize(
    ("query", "status"),
    [({"run": "nobody"}, 404), ({"project": "a b"}, 422), ({"after": "no place"}, 422)],
)
def test_a_stream_that_cannot_be_is_refused_at_once(
    live: Live, query: dict[str, str], status: int
) -> None:
    with live.client(Role.VIEWER) as viewer:
        assert viewer.get("/v1/events", params=query).status_code == status


def test_a_token_of_one_project_follows_no_other(live: Live) -> None:
    client = Client(live.url, live.token(Grant(Role.VIEWER, "ours")))
    with pytest.raises(ApiError, match="belongs to project ours") as refused:
        next(client.events("theirs"))
    assert refused.value.status == 403


def test_a_server_that_stops_waits_for_no_stream(face_url: str, live: Live) -> None:
    engine = open_engine(Settings(database_url=face_url))
    app = create_app(Settings(database_url=face_url), engine, ticker=False)
    config = server_config(app)
    with listen("127.0.0.1", 0) as listener:
        server = Server(config, app.state.feed)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/events"
        headers: dict[str, Any] = {"Authorization": f"Bearer {live.tokens[Role.VIEWER]}"}
        with httpx.stream("GET", url, headers=headers, timeout=20) as stream:
            assert next(stream.iter_lines()) == "retry: 2000"
            began = time.monotonic()
            server.handle_exit(signal.SIGTERM, None)
            thread.join(20)
            assert time.monotonic() - began < 5
    engine.dispose()
