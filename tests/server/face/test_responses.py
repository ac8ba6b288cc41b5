"""What people say of an incident or a run, and what of it is judged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import unescape
from types import MappingProxyType
from typing import Any

import httpx
import pytest

from spikeguard_cli.main import main
from spikeguard_client import ApiError, Client
from spikeguard_protocol import (
    AttemptEnded,
    AttemptStarted,
    IncidentId,
    Role,
    RunId,
    SegmentId,
    SegmentPoint,
    SegmentReason,
    SegmentStarted,
)
from tests.agent.wire import await_that
from tests.server.face.conftest import VERBS, Job, Live, Typed, client_of
from tests.server.face.test_decisions import AGAIN, KEY, browser, first_view
from tests.server.face.test_judgements import postmortem

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
    assert ada.assign(incident, "  Bob   Fischer ")["assignee"] == "Bob Fischer"
    assert ada.assign(incident, "Bob Fischer")["assignee"] == "Bob Fischer"
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
        text = postmortem(job)
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


DROPPING = "<script>alert(1)</script>\x1b[31m; DROP"


def _settled(note: dict[str, Any]) -> bool:
    return note["effect"] is not None or note["unknown"] is not None


def judged(live: Live, job: Job, number: int = 1) -> dict[str, Any]:
    """The note once nothing more is expected of it."""

    def found(viewer: httpx.Client) -> dict[str, Any] | None:
        items = viewer.get(f"{job.path}/notes").json()["items"]
        return next((n for n in items if n["number"] == number and _settled(n)), None)

    with live.client(Role.VIEWER) as viewer:
        note: dict[str, Any] = await_that(lambda: found(viewer))
        return note


def restart(
    job: Job, at: int, world_size: int = 1, settings: Mapping[str, str] = MappingProxyType({})
) -> Job:
    """A new attempt that goes on from step `at`."""
    parent = SegmentPoint(SegmentId(job.attempt, 0), at)
    job.send(AttemptEnded("crashed"))
    again = Job(job.live, job.run, step=at)
    again.send(
        AttemptStarted(parent, world_size, VERBS, "test", 4096, settings),
        SegmentStarted(0, SegmentReason.RESUME, parent, at),
    )
    return again


def test_a_post_mortem_has_what_was_noted_of_the_run_before_the_spike(live: Live, job: Job) -> None:
    for _ in range(4):
        job.train(100)
    client_of(live).note(job.id, "new data mix, 30 % code", reason="week 10", expect="higher")
    job.train(40, excess=3.0)
    job.send(AttemptEnded("finished"))
    job.reported()
    with live.client(Role.VIEWER) as viewer:
        path = f"{job.path}/incidents/1/postmortem"
        said = viewer.get(path, params={"format": "json"}).json()["notes"]
    assert said == ["Ada noted a change after step 400: new data mix, 30 % code (week 10)."]


def test_a_new_level_where_a_change_was_noted_is_watched_and_not_gone_back_from(
    live: Live, job: Job
) -> None:
    """Also where the note comes once a rollback was proposed: that is withdrawn."""
    job.spike()
    client_of(live).note(job.id, "new data mix, 30 % code", step=400)
    job.train(40, excess=3.0)
    rollback, watch = job.incident()["commands"]
    assert (rollback["verb"], rollback["state"]) == ("rollback", "withdrawn")
    assert watch["verb"] == "watch"
    said = "Ada noted a change after step 400: new data mix, 30 % code."
    assert watch["reason"].startswith(said)


def test_a_change_is_told_with_its_person_and_judged_by_the_trend_from_before_it(
    live: Live, job: Job
) -> None:
    for _ in range(4):
        job.train(100)
    client, run = client_of(live), job.id
    told = client.note(
        run, "new data mix, 30 % code", reason="week 10", expect="lower", expect_size=0.2
    )
    assert (told["number"], told["step"], told["author"]) == (1, 400, "Ada")
    assert told["outcome"] == "not judged before step 480"
    job.train(100, excess=-0.1)
    found = judged(live, job)
    assert abs(found["effect"] + 0.1) <= found["effect_error"] < 0.1
    assert "nats below its earlier trend; as expected, but less" in found["outcome"]
    with live.client(Role.VIEWER) as viewer:
        assert viewer.get(job.path).json()["notes"] == [found]
    [entry] = [entry for entry in client.audit(run) if entry["action"] == "noted"]
    assert (entry["actor"], entry["after"]) == ("Ada", "note 1 at step 400")
    assert entry["reason"] == "new data mix, 30 % code: week 10"


def test_of_several_changes_the_last_alone_is_judged(live: Live, job: Job) -> None:
    job.train(300)
    client, run = client_of(live), job.id
    client.note(run, "one")
    job.train(30)
    client.note(run, "two", expect="none")
    job.train(200)
    assert judged(live, job, 1)["outcome"] == (
        "not known: nobody can tell: note 2 followed before its effect showed"
    )
    assert judged(live, job, 2)["outcome"].endswith("; as expected")


def test_a_change_that_a_rollback_undid_is_not_judged(live: Live, job: Job) -> None:
    job.train(300)
    client_of(live).note(job.id, "one")
    again = restart(job, 250)
    for _ in range(3):
        again.train(100)
    assert judged(live, job)["unknown"] == "the run went back to before it"


def test_what_an_attempt_trains_with_otherwise_is_found_and_judged(live: Live, job: Job) -> None:
    """Fields that differ by their names; the learning rate by what was trained with."""
    job.train(300, lr=3e-4)
    again = restart(job, 300, world_size=2, settings={"host": "b", "betas": "(0.9, 0.99)"})
    again.train(200, lr=1e-4)
    found = judged(live, job)
    assert {c["field"]: (c["before"], c["after"]) for c in found["changes"]} == {
        "lr": ("0.0003", "0.0001"),
        "betas": (None, "(0.9, 0.99)"),
        "world_size": ("1", "2"),
    }
    assert (found["source"], found["author"], found["began"]) == ("attempt", "server", 2)
    assert found["step"] == 300
    assert "no distance of the loss from its earlier trend can be told" in found["outcome"]
    [entry] = [e for e in client_of(live).audit(job.id) if e["action"] == "noted"]
    assert "attempt 2 began with lr 0.0003 → 0.0001" in (entry["reason"] or "")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"text": ""}, "text"),
        ({"text": "x" * 501}, "text"),
        ({"text": "x", "step": 400}, "step"),
        ({"text": "x", "expect": "faster"}, "expect"),
        ({"text": "x", "expect": "lower", "expect_size": -1.0}, "expect_size"),
        ({"text": "x", "more": 1}, "more"),
    ],
)
def test_a_note_that_cannot_be_is_refused_by_its_field(
    live: Live, job: Job, body: dict[str, Any], field: str
) -> None:
    job.train(100)
    with live.person("Ada") as person:
        answer = person.post(f"{job.path}/notes", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["field"].endswith(field), answer.text


def test_the_command_line_tells_of_a_change_and_lists_them(
    live: Live,
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SPIKEGUARD_SERVER", live.url)
    monkeypatch.setenv("SPIKEGUARD_TOKEN", live.operator())
    job.train(100)

    def typed(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        status, said = main(words), capsys.readouterr()
        return status, " ".join((said.out + said.err).split())

    assert "no attempt began with one" in typed("note", job.run)[1]
    status, said = typed("note", job.run, DROPPING, "--step", "90", "--expect", "lower")
    assert (status, "not judged before step 130" in said) == (0, True)
    status, said = typed("note", job.run, "x", "--why", "y", "--expect", "none", "--json")
    assert json.loads(said)["number"] == 2
    listed = typed("note", job.run)[1]
    assert "2, step 100, Ada: x (y). Expected: no effect. Not judged before step 140." in listed
    assert "\x1b" not in listed
    assert "<script>alert(1)</script>" in listed
    assert "note 2, step 100" in typed("show", job.run)[1]
    assert "--by is the size" in typed("note", job.run, "x", "--by", "0.1")[1]
    assert "a note needs its text" in typed("note", job.run, "--why", "y")[1]
    assert "stands at step 100" in typed("note", job.run, "x", "--step", "101")[1]
