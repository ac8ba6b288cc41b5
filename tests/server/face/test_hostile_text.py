"""What people, jobs, requests and files say reaches a log, a terminal and a page as text alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sql

from spikeguard_cli.main import main
from spikeguard_protocol import BatchDetail, Role, TokenHistogram, encode
from spikeguard_server.access.grants import Grant, issue_token
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from tests.hostile import HARMLESS, HOSTILE, acted_on
from tests.programs import running
from tests.server.conftest import Databases
from tests.server.face.conftest import Job, Live
from tests.server.face.test_decisions import browser
from tests.server.store.jobs import execute

TEXTS = (*HOSTILE.values(), *HARMLESS)


@pytest.fixture
def login(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIKEGUARD_SERVER", live.url)
    monkeypatch.setenv("SPIKEGUARD_TOKEN", live.tokens[Role.ADMIN])


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command prints."""
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def is_told_safely(text: str) -> None:
    assert acted_on(text) == []
    assert not re.search(r"^FORGED", text, re.MULTILINE)


@pytest.mark.usefixtures("login")
def test_what_lay_in_a_batch_reaches_the_page_as_text(live: Live, job: Job) -> None:
    job.spike()
    onset = job.incident()["onset_step"]
    texts = tuple(text[:40] for text in TEXTS[:16])
    numbers = tuple(1.0 / len(texts) for _ in texts)
    histogram = TokenHistogram(
        9, 120, 3, (1.0,), (1.0,), tuple(range(len(texts))), numbers, numbers, texts
    )
    names, snippet = tuple(text[:200] for text in TEXTS), "\n".join(TEXTS)[:1000]
    job.send(BatchDetail(0, onset, 0, 1, names[:60], 0, 4, 1, 9.0, snippet, histogram))
    with live.person("Ada", Role.VIEWER) as ada, browser(live, ada) as viewer:
        page = viewer.get(f"/incident/default/{job.run}/1")
    assert page.status_code == 200
    assert acted_on(unescape(re.sub(r"<[^>]*>", "", page.text))) == []
    assert "<script" not in page.text


@pytest.mark.parametrize("reason", [r"\ud800", r"\u0000", r"a\udfffb"])
def test_half_characters_and_nul_are_refused_or_kept_and_break_nothing(
    live: Live, job: Job, reason: str
) -> None:
    with live.person("Ada", Role.ADMIN) as admin:
        answer = admin.post(
            "/v1/policy/halt", content=f'{{"project": "{job.run}", "reason": "{reason}"}}',
            headers={"Content-Type": "application/json"},
        )  # fmt: skip
        assert answer.status_code == (200 if reason == r"\u0000" else 422), answer.text
        assert admin.get("/v1/audit").status_code == 200


def test_a_terminal_that_lacks_a_character_is_shown_its_escape(live: Live, job: Job) -> None:
    with live.person("Ada", Role.ADMIN) as admin:
        body = {"project": job.run, "reason": "Ада"}
        assert admin.post("/v1/policy/halt", json=body).status_code == 200
    environment = {
        **os.environ, "SPIKEGUARD_SERVER": live.url, "PYTHONIOENCODING": "ascii",
        "SPIKEGUARD_TOKEN": live.tokens[Role.ADMIN],
    }  # fmt: skip
    command = [sys.executable, "-m", "spikeguard_cli.main", "audit", "--limit", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert rb"\u0410\u0434\u0430" in done.stdout


PATH = "/v1/runs/default/%1b[31m%0aERROR%20spikeguard_server:%20all%20is%20well%E2%80%AE"


@contextmanager
def serving(engine: sql.Engine, log: Path, **settings: str) -> Iterator[Live]:
    """`spikeguard serve` as its own process, its standard error in `log`."""
    with engine.begin() as connection:
        tokens = {role: issue_token(connection, Grant(role), "test")[0] for role in Role}
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SPIKEGUARD")}
    database = engine.url.render_as_string(hide_password=False)
    with running(log, {**kept, "DATABASE_URL": database, **settings}) as (url, _):
        yield Live(url, engine, tokens)


@pytest.fixture
def engine(databases: Databases, tmp_path: Path) -> Iterator[sql.Engine]:
    """Of a database that a test may break."""
    made = open_engine(Settings(database_url=databases.make(f"logs_{tmp_path.name[-9:]}")))
    yield made
    made.dispose()


def lose_tables(engine: sql.Engine) -> None:
    """From here on whatever asks the database fails."""
    execute(engine, "DROP SCHEMA public CASCADE")


@pytest.mark.slow
def test_a_log_that_no_terminal_reads_is_one_json_object_a_line(
    engine: sql.Engine, tmp_path: Path
) -> None:
    """A message that fails is logged with its request and its run."""
    with serving(engine, tmp_path / "log") as live:
        job = Job(live, "failing", project="vision").start()
        job.train(3)
        lose_tables(engine)
        assert job.agents is not None
        job.agents.headers["X-Request-Id"] = "trace-7"
        failed = job.post(encode(job.message(job.steps(1))))
    assert (failed.status_code, failed.headers["X-Request-Id"]) == (500, "trace-7")
    records: list[dict[str, Any]] = [
        json.loads(line) for line in (tmp_path / "log").read_text().splitlines()
    ]
    told = [record for record in records if record.get("request_id") == "trace-7"]
    assert told[0]["message"] == "POST /v1/messages failed"
    assert (told[0]["run"], told[0]["level"]) == ("vision/failing", "ERROR")
    assert (told[0]["logger"], told[0]["time"][-6:]) == ("spikeguard_server.http.app", "+00:00")
    assert told[0]["exception"].startswith("Traceback")
    assert all("request_id" not in r for r in records if r["message"].startswith("tick"))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "text"])
def test_a_hostile_path_stays_in_its_line(engine: sql.Engine, tmp_path: Path, form: str) -> None:
    with serving(engine, tmp_path / "log", SPIKEGUARD_LOG_FORMAT=form) as live:
        lose_tables(engine)
        with live.client(Role.VIEWER) as client:
            failed = client.get(PATH)
    assert failed.status_code == 500
    lines = (tmp_path / "log").read_text().splitlines()
    about = [line for line in lines if "all is well" in line]
    assert about
    if form == "json":
        assert failed.headers["X-Request-Id"] in {
            json.loads(line).get("request_id") for line in about
        }
        assert all(json.loads(line) and line.isascii() and line.isprintable() for line in lines)
    else:
        assert "\\x1b[31mERROR spikeguard_server: all is well\\u202e" in about[0]
        assert not any(line.startswith("ERROR spikeguard_server:") for line in lines)


@pytest.mark.parametrize(
    "given", [b"", b"two words", b"x" * 129, b"tab\there", "\u00e9".encode()], ids=repr
)
def test_a_request_id_that_is_not_fit_to_be_written_is_replaced(live: Live, given: bytes) -> None:
    for path in ("/healthz", "/v1/runs/default/none"):
        answer = httpx.get(live.url + path, headers={b"X-Request-Id": given}, timeout=120)
        assert answer.headers.get_list("X-Request-Id") == [answer.headers["X-Request-Id"]]
        assert answer.headers["X-Request-Id"].encode() != given
        assert len(answer.headers["X-Request-Id"]) == 16
