"""Changes that nobody ordered here: told by people or found, and judged by what followed them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import httpx
import pytest

from spikeguard_cli.main import main
from spikeguard_protocol import (
    AttemptEnded,
    AttemptStarted,
    Role,
    SegmentId,
    SegmentPoint,
    SegmentReason,
    SegmentStarted,
)
from tests.agent.wire import await_that
from tests.server.face.conftest import VERBS, Job, Live, client_of

HOSTILE = "<script>alert(1)</script>\x1b[31m; DROP"


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
    status, said = typed("note", job.run, HOSTILE, "--step", "90", "--expect", "lower")
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
