"""The server's own first view of an incident, and what can be done from it without scripts."""

from __future__ import annotations

import base64
import re
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sql

from spikeguard_protocol import AttemptEnded, Role
from tests.server.face.test_decisions import KEY, browser, confirm_page
from tests.server.face.test_judgements import approve, roll_back
from tests.server.face.test_links import linked
from tests.server.notify.listener import listening

if TYPE_CHECKING:
    import httpx

    from tests.server.face.conftest import Job, Live

AGAIN = '<meta http-equiv="refresh"'
MOST_BYTES = 400_000
CURVE = re.compile(r'src="data:image/svg\+xml;base64,([^"]+)"')


def first_view(job: Job, number: int = 1) -> str:
    return f"/incident/{job.project}/{job.run}/{number}"


def silences(client: httpx.Client, job: Job) -> list[dict[str, Any]]:
    found = client.get("/v1/silences").json()["items"]
    return [entry for entry in found if entry["run"] == job.run]


@pytest.mark.slow
def test_the_first_view_says_what_the_message_says_with_the_curve_and_is_small(
    live: Live, job: Job
) -> None:
    with listening() as listener:
        linked(live, job, listener)
        told = listener.received[-1].json()
    job.train(20, excess=3.0)
    path = told["links"]["Open"].removeprefix(live.url)
    assert path == first_view(job)
    with live.person("Ada") as ada, browser(live, ada) as page:
        answer = page.get(path)
        also = page.get(confirm_page(job, job.incident()["proposal"]))
    text = unescape(answer.text)
    assert len(answer.content) < MOST_BYTES
    assert "<script" not in text
    assert "<title>(1) " in text
    assert AGAIN in text
    happened, _, cause, proposed, *_ = told["text"].splitlines()
    assert proposed.startswith("Proposed: roll back to step 300")
    for line in (happened, cause, proposed.partition(" Costs")[0], "Can wait "):
        assert line in text, line
        assert line in unescape(also.text), line
    [picture] = CURVE.findall(text)
    assert b"earlier trend" in base64.b64decode(picture)


def test_a_snooze_from_the_page_silences_the_incident_once_and_decides_nothing(
    live: Live, job: Job
) -> None:
    proposal = job.spike().incident()["proposal"]
    with live.person("Ada") as ada, browser(live, ada) as page:
        for path in (first_view(job), confirm_page(job, proposal)):
            (key,) = KEY.findall(page.get(path).text)
            form = {"key": key, "revision": proposal["revision"], "verdict": "snooze"}
            assert page.post(path, data=form).status_code == 303
            assert "Snoozed for 15.0 min more" in page.get(path).text
        assert page.post(first_view(job), data={**form, "key": "0" * 64}).status_code == 403
        (made,) = silences(ada, job)
    assert (made["incident"], made["created_by"]) == (1, "Ada")
    assert job.incident()["proposal"]["state"] == "proposed"


def test_who_may_not_decide_sees_everything_and_no_button(live: Live, spiked: Job) -> None:
    with live.browser(live.tokens[Role.VIEWER]) as page:
        text = page.get(first_view(spiked)).text
    assert "Act or wait" in text
    assert "An operator or an admin decides." in text
    assert "<button" not in text
    assert "/confirm/" not in text


def test_a_link_snoozes_without_being_spent(live: Live, job: Job) -> None:
    with listening() as listener, live.client() as anybody:
        path = linked(live, job, listener)
        assert anybody.post(path, data={"verdict": "snooze", "name": "Ada"}).status_code == 303
        assert "Snoozed for" in anybody.get(path).text
        assert job.incident()["proposal"]["state"] == "proposed"
        assert anybody.post(path, data={"verdict": "approve", "name": "Ada"}).status_code == 303
        assert anybody.post(path, data={"verdict": "snooze", "name": "Ada"}).status_code == 409


def test_the_page_of_a_decision_follows_the_command_until_it_is_judged(
    live: Live, job: Job
) -> None:
    path = confirm_page(job, job.spike().incident()["proposal"])
    with live.person("Ada") as ada, browser(live, ada) as page:
        assert AGAIN not in page.get(path).text  # somebody may be typing
        command = approve(job)
        assert AGAIN in page.get(path).text
        roll_back(job, command, 420)
        assert AGAIN in page.get(path).text
        job.send(AttemptEnded("finished"))
        over = page.get(path).text
        assert AGAIN not in over
        assert "Applied at step" in over
        at_last = page.get(first_view(job)).text
        job.reported()
        written = ada.get(f"{job.path}/incidents/1/postmortem", params={"format": "json"}).json()
    assert AGAIN not in at_last
    assert f"Lost: {written['cost']['steps_lost']:,} steps (" in at_last
    assert "rollback to step 300" in base64.b64decode(CURVE.findall(at_last)[0]).decode()


def test_a_run_that_fell_silent_says_that_what_is_shown_is_old_and_that_no_order_reaches_it(
    live: Live, job: Job
) -> None:
    job.spike()
    adds, unknown = "more steps lost each minute", "How many steps each"
    with live.person("Ada") as ada, browser(live, ada) as page:
        decision = confirm_page(job, job.incident()["proposal"])
        shown, asked = page.get(first_view(job)).text, page.get(decision).text
        assert "out of date" not in shown
        assert "at its next step boundary" in asked
        assert (adds in shown, unknown in shown) == (True, False)
        assert re.search(
            r"Loss expected: at step \d+ about [\d.]+ at most, ", shown
        )  # if one waits
        with live.engine.begin() as connection:
            old = "update runs set last_message_at = now() - interval '1 hour' where name = :run"
            connection.execute(sql.text(old), {"run": job.run})
        shown, asked = page.get(first_view(job)).text, page.get(decision).text
        assert "No order reaches its job" in page.get(f"/act/{job.project}/{job.run}").text
    assert (adds in shown, unknown in shown) == (False, True)
    for text in (shown, asked):
        assert "out of date, and no order reaches its job before it sends again" in text
    assert "only if it sends again in time" in asked


def test_a_target_from_before_the_spike_says_why_it_is_pending_and_the_proposed_one_is_marked(
    live: Live, job: Job
) -> None:
    job.spike()
    text = unescape(re.sub("<[^>]+>", "", checkpoints(live, job)))
    assert job.incident()["onset_step"] == 401
    assert "after step 400: pending the spike began 1 step after it" in text
    assert "after step 300: healthy proposed kept for a decision" in text
    assert text.count("proposed") == text.count("after it") == 1


def checkpoints(live: Live, job: Job) -> str:
    with live.person("Ada") as ada, browser(live, ada) as page:
        return page.get(first_view(job)).text.partition("Checkpoints, the newest first")[2]
