"""`--json` of every command that asks a server: one document, with what the API answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spikeguard_cli.main import main
from spikeguard_protocol import Role
from spikeguard_server.access.grants import Grant
from tests.server.face.conftest import Job, Live

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
