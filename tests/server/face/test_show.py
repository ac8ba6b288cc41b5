"""The terminal: `show`, `watch`, `snooze`, `--json` of every command, and the client below them."""

from __future__ import annotations

import json
import math
import re
import socket
from html import unescape
from typing import Any
from urllib.parse import unquote

import pytest

from spikeguard_cli.main import main
from spikeguard_client import ApiError, Client, shapes
from spikeguard_client.calls import read
from spikeguard_protocol import AttemptEnded, Role
from spikeguard_protocol.paths import incident_page_path
from spikeguard_server.access.grants import Grant
from tests.server.face.conftest import Job, Live, Typed
from tests.server.face.test_judgements import approve, roll_back


def test_an_incident_on_one_screen_says_what_why_what_to_do_and_how(
    spiked: Job, typed: Typed
) -> None:
    spiked.send()  # it may have said nothing for minutes
    found = spiked.incident()
    said = typed("show", f"{spiked.run}#1")
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40  # a terminal of a laptop
    assert lines[0].startswith(f"{spiked.run}#1: {found['title']} ({found['confidence']:.0%})")
    unwrapped = " ".join(said.split())
    assert f"{found['summary']}." in unwrapped
    assert found["cause"] in unwrapped
    with spiked.live.browser(spiked.live.session("Ada")) as browser:
        page = unescape(browser.get(incident_page_path(spiked.incident_id)).text)
    assert found["cause"] in page, "the page says another cause"
    assert re.search(r"^propose +roll back to step ", said, re.M)
    assert re.search(r"^costs +\d+ steps", said, re.M)
    assert re.search(r"^answer +within ", said, re.M)
    assert f"decide   spikeguard approve '{spiked.run}#1'" in lines
    assert f"^ onset, step {found['onset_step']}" in said


def test_after_a_rollback_the_branch_that_is_kept_is_drawn_first(job: Job, typed: Typed) -> None:
    """The undone one stood three nats above."""
    job.spike()
    roll_back(job, approve(job), 470)
    for words in (("show", f"{job.run}#1"), ("show", job.run)):
        said = typed(*words)
        top = said[said.index("\nloss\n") :].split("branch that was undone")[0]
        highest = max(map(float, re.findall(r"^ *(\d\.\d+) ", top, re.M)))
        assert highest < 4.0, said
    undone = typed("show", f"{job.run}#1").split("loss of the branch that was undone")[1]
    assert max(map(float, re.findall(r"^ *(\d\.\d+) ", undone, re.M))) > 5.0
    assert "^ onset, step " in undone


def test_a_run_on_one_screen_leads_to_what_waits_for_somebody(spiked: Job, typed: Typed) -> None:
    said = typed("show", spiked.run)
    assert said.startswith(f"{spiked.run}: ")
    assert f"open: '{spiked.run}#1', waits for your decision" in said
    assert re.search(r"^propose +roll back to step ", said, re.M)
    assert "onset, step " in said


def test_a_run_is_followed_until_it_ends(job: Job, typed: Typed) -> None:
    job.train(30)
    assert "live" in typed("watch", job.run, "--once")
    job.send(AttemptEnded("done"))
    assert "ended" in typed("watch", job.run, "--every", "0.2")


def test_a_browser_is_led_to_the_decision_or_else_to_the_incident(job: Job, typed: Typed) -> None:
    proposal = job.spike().incident()["proposal"]
    confirm = f"/confirm/default/{job.run}/1/{proposal['number']}"
    assert (
        unquote(typed("open", "--sign-in", f"{job.run}#1"))
        .splitlines()[0]
        .endswith(f"next={confirm}")
    )
    typed("reject", f"{job.run}#1", "--reason", "we wait")
    first_view = f"/incident/default/{job.run}/1"
    assert (
        unquote(typed("open", "--sign-in", f"{job.run}#1"))
        .splitlines()[0]
        .endswith(f"next={first_view}")
    )


