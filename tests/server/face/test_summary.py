"""Weeks of incidents: by run, kind and cause, with what is still to be done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spikeguard_client import Client
from spikeguard_protocol import AttemptEnded, Role
from spikeguard_server.access.grants import Grant
from tests.server.face.conftest import Job, Live
from tests.server.face.test_followups import asked_for
from tests.server.face.test_responses import Typed, client_of, incident_of, typed

__all__ = ["typed"]


def test_a_week_tells_what_its_incidents_came_to_and_what_is_left_to_do(
    live: Live, job: Job
) -> None:
    job.spike()
    ada, incident = client_of(live), incident_of(job)
    ada.add_followup(incident, "Filter the mix", "Ada")
    open_now = ada.summary(run=incident.run)
    assert (open_now["total"]["incidents"], open_now["total"]["still_open"]) == (1, 1)
    job.send(AttemptEnded("finished"))
    asked_for(ada, job)
    found = ada.summary(run=incident.run, weeks=2)
    assert [week["figures"]["incidents"] for week in found["weeks"]] == [0, 1]
    assert found["total"]["still_open"] == 0
    assert [(r["name"], r["figures"]["incidents"]) for r in found["runs"]] == [(job.run, 1)]
    assert sum(cause["incidents"] for cause in found["causes"]) == 1
    assert found["followups"][0] | {"since": ""} == {
        "incident": f"{job.run}#1", "project": "default", "number": 1, "text": "Filter the mix",
        "owner": "Ada", "since": "",
    }  # fmt: skip
    assert "1 incident opened." in found["in_short"]
    ada.change_followup(incident, 1, 1, state="done")
    after = ada.summary(run=incident.run)
    assert "Filter the mix" not in [each["text"] for each in after["followups"]]


def test_who_sees_one_project_is_told_of_no_other(live: Live, spiked: Job) -> None:
    del spiked
    theirs = Client(live.url, live.token(Grant(Role.VIEWER, "theirs")))
    assert theirs.summary()["total"]["incidents"] == 0
    with live.bearing(live.token(Grant(Role.VIEWER, "theirs"))) as client:
        assert client.get("/v1/summary", params={"run": "default/spiked"}).status_code == 403
        assert client.get("/v1/summary", params={"weeks": 54}).status_code == 422


@pytest.mark.parametrize("form", ["md", "html", "txt"])
def test_it_is_written_for_people_too(live: Live, spiked: Job, form: str) -> None:
    del spiked
    with live.client(Role.VIEWER) as viewer:
        answer = viewer.get("/v1/summary", params={"format": form, "run": "default/spiked"})
    assert answer.status_code == 200
    assert "In short" in answer.text
    assert "By week" in answer.text
    assert "spiked" in answer.text


def test_the_command_line_prints_it_and_writes_files(
    spiked: Job, typed: Typed, tmp_path: Path
) -> None:
    del spiked
    assert "By run" in typed("summary", "--weeks", "1")
    assert json.loads(typed("summary", "spiked", "--json"))["runs_count"] == 1
    page = tmp_path / "weeks.html"
    typed("summary", "--output", str(page))
    assert page.read_text().startswith("<!doctype html>")
