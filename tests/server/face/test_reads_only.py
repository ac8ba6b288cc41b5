"""A server on a real standby: it answers what people look at, and says where all else goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import sqlalchemy as sql
import uvicorn

from benchmarks.standby_database import NoStandby, streaming_standby
from spikeguard.uplink.transport import Advice, Transport
from spikeguard_cli.main import main
from spikeguard_client import ApiError, Client
from spikeguard_protocol import Message, Role, RunId
from spikeguard_server.cli.serve import server_config
from spikeguard_server.cli.sockets import listen
from spikeguard_server.http.app import create_app
from spikeguard_server.identity.permissions import TABLE
from spikeguard_server.settings import SettingError, Settings, read_settings
from spikeguard_server.store.engine import open_engine
from tests.agent.wire import await_that
from tests.server.face.serving import SILENT_S

if TYPE_CHECKING:
    from tests.server.face.conftest import Job, Live

PAGES = ("/login", "/logout", "/confirm/", "/incident/", "/act/", "/inbox", "/approve/")
FOR_ONE_PROCESS = {"/docs", "/docs/{file}", "/metrics", "/openapi.json", "/readyz", "/healthz"}


@pytest.fixture(scope="module")
def standby_url(face_url: str, live: Live) -> Iterator[str]:
    del live  # the primary has its rows before the copy is made
    try:
        with streaming_standby(face_url) as url:
            yield url
    except NoStandby as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def mirror(standby_url: str, live: Live) -> Iterator[Live]:
    """A server on the standby; the tokens are those of the primary."""
    settings = Settings(database_url=standby_url, primary_url=live.url, silent_after_s=SILENT_S)
    with _serving(live, settings) as found:
        yield found


@contextmanager
def _serving(live: Live, settings: Settings) -> Iterator[Live]:
    with listen("127.0.0.1", 0) as listener:
        engine = open_engine(settings)
        app = create_app(settings, engine)
        server = uvicorn.Server(server_config(app))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            yield replace(live, url=url, engine=engine)
        finally:
            app.state.feed.stop()
            server.should_exit = True
            thread.join(20)
            engine.dispose()


def caught_up(live: Live, mirror: Live) -> None:
    """Return once the standby has everything that the primary has now."""
    with live.engine.begin() as connection:  # the tests' commits do not wait for the log, this does
        connection.execute(sql.text("set local synchronous_commit = on"))
        connection.execute(sql.text("select pg_logical_emit_message(true, 'so far', '')"))
    place = _one(live.engine, sql.text("select pg_current_wal_flush_lsn()::text"))
    query = sql.text("select pg_last_wal_replay_lsn() >= cast(:place as pg_lsn)")
    await_that(lambda: _one(mirror.engine, query, place=place))


def _one(engine: sql.Engine, query: sql.TextClause, **given: Any) -> Any:
    with engine.connect() as connection:
        return connection.execute(query, given).scalar_one()


def paths(job: Job) -> list[str]:
    """Every call that reads, about a run with an incident."""
    names = {"{project}": "default", "{name}": job.run, "{number}": "1"}
    found = []
    for method, path in TABLE:
        if method == "GET" and not path.startswith(PAGES) and path not in FOR_ONE_PROCESS:
            for name, value in names.items():
                path = path.replace(name, value)
            found.append(path)
    return found


def test_every_read_is_answered_as_the_primary_answers_it(
    live: Live, mirror: Live, job: Job
) -> None:
    job.spike()
    caught_up(live, mirror)
    asked = [path for path in paths(job) if path not in ("/v1/events", "/", "/pages/style.css")]
    assert len(asked) > 18
    for path in asked:
        await_that(partial(_same, live, mirror, path))  # the ticker may act between two calls


def _same(live: Live, mirror: Live, path: str) -> bool:
    """Whether both answer the same."""
    role = Role.ADMIN
    if path.startswith("/metrics"):
        role = Role.METRICS
    elif path.endswith("/orders"):
        role = Role.AGENT
    with live.client(role) as there, mirror.client(role) as here:
        wanted, got = (client.get(path, params={"wait_s": 0}) for client in (there, here))
    assert got.status_code in (200, 409), (path, got.text)  # 409: no post-mortem while open
    if "json" in got.headers["content-type"] and _ageless(got.json()) != _ageless(wanted.json()):
        return False
    return got.status_code == wanted.status_code


def _ageless(plain: Any) -> Any:
    """An answer without what changes while one looks."""
    if isinstance(plain, dict):
        moving = ("age_s", "expires_in_s", "seconds", "money")
        return {name: _ageless(value) for name, value in plain.items() if name not in moving}
    return [_ageless(item) for item in plain] if isinstance(plain, list) else plain


def test_every_call_that_writes_is_refused_with_the_primarys_address(
    live: Live, mirror: Live, job: Job
) -> None:
    with mirror.client(Role.ADMIN) as admin:
        for method, path in TABLE:
            if method == "GET" or path.startswith(PAGES):
                continue
            url = path.replace("{project}", "default").replace("{name}", job.run)
            for name in ("number", "command", "id", "channel"):
                url = url.replace(f"{{{name}}}", "1")
            answer = admin.request(method, url, content=b"{}")
            told = answer.json()["error"]
            assert (answer.status_code, told["code"]) == (405, "reads_only"), (method, path)
            assert (told["primary"], answer.headers["allow"]) == (live.url, "GET")
            assert live.url in told["remedy"]


def test_an_agent_that_comes_here_keeps_what_it_measured(mirror: Live, job: Job) -> None:
    """Any advice but to give the message up, or to ask a person."""
    message = Message("default", job.run, job.attempt, job.sequence + 1, 0.0, (job.steps(1),))
    line = Transport(mirror.url, mirror.tokens[Role.AGENT], 10.0)
    verdict = line.send(message)
    line.close()
    assert (verdict.advice, verdict.reason[:3]) == (Advice.BACK_OFF, "405")


def test_a_person_is_led_to_the_pages_of_the_primary(live: Live, mirror: Live) -> None:
    page = "/confirm/default/run/1/1"
    with mirror.client() as browser:
        for path in ("/login?next=/", page):
            led = browser.get(path)
            assert (led.status_code, led.headers["location"]) == (303, live.url + path)
        posted = browser.post(page)
        assert posted.status_code == 405
        assert live.url in posted.text


def test_what_happens_is_followed_here_as_there(live: Live, mirror: Live, job: Job) -> None:
    caught_up(live, mirror)  # of a run that it does not know yet the standby says 404
    with mirror.client(Role.VIEWER) as viewer:
        asked = {"run": job.run}
        with viewer.stream("GET", "/v1/events", params=asked, timeout=20) as stream:
            lines = stream.iter_lines()
            next(lines)
            threading.Timer(1.0, _reprice, (live, job.run)).start()
            event = next(line for line in lines if line.startswith("event: "))
    assert event == "event: policy.written"


def _reprice(live: Live, run: str) -> None:
    admin = Client(live.url, live.tokens[Role.ADMIN])
    admin.put_run_policy(RunId("default", run), {"price_per_hour": 1.5})


def test_health_says_that_it_serves_reads_and_how_far_behind_it_is(
    live: Live, mirror: Live, standby_url: str
) -> None:
    assert httpx.get(f"{mirror.url}/healthz", timeout=30).json() == {
        "status": "ok",
        "primary": live.url,
    }
    assert httpx.get(f"{live.url}/healthz", timeout=30).json()["primary"] is None
    assert httpx.get(f"{live.url}/readyz", timeout=30).json()["lag_s"] is None
    caught_up(live, mirror)
    ready = httpx.get(f"{mirror.url}/readyz", timeout=30)
    assert (ready.status_code, ready.json()["lag_s"] < 5.0) == (200, True), ready.text
    settings = Settings(database_url=standby_url, primary_url=live.url, most_lag_s=0.3)
    with _serving(live, settings) as strict, _paused(mirror.engine):
        Client(live.url, live.tokens[Role.ADMIN]).put_policy("of-standby", {})
        await_that(lambda: httpx.get(f"{strict.url}/readyz", timeout=30).status_code == 503)
        behind = httpx.get(f"{strict.url}/readyz", timeout=30).json()["error"]
        assert "behind its primary" in behind["message"]
        assert httpx.get(f"{strict.url}/healthz", timeout=30).status_code == 200


@contextmanager
def _paused(engine: sql.Engine) -> Iterator[None]:
    """The standby replays nothing meanwhile."""
    with engine.begin() as connection:
        connection.execute(sql.text("select pg_wal_replay_pause()"))
    state = sql.text("select pg_get_wal_replay_pause_state()")
    await_that(lambda: _one(engine, state) == "paused")
    try:
        yield
    finally:
        with engine.begin() as connection:
            connection.execute(sql.text("select pg_wal_replay_resume()"))


def test_what_was_revoked_ends_here_as_soon_as_the_standby_knows(live: Live, mirror: Live) -> None:
    admin = Client(live.url, live.tokens[Role.ADMIN])
    token = admin.make_token(Role.VIEWER)
    caught_up(live, mirror)
    here = Client(mirror.url, token["token"])
    with _paused(mirror.engine):
        admin.revoke_token(token["id"])
        assert here.me()["role"] == "viewer"  # not yet
    caught_up(live, mirror)
    with pytest.raises(ApiError, match="unknown, expired or revoked"):
        here.me()


def test_a_server_that_writes_refuses_to_start_on_a_standby(
    standby_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", standby_url)
    monkeypatch.delenv("SPIKEGUARD_PRIMARY_URL", raising=False)
    assert main(["serve", "--port", "0"]) == 1
    assert "SPIKEGUARD_PRIMARY_URL" in capsys.readouterr().err


def test_a_process_of_reads_cannot_write_even_on_the_primary(live: Live, face_url: str) -> None:
    engine = open_engine(Settings(database_url=face_url, primary_url=live.url))
    with engine.connect() as connection, pytest.raises(sql.exc.InternalError, match="read-only"):
        connection.execute(sql.text("delete from silences"))
    engine.dispose()


def test_the_primarys_address_is_one() -> None:
    with pytest.raises(SettingError, match="SPIKEGUARD_PRIMARY_URL is an http or https URL"):
        read_settings({"SPIKEGUARD_PRIMARY_URL": "primary:8000"})
