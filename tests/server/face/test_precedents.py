"""How earlier incidents of the same kind and cause ended, where somebody decides."""

from __future__ import annotations

from html import unescape

from spikeguard_protocol import AttemptEnded, IncidentId, RunId
from tests.server.face.conftest import Job, Live, Typed, client_of
from tests.server.face.test_judgements import approve, roll_back


def spike(live: Live, project: str, run: str) -> Job:
    return Job(live, run, project=project).start().spike()


def test_what_was_done_about_earlier_ones_is_told_with_what_it_came_to(
    live: Live, project: str, typed: Typed
) -> None:
    cured, left = spike(live, project, "cured"), spike(live, project, "left")
    assert cured.incident()["precedents"] == []  # the first of its kind
    roll_back(cured, approve(cured), 700)
    assert cured.incident()["outcome"] == "recovered"
    left.send(AttemptEnded("finished"))
    elsewhere = spike(live, f"{project}-b", "other")
    elsewhere.send(AttemptEnded("finished"))
    job, client = spike(live, project, "now"), client_of(live, project)
    id = IncidentId(RunId(project, "now"), 1)
    before = client.incident(id)["precedents"]
    assert {t["verb"]: t["words"] for t in before} == {
        "rollback": "rolled back once: recovered",
        None: "waited once: still open when the run ended",
    }
    with live.browser(live.operator(project)) as page:
        text = unescape(page.get(f"/incident/{project}/now/1").text)
    acting, waiting = text.split("<h3>Act now</h3>")[1].split("<h3>Wait</h3>")
    assert "Before: rolled back once: recovered" in acting
    assert "Before: waited once: still open when the run ended" in waiting
    said = " ".join(typed("show", str(id)).split())
    assert "before rolled back once: recovered" in said
    assert job.incident()["proposal"] is not None
