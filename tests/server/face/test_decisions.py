"""A person decides on a page of the server's own, or by the API, in his own name and once."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import httpx
import pytest
import sqlalchemy as sql

from spikeguard_protocol import AttemptEnded, Role
from tests.server.face.conftest import Job, Live
from tests.server.face.test_judgements import approve, roll_back
from tests.server.face.test_links import linked
from tests.server.notify.listener import listening

KEY = re.compile(r'name="key" value="([0-9a-f]+)"')


@pytest.fixture
def proposed(job: Job) -> dict[str, Any]:
    """A rollback that waits for a person."""
    proposal: dict[str, Any] = job.spike().incident()["proposal"]
    assert proposal["verb"] == "rollback"
    return proposal


def confirm_page(job: Job, command: dict[str, Any]) -> str:
    number = command["incident"].rpartition("#")[2]
    return f"/confirm/{job.project}/{job.run}/{number}/{command['number']}"


def browser(live: Live, person: httpx.Client) -> httpx.Client:
    """A browser in which `person` is logged in."""
    return live.browser(person.headers["authorization"].removeprefix("Bearer "))


def state_of(job: Job, command: dict[str, Any]) -> dict[str, Any]:
    """The command as it stands now."""
    found: list[dict[str, Any]] = job.incident()["commands"]
    return next(entry for entry in found if entry["id"] == command["id"])


def test_an_approval_carries_the_name_and_becomes_an_order(
    live: Live, job: Job, proposed: dict[str, Any]
) -> None:
    with live.person("Ada Lovelace") as ada:
        answer = ada.post(
            f"{job.command_path(proposed)}/approve", json={"revision": proposed["revision"]}
        )
        audit = ada.get(f"{job.path}/audit").json()["items"]
    assert answer.status_code == 200, answer.text
    assert (answer.json()["state"], answer.json()["decided_by"]) == ("approved", "Ada Lovelace")
    assert "Ada Lovelace" in {entry["actor"] for entry in audit}
    assert [order.command for order in job.send().orders if "Rollback" in str(order)] == [
        proposed["id"]
    ]


def test_a_rejection_keeps_its_reason_and_orders_nothing(
    live: Live, job: Job, proposed: dict[str, Any]
) -> None:
    reason = "the new shard began here on purpose"
    with live.person("Ada") as ada:
        body = {"revision": proposed["revision"], "reason": reason}
        answer = ada.post(f"{job.command_path(proposed)}/reject", json=body).json()
        audit = ada.get(f"{job.path}/audit").json()["items"]
    [entry] = [entry for entry in audit if entry["action"] == "reject"]
    assert entry["reason"] == f"{reason} (by the API from 127.0.0.1)"
    assert (answer["state"], answer["decision_reason"]) == ("rejected", reason)
    assert all("Rollback" not in str(order) for order in job.send().orders)


def test_an_approval_of_what_was_not_seen_is_answered_with_what_there_is(
    live: Live, job: Job, proposed: dict[str, Any]
) -> None:
    with live.person("Ada") as ada:
        body = {"revision": proposed["revision"] + 5}
        answer = ada.post(f"{job.command_path(proposed)}/approve", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (409, "revision_changed")
    assert error["current"]["id"] == proposed["id"]
    assert error["current"]["cost"]["steps"] > 0
    assert state_of(job, proposed)["state"] == "proposed"


def test_the_page_says_look_at_the_job_where_it_died_and_no_cost_of_what_was_not_done(
    live: Live, job: Job, proposed: dict[str, Any]
) -> None:
    job.send(AttemptEnded("RuntimeError"))
    with live.person("Ada") as ada, browser(live, ada) as page:
        text = page.get(confirm_page(job, proposed)).text
        first_view = page.get(f"/incident/{job.project}/{job.run}/1").text
    assert "Nothing trains, so nothing can be ordered until the job is started again." in first_view
    assert "/act/" not in first_view + text
    assert "Look at the job: attempt 1 ended: RuntimeError." in text
    assert "Nothing was done." in text
    assert "steps lost" not in text


def test_looking_at_the_page_decides_nothing(live: Live, spiked: Job) -> None:
    command = spiked.incident()["proposal"]
    with live.person("Ada") as ada, browser(live, ada) as page:
        for _ in range(3):
            answer = page.get(confirm_page(spiked, command))
            assert answer.status_code == 200
        assert "Roll back to step" in answer.text
        assert "steps lost" in answer.text
        found = spiked.incident()
        assert f"{found['summary']}." in answer.text
        assert f"{found['kind'].capitalize()} ({found['confidence']:.0%}): " in answer.text
        assert "Why, as seen when it was proposed" in answer.text
        assert page.head(confirm_page(spiked, command)).status_code == 405
    assert state_of(spiked, command)["state"] == "proposed"


def test_a_price_has_its_currency_and_the_kill_switch_is_said_on_the_page(
    live: Live, new_job: Callable[[str], Job]
) -> None:
    spiked = new_job("priced").spike()
    command, policy = spiked.incident()["proposal"], f"{spiked.path}/policy"
    switch = {"project": spiked.project, "reason": "a bad checkpoint went round"}
    with live.person("Root", Role.ADMIN) as root, browser(live, root) as page:
        assert command["cost"]["currency"] is None
        assert "kill switch" not in page.get(confirm_page(spiked, command)).text
        priced = {"policy": {"price_per_hour": 98.0, "currency": "EUR"}}
        assert root.put(policy, json=priced).status_code == 200
        assert root.post("/v1/policy/halt", json=switch).status_code == 200
        try:
            cost = spiked.incident()["proposal"]["cost"]
            shown = page.get(confirm_page(spiked, command)).text
            (form_key,) = KEY.findall(shown)
            form = {"key": form_key, "revision": command["revision"], "verdict": "approve"}
            refused = page.post(confirm_page(spiked, command), data=form).text
        finally:
            assert root.post("/v1/policy/resume", json=switch).status_code == 200
            assert root.delete(policy).status_code == 200
    assert (cost["money"] > 0, cost["currency"]) == (True, "EUR")
    assert f"{cost['money']:.2f} EUR" in shown
    assert "The kill switch of the project is on." in shown
    assert "lifts it with <code>spikeguard policy resume</code>" in refused


def test_the_page_approves_in_the_name_of_whoever_looks_and_takes_it_back_until_it_is_fetched(
    live: Live, job: Job, proposed: dict[str, Any]
) -> None:
    with live.person("Grace Hopper") as grace, browser(live, grace) as page:
        path = confirm_page(job, proposed)
        (key,) = KEY.findall(page.get(path).text)
        form = {"key": key, "revision": proposed["revision"], "verdict": "approve"}
        done = page.post(path, data=form)
        assert (done.status_code, done.headers["location"]) == (303, path)
        assert "Approved by Grace Hopper" in page.get(path).text
        again = page.post(path, data=form)
        assert again.status_code == 409
        assert "Nothing is left to decide" in again.text
        assert state_of(job, proposed)["decided_by"] == "Grace Hopper"
        writing = page.get(path, params={"write": True}).text
        assert ("Take it back, because" in writing, AGAIN in writing) == (True, False)
        page.post(path, data={**form, "verdict": "reject", "reason": "the wrong one"})
        assert "“the wrong one”" in page.get(path).text
    assert state_of(job, proposed)["state"] == "rejected"


def test_the_page_rejects_with_a_reason_and_shows_it_escaped(
    live: Live, job: Job, proposed: dict[str, Any]
) -> None:
    with live.person("<b>Ada</b>") as ada, browser(live, ada) as page:
        path = confirm_page(job, proposed)
        (key,) = KEY.findall(page.get(path).text)
        form = {"key": key, "revision": proposed["revision"], "verdict": "reject"}
        silent = page.post(path, data=form)
        assert silent.status_code == 422
        assert "needs a reason" in silent.text
        page.post(path, data={**form, "reason": "<script>alert(1)</script>"})
        shown = page.get(path).text
    assert "<script" not in shown
    assert "<b>Ada" not in shown
    assert "&lt;script&gt;" in shown
    assert state_of(job, proposed)["state"] == "rejected"


@pytest.mark.parametrize("key", ["", "0" * 64])
def test_a_form_from_elsewhere_decides_nothing(live: Live, spiked: Job, key: str) -> None:
    command = spiked.incident()["proposal"]
    with live.person("Ada") as ada, browser(live, ada) as page:
        form = {"key": key, "revision": command["revision"], "verdict": "approve"}
        answer = page.post(confirm_page(spiked, command), data=form)
    assert answer.status_code == 403
    assert state_of(spiked, command)["state"] == "proposed"


def test_the_key_of_one_persons_page_is_no_good_to_another(live: Live, spiked: Job) -> None:
    command = spiked.incident()["proposal"]
    path = confirm_page(spiked, command)
    with live.person("Ada") as ada, browser(live, ada) as page:
        (key,) = KEY.findall(page.get(path).text)
    with live.person("Mallory") as mallory, browser(live, mallory) as page:
        form = {"key": key, "revision": command["revision"], "verdict": "approve"}
        assert page.post(path, data=form).status_code == 403


def test_a_viewer_is_shown_why_they_may_not_decide(live: Live, spiked: Job) -> None:
    command = spiked.incident()["proposal"]
    with live.person("Vi", Role.VIEWER) as viewer, browser(live, viewer) as page:
        answer = page.get(confirm_page(spiked, command))
    assert answer.status_code == 403
    assert "text/html" in answer.headers["content-type"]
    assert "role viewer may not" in answer.text


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
        assert re.search(r"Loss expected: [\d.]+ .*above trend, as now, or less", shown)
        assert "Loss expected: on its trend" in shown
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