LOOKING = (
    ("runs", "--limit", "0"), ("runs", "--since", "1h"), ("incidents", "RUN", "--since", "1h"),
    ("show", "RUN#1"), ("show", "RUN"),
    ("watch", "RUN", "--once"), ("open", "RUN#1"), ("note", "RUN"), ("run", "RUN"),
    ("audit", "RUN", "--since", "1h"), ("audit", "--limit", "2"),
    ("token", "list"), ("policy", "show"), ("policy", "show", "--run", "RUN"),
    ("channels", "list"), ("open", "--sign-in", "RUN#1"),
)  # fmt: skip
ACTING = (
    ("note", "RUN", "another data mix"), ("ack", "RUN#1"),
    ("reject", "RUN#1", "--reason", "wait"),
    ("token", "create", "--role", "agent", "--name", "json"),
    ("policy", "halt", "--project", "as-json", "--reason", "test"),
    ("policy", "resume", "--project", "as-json", "--reason", "test"),
)  # fmt: skip


@pytest.fixture
def signed_in(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ada, who may do all of it."""
    monkeypatch.setenv("SPIKEGUARD_SERVER", live.url)
    monkeypatch.setenv("SPIKEGUARD_TOKEN", live.token(Grant(Role.ADMIN, person="Ada")))


def answer(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], run: str) -> Any:
    capsys.readouterr()
    status = main([*(word.replace("RUN", run) for word in words), "--json"])
    said = capsys.readouterr()
    assert status == 0, said.err
    return json.loads(said.out)


@pytest.mark.usefixtures("signed_in")
def test_whatever_is_looked_at_can_be_had_as_one_document(
    spiked: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in LOOKING:
        found = answer(capsys, words, spiked.run)
        assert found or isinstance(found, list), words
    assert answer(capsys, ("runs", "--since", "2099-01-01"), spiked.run) == []


@pytest.mark.usefixtures("signed_in")
def test_whatever_is_done_answers_with_one_document(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    Job(live, "done", "as-json").start().spike()
    run = "as-json/done"
    found = {words[0]: answer(capsys, words, run) for words in ACTING}
    assert found["reject"]["state"] == "rejected"
    assert found["ack"]["acknowledged_by"] == "Ada"
    assert len(found["token"]["token"]) > 20
    with pytest.raises(AssertionError, match=f"`spikeguard show '{run}#1'`"):
        answer(capsys, ("reject", "as-json/done#1.1", "--reason", "again"), run)
    with pytest.raises(AssertionError, match="`spikeguard runs`"):
        answer(capsys, ("show", "never-heard-of"), run)
    with pytest.raises(AssertionError, match=f"`spikeguard incidents {run}`"):
        answer(capsys, ("show", f"{run}#9"), run)


def test_words_for_floats_become_floats_and_nothing_else_does() -> None:
    place = {"attempt": 1, "segment": 0, "at": "2026-03-14T03:00:00Z"}
    plain = {**place, "step": 3, "signal": "nan", "value": "inf", "z": 4}
    found = read(shapes.RunWarning, json.dumps(plain).encode())
    assert (found["signal"], found["value"], found["z"]) == ("nan", math.inf, 4.0)
    for change in ({"value": "tall"}, {"step": 3.5}, {"signal": None}):
        with pytest.raises(ApiError, match="not in the form"):
            read(shapes.RunWarning, json.dumps({**plain, **change}).encode())
    entry: dict[str, Any] = dict.fromkeys(shapes.AuditEntry.__required_keys__)
    entry |= {"number": 1, "at": "", "actor": "", "action": "", "subject": ""}
    with pytest.raises(ApiError, match=r"Expected `array`, got `null` - at `\$.changes`"):
        read(shapes.AuditEntry, json.dumps({**entry, "changes": None}).encode())
    with pytest.raises(ApiError, match="missing required field `z`"):
        read(shapes.RunWarning, json.dumps({k: v for k, v in plain.items() if k != "z"}).encode())


def test_a_server_that_is_not_there_is_one_clear_error() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(ApiError) as refused:
        Client(f"http://127.0.0.1:{port}", "x").me()
    assert refused.value.code == "unreachable"


def test_a_server_that_says_nothing_is_given_up_on_after_the_calls_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ApiError) as refused:
            Client(f"http://127.0.0.1:{port}", "x", timeout_s=0.3).me()
    assert refused.value.code == "timeout"
