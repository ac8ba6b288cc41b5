"""Who has an incident: acknowledged, assigned, commented on, by every way that there is."""

from __future__ import annotations

import json
from html import unescape
from typing import Any

import pytest

from spikeguard_client import ApiError, Client
from spikeguard_protocol import AttemptEnded, IncidentId, Role, RunId
from tests.agent.wire import await_that
from tests.server.face.conftest import Job, Live, Typed, client_of
from tests.server.face.test_decisions import AGAIN, KEY, browser, first_view
from tests.server.face.test_judgements import post_mortem

HOSTILE = "<script>alert(1)</script>\x1b[31m\x00 DROP\nsecond line"


def audited(client: Client, job: Job) -> list[tuple[str, str, str | None, str | None]]:
    """(action, actor, before, after) of what people did about the incident, oldest first."""
    ours = {"acknowledge", "unacknowledge", "assign", "unassign", "comment"}
    found = [e for e in client.audit(job.id) if e["action"] in ours]
    assert {e["subject"] for e in found} <= {f"{job.run}#1"}
    return [(e["action"], e["actor"], e["before"], e["after"]) for e in reversed(found)]


def test_the_first_to_acknowledge_has_it_until_it_is_taken_back(live: Live, job: Job) -> None:
    job.spike()
    ada, bob, incident = client_of(live), client_of(live, person="Bob"), job.incident_id
    first = ada.acknowledge(incident)
    assert first["acknowledged_by"] == "Ada"
    again = bob.acknowledge(incident)
    assert (again["acknowledged_by"], again["acknowledged_at"]) == ("Ada", first["acknowledged_at"])
    assert len(again["responses"]) == 1
    assert next(iter(ada.incidents(incident.run)))["acknowledged_by"] == "Ada"
    assert bob.take_back_acknowledgement(incident)["acknowledged_by"] is None
    assert bob.take_back_acknowledgement(incident)["acknowledged_at"] is None
    assert bob.acknowledge(incident)["acknowledged_by"] == "Bob"
    assert audited(ada, job) == [
        ("acknowledge", "Ada", None, "Ada"),
        ("unacknowledge", "Bob", "Ada", None),
        ("acknowledge", "Bob", None, "Bob"),
    ]


def test_an_incident_is_made_somebodys_and_nobodys(live: Live, job: Job) -> None:
    job.spike()
    ada, incident = client_of(live), job.incident_id
    given = ada.assign(incident, "  Bob   Fischer ")
    assert (given["assignee"], given["assigned_by"]) == ("Bob Fischer", "Ada")
    assert ada.assign(incident, "Bob Fischer")["assigned_at"] == given["assigned_at"]
    assert ada.assign(incident, None)["assignee"] is None
    assert ada.assign(incident, None)["assignee"] is None
    assert audited(ada, job) == [
        ("assign", "Ada", None, "Bob Fischer"),
        ("unassign", "Ada", "Bob Fischer", None),
    ]
    done = ada.incident(incident)["responses"]
    assert [(r["number"], r["action"], r["assignee"]) for r in done] == [
        (1, "assigned", "Bob Fischer"),
        (2, "unassigned", "Bob Fischer"),
    ]


def test_comments_stand_in_the_incident_the_record_and_the_post_mortem(
    live: Live, job: Job
) -> None:
    job.spike()
    ada, incident = client_of(live), job.incident_id
    ada.acknowledge(incident)
    ada.assign(incident, "Bob")
    made = ada.comment(incident, HOSTILE)
    assert (made["number"], made["person"]) == (3, "Ada")
    kept = HOSTILE.replace("\x00", "\ufffd")
    assert ada.incident(incident)["responses"][-1]["text"] == kept
    job.send(AttemptEnded("finished"))
    with live.client(Role.VIEWER) as viewer:
        text = post_mortem(job, viewer)
        for said in ("acknowledged by Ada", "assigned to Bob by Ada", "Ada: "):
            assert said in text
        assert "<script>" not in text
        ada.comment(incident, "the shard was fixed")
        path = f"{job.path}/incidents/1/postmortem"
        await_that(lambda: "the shard was fixed" in viewer.get(path).text)


