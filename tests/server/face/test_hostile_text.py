"""What people, jobs and files write reaches a terminal, a page and a spreadsheet as text alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from typing import TYPE_CHECKING

import pytest

from spikeguard_cli.main import main
from spikeguard_protocol import (
    BatchDetail,
    Role,
    TokenHistogram,
)
from tests.hostile import HARMLESS, HOSTILE, acted_on
from tests.server.face.conftest import Live
from tests.server.face.test_decisions import browser

if TYPE_CHECKING:
    from tests.server.face.conftest import Job

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
