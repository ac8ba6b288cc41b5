"""Follow-ups: asked for by the post-mortem, changed by people, and what people did stays."""

from __future__ import annotations

import json
import time

import pytest

from spikeguard_client import ApiError, Client, Followup
from spikeguard_protocol import AttemptEnded, Role, RunId
from tests.server.face.conftest import Job, Live
from tests.server.face.test_judgements import post_mortem
from tests.server.face.test_responses import (
    HOSTILE,
    Typed,
    client_of,
    incident_of,
    typed,
)

__all__ = ["typed"]


def asked_for(client: Client, job: Job) -> list[Followup]:
    """Those of the post-mortem, once it is written."""
    until = time.monotonic() + 20
    while not (found := client.followups(incident_of(job))):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def follow_up_of_post_mortem(job: Job, live: Live, said: str) -> str:
    """The post-mortem, once it has been written anew with `said`."""
    until = time.monotonic() + 20
    with live.client(Role.VIEWER) as viewer:
        while said not in (text := post_mortem(job, viewer)):
            assert time.monotonic() < until, text
            time.sleep(0.05)
    return text


def test_people_reword_give_and_tick_off_and_the_next_post_mortem_keeps_it(
    live: Live, job: Job
) -> None:
    job.spike()
    ada, incident = client_of(live), incident_of(job)
    assert ada.followups(incident) == []
    mine = ada.add_followup(incident, HOSTILE, "Bob")
    assert (mine["number"], mine["state"], mine["owner"], mine["asked_by"]) == (
        1, "open", "Bob", "Ada",
    )  # fmt: skip
    job.send(AttemptEnded("finished"))
    post_mortem_asks = follow_up_of_post_mortem(job, live, "DROP")
    assert "<script>" not in post_mortem_asks
    asked = [each for each in ada.followups(incident) if each["asked_by"] == "post-mortem"]
    assert asked, "the post-mortem asks for something"
    first = asked[0]
    changed = ada.change_followup(
        incident, first["number"], first["revision"], text="Look at shard 14", owner="Ada",
        state="done",
    )  # fmt: skip
    assert (changed["text"], changed["owner"], changed["state"]) == (
        "Look at shard 14", "Ada", "done",
    )  # fmt: skip
    text = follow_up_of_post_mortem(job, live, "Look at shard 14")
    assert "| Look at shard 14 | Ada | done |" in text
    now = {each["number"]: each for each in ada.followups(incident)}
    assert now[first["number"]] == changed
    assert len(now) == len(asked) + 1
    done = [e for e in ada.audit(RunId("default", job.run)) if e["action"] == "follow_up"]
    assert [e["actor"] for e in done] == ["Ada", "server", "Ada"]
    assert (done[0]["after"] or "").startswith("done, Ada: Look at shard 14")


def test_of_two_people_the_second_is_told_that_it_changed(live: Live, job: Job) -> None:
    job.spike()
    ada, bob, incident = client_of(live), client_of(live, "Bob"), incident_of(job)
    made = ada.add_followup(incident, "Filter the mix")
    ada.change_followup(incident, 1, made["revision"], state="dropped")
    with pytest.raises(ApiError) as late:
        bob.change_followup(incident, 1, made["revision"], owner="Bob")
    assert (late.value.status, late.value.error["field"]) == (409, "revision")
    with pytest.raises(ApiError) as illegal:
        bob.change_followup(incident, 1, 2, state="done")
    assert (illegal.value.status, illegal.value.error["remedy"]) == (409, "Reopen it first")
    assert bob.change_followup(incident, 1, 2, state="dropped")["revision"] == 2  # it is so
    assert bob.change_followup(incident, 1, 2, state="open", nobody=True)["revision"] == 3
    for bad in ("", "x" * 2001):
        with pytest.raises(ApiError) as refused:
            ada.add_followup(incident, bad)
        assert refused.value.status == 422
    with pytest.raises(ApiError) as strange:
        ada.change_followup(incident, 9, 1, state="done")
    assert strange.value.status == 404


def test_the_command_line_lists_adds_and_ticks_off(job: Job, typed: Typed) -> None:
    job.spike()
    name = f"{job.run}#1"
    assert "Nothing is to be done" in typed("followup", name)
    assert f"Follow-up 1 of {name}: Filter" in typed("followup", name, "--add", "Filter\x1b[2J")
    assert "1, done, Ada: Filter" in typed("followup", name, "1", "--done", "--owner", "Ada")
    listed = typed("followup", name)
    assert "done" in listed
    assert "\x1b" not in listed
    assert json.loads(typed("followup", name, "--json"))[0]["state"] == "done"
    assert "it has 1" in typed("followup", name, "7", "--done", status=1)
    assert "name the follow-up" in typed("followup", name, "--done", status=1)
    assert "say what becomes of it" in typed("followup", name, "1", status=1)