def test_a_closed_incident_is_not_acknowledged_but_has_an_owner(live: Live, job: Job) -> None:
    job.spike().send(AttemptEnded("finished"))
    ada, incident = client_of(live), job.incident_id
    with pytest.raises(ApiError) as refused:
        ada.acknowledge(incident)
    assert (refused.value.status, refused.value.code) == (409, "illegal_move")
    assert ada.assign(incident, "Ada")["assignee"] == "Ada"


def test_what_is_not_there_or_too_long_or_not_ones_to_do_is_refused(
    live: Live, spiked: Job
) -> None:
    ada, incident = client_of(live), spiked.incident_id
    for refused, status in (
        (lambda: ada.acknowledge(IncidentId(incident.run, 99)), 404),
        (lambda: ada.assign(IncidentId(RunId("default", "none"), 1), "Ada"), 404),
        (lambda: ada.comment(incident, "x" * 2001), 422),
        (lambda: ada.comment(incident, "   "), 422),
        (lambda: client_of(live, role=Role.VIEWER).comment(incident, "x"), 403),
    ):
        with pytest.raises(ApiError) as error:
            refused()
        assert error.value.status == status
    assert ada.incident(incident)["responses"] == []


def post(page: Any, job: Job, verdict: str, **said: str) -> Any:
    """Press a button of the first view."""
    (key,) = set(KEY.findall(page.get(first_view(job)).text))
    return page.post(first_view(job), data={"key": key, "verdict": verdict, **said})


def test_the_first_view_says_who_has_it_and_lets_people_respond(live: Live, job: Job) -> None:
    job.spike()
    path = first_view(job)
    with live.person("Ada") as ada, browser(live, ada) as page:
        assert "Nobody has acknowledged it." in page.get(path).text
        writing = page.get(path, params={"write": "true"}).text
        assert AGAIN not in writing  # somebody is typing
        assert "<textarea" in writing
        assert "<textarea" not in page.get(path).text
        assert post(page, job, "acknowledge").status_code == 303
        assert post(page, job, "take").status_code == 303
        assert post(page, job, "comment", text=HOSTILE).status_code == 303
        assert post(page, job, "comment", text=" ").status_code == 422
        assert post(page, job, "assign", assignee="server").status_code == 422
        assert post(page, job, "dance").status_code == 422
        assert page.post(path, data={"key": "0" * 64, "verdict": "take"}).status_code == 403
        text = page.get(path).text
        assert "<b>Ada</b> looks at it since" in text
        assert "It is assigned to <b>Ada</b>." in text
        assert "<script" not in text
        assert "second line" in unescape(text)
        assert post(page, job, "assign", assignee="").status_code == 303
        assert post(page, job, "unacknowledge").status_code == 303
        text = page.get(path).text
    assert "Ada no longer looks at it." in text
    assert "Left by Ada." in text
    found = client_of(live).incident(job.incident_id)
    assert (found["acknowledged_by"], found["assignee"]) == (None, None)


def test_the_command_line_acknowledges_and_shows_what_people_said(
    live: Live, job: Job, typed: Typed
) -> None:
    job.spike()
    name = f"{job.run}#1"
    assert f"{name} is acknowledged by Ada: it is not escalated" in typed("ack", name)
    with live.person("Ada") as ada:
        path = f"{job.path}/incidents/1"
        assert ada.post(f"{path}/assignee", json={"assignee": "Bob"}).status_code == 200
        assert ada.post(f"{path}/comments", json={"text": "shard 14\x1b[2J"}).status_code == 201
    shown = typed("show", name)
    assert "people   acknowledged by Ada, assigned to Bob" in shown
    assert "Ada: shard 14" in shown
    assert "\x1b" not in shown
    assert f"Nobody looks at {name} now" in typed("ack", name, "--undo")
    assert json.loads(typed("ack", name, "--json"))["acknowledged_by"] == "Ada"
