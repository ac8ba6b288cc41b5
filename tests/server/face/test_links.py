"""Links that decide on one proposal, once, and links that sign a browser in, once and soon."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import sqlalchemy as sql

from spikeguard_protocol import Role
from spikeguard_server.access.grants import Grant
from spikeguard_server.store.tables.core import tokens
from tests.server.face.conftest import Job, Live
from tests.server.face.serving import bearer_of
from tests.server.notify.listener import Listener

LABEL = "Decide without signing in"
SECRET = "a secret of more than sixteen signs"


def linked(live: Live, job: Job, listener: Listener, **rules: Any) -> str:
    """The path of the link in the message that tells the job's proposal."""
    target = {"url": f"{listener.url}/hook", "secret": SECRET}
    body = {"kind": "webhook", "target": target, "runs": [job.run], "links": True, **rules}
    with live.client(Role.ADMIN) as admin:
        assert admin.put(f"/v1/channels/default/to-{job.run}", json=body).status_code == 200
    job.spike()
    shown = job.incident()["proposal"]

    def told(messages: list[Any]) -> bool:
        proposals = [m["incident"]["proposal"] for m in messages if m["incident"]]
        return any(
            p and (p["command"], p["revision"]) == (shown["id"], shown["revision"])
            for p in proposals
        )

    listener.wait_for(told)
    link: str = listener.received[-1].json()["links"][LABEL]
    assert link.startswith(live.url)
    return link.removeprefix(live.url)


def command_of(job: Job) -> dict[str, Any]:
    found: list[dict[str, Any]] = job.incident()["commands"]
    return next(entry for entry in reversed(found) if entry["verb"] == "rollback")


def test_a_link_leads_to_a_page_and_looking_changes_nothing(
    live: Live, job: Job, listener: Listener
) -> None:
    path = linked(live, job, listener)
    with live.client() as anybody:
        pages = [anybody.get(path) for _ in range(3)]
        assert {page.status_code for page in pages} == {200}
        assert "Your name" in pages[0].text
        assert "Approve" in pages[0].text
        assert pages[0].headers["referrer-policy"] == "no-referrer"
        assert command_of(job)["state"] == "proposed"
        nameless = anybody.post(path, data={"verdict": "approve"})
        assert nameless.status_code == 422
        assert command_of(job)["state"] == "proposed"
        done = anybody.post(path, data={"verdict": "approve", "name": "Ada <b>"})
        assert done.status_code == 303
        assert (command_of(job)["state"], command_of(job)["decided_by"]) == (
            "approved",
            "Ada <b> (by a link)",
        )
        assert "Approved by Ada &lt;b&gt;" in anybody.get(path).text
        again = anybody.post(path, data={"verdict": "reject", "reason": "no", "name": "Eve"})
        assert again.status_code == 409
        assert "used by Ada" in again.text
    with live.client(Role.VIEWER) as viewer:
        audit = viewer.get(f"{job.path}/audit").json()["items"]
    [entry] = [entry for entry in audit if entry["action"] == "approve" and "Ada" in entry["actor"]]
    assert f"by a link of channel to-{job.run} from 127.0.0.1" in entry["reason"]


def test_who_is_signed_in_decides_in_their_own_name(
    live: Live, job: Job, listener: Listener
) -> None:
    path = linked(live, job, listener, person="Grace Hopper")
    with live.browser(live.session("Ada")) as browser:
        shown = browser.get(path).text
        assert "the name of <b>Ada</b>" in shown
        form = {"verdict": "reject", "reason": "we wait"}
        for foreign in ({}, {"key": "0" * 64}):  # as another page of the host would send it
            assert browser.post(path, data=form | foreign).status_code == 403
        assert command_of(job)["state"] == "proposed"
        form["key"] = re.findall(r'name="key" value="([0-9a-f]+)"', shown)[0]
        assert browser.post(path, data=form).status_code == 303
    assert (command_of(job)["state"], command_of(job)["decided_by"]) == ("rejected", "Ada")


def test_a_channel_that_asks_for_no_links_gets_none(
    live: Live, job: Job, listener: Listener
) -> None:
    with pytest.raises(KeyError):
        linked(live, job, listener, links=False)


def test_a_link_that_was_changed_is_worth_nothing(
    live: Live, job: Job, new_job: Callable[[str], Job], listener: Listener
) -> None:
    another = new_job("of-another-link")
    path = linked(live, job, listener)
    run, _, secret = path.removeprefix("/approve/").partition("-")
    other = linked(live, another, listener).removeprefix("/approve/").partition("-")
    for changed in (
        f"{run}-{secret[:-1]}{'b' if secret[-1] == 'a' else 'a'}",
        f"{run}-{secret[:-1]}",
        f"{run}-{other[2]}",
        f"{other[0]}-{secret}",
        f"{run}{secret}",
    ):
        yes = {"verdict": "approve", "name": "Eve"}
        with live.client() as anybody:
            refused = anybody.post(f"/approve/{changed}", data=yes)
        assert (refused.status_code, "not made by this server" in refused.text) == (403, True)
    assert command_of(job)["state"] == command_of(another)["state"] == "proposed"


def test_of_a_link_the_database_holds_no_more_than_a_hash(
    live: Live, job: Job, listener: Listener
) -> None:
    secret = linked(live, job, listener).partition("-")[2]
    with live.engine.connect() as connection:
        rows = connection.execute(sql.text("select * from approval_links")).all()
    assert rows
    assert secret not in str(rows)


def test_a_link_ends_with_its_time(live: Live, job: Job, listener: Listener) -> None:
    path = linked(live, job, listener)
    with live.engine.begin() as connection:
        past = "update approval_links set expires_at = now() - interval '1 second'"
        connection.execute(sql.text(past))
    with live.client() as anybody:
        for answer in (anybody.get(path), anybody.post(path, data={"verdict": "approve"})):
            assert (answer.status_code, "has expired" in answer.text) == (403, True)
    assert command_of(job)["state"] == "proposed"


@pytest.mark.parametrize("text", ["x" * 40, "é" * 30, "a.b" * 20, ".." * 20])
def test_a_guessed_link_shows_a_calm_page(live: Live, text: str) -> None:
    with live.client() as anybody:
        for answer in (anybody.get(f"/approve/{text}"), anybody.post(f"/approve/{text}")):
            assert answer.status_code == 403
            assert "not made by this server" in answer.text


COOKIE = "spikeguard_session"


def made(live: Live, name: str = "Ada", *, next: str = "", role: Role = Role.OPERATOR) -> str:
    """The path of a new link, with its query."""
    with live.person(name, role) as client:
        answer = client.post("/v1/sessions/links", json={"next": next})
    assert answer.status_code == 201, answer.text
    assert answer.json()["link"].startswith(live.url)
    parts = urlsplit(answer.json()["link"])
    return f"{parts.path}?{parts.query}"


def spend(live: Live, path: str, **headers: str) -> httpx.Response:
    with live.client() as client:
        return client.post(path, headers=headers)


def test_looking_at_a_link_spends_nothing_and_using_it_signs_in_once(live: Live) -> None:
    path = made(live)
    with live.client() as browser:
        for _ in range(3):
            shown = browser.get(path)
            assert shown.status_code == 200
            assert "Sign in as Ada" in shown.text
            assert COOKIE not in browser.cookies
        entered = browser.post(path)
        assert (entered.status_code, entered.headers["location"]) == (303, "/login")
        assert "as <b>Ada</b> (operator" in browser.get("/login").text
    again = spend(live, path)
    assert again.status_code == 403
    assert "used already" in again.text
    assert COOKIE not in again.cookies


def test_a_page_of_another_site_cannot_have_a_browser_sign_in_with_a_link_of_its_own(
    live: Live,
) -> None:
    path = made(live)
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"},
                    {"Origin": "null"}):  # fmt: skip
        refused = spend(live, path, **headers)
        assert refused.status_code == 403
        assert COOKIE not in refused.cookies
    assert spend(live, path, Origin=live.url).status_code == 303


def test_of_two_browsers_that_use_a_link_at_once_one_gets_in(live: Live) -> None:
    path = made(live)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: spend(live, path).status_code, range(8)))
    assert sorted(answers) == [303] + [403] * 7


def test_a_link_leads_on_to_the_page_of_a_command_and_nowhere_else(live: Live, spiked: Job) -> None:
    number = spiked.incident()["number"]
    page = f"/confirm/default/{spiked.run}/{number}/1"
    assert spend(live, made(live, next=page)).headers["location"] == page
    elsewhere = spend(live, made(live, next="https://elsewhere.example/x"))
    assert elsewhere.headers["location"] == "/login"


def test_a_link_is_void_after_its_time(live: Live) -> None:
    path = made(live, "Late")
    mine = (tokens.c.person == "Late", tokens.c.name == "sign-in link")
    with live.engine.begin() as connection:
        left = sql.func.extract("epoch", tokens.c.expires_at - sql.func.now())
        seconds = connection.execute(sql.select(left).where(*mine)).scalar_one()
        assert 0 < seconds <= 600
        past = sql.func.now() - sql.text("interval '1 second'")
        connection.execute(sql.update(tokens).where(*mine).values(expires_at=past))
    assert spend(live, path).status_code == 403


def test_a_link_does_not_outlive_the_login_that_made_it(live: Live) -> None:
    with live.person("Gone") as client:
        path = urlsplit(client.post("/v1/sessions/links", json={}).json()["link"]).path
        client.delete("/v1/sessions/current")
    assert spend(live, path).status_code == 403


def entered(live: Live, session: str) -> str:
    """The session of a browser that a link of `session` signed in."""
    with live.bearing(session) as client:
        path = urlsplit(client.post("/v1/sessions/links", json={}).json()["link"]).path
    return bearer_of(live.engine, spend(live, path).cookies[COOKIE])


def left_s(live: Live, bearer: str) -> float | None:
    """How long who bears it may still call; None if no longer."""
    with live.bearing(bearer) as client:
        answer = client.get("/v1/me")
    return None if answer.status_code == 401 else float(answer.json()["expires_in_s"])


def test_sessions_in_a_chain_of_links_end_with_the_first_and_with_the_token_behind_them(
    live: Live,
) -> None:
    token = live.token(Grant(Role.OPERATOR, person="Chained", expires_in_s=3600))
    with live.bearing(token) as client:
        first = client.post("/v1/sessions", json={"token": token, "name": ""}).json()["token"]
    second = entered(live, first)
    third = entered(live, second)
    lasts = [left_s(live, bearer) or 0.0 for bearer in (token, first, second, third)]
    assert all(3000 < left <= 3600 for left in lasts), lasts
    with live.engine.begin() as connection:
        mine = (tokens.c.person == "Chained", tokens.c.parent.is_(None))
        past = sql.func.now() - sql.text("interval '1 second'")
        connection.execute(sql.update(tokens).where(*mine).values(expires_at=past))
    assert [left_s(live, bearer) for bearer in (token, first, second, third)] == [None] * 4


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded"])
def test_a_link_that_came_through_a_proxy_is_refused_and_not_spent(live: Live, header: str) -> None:
    path = made(live)
    refused = spend(live, path, **{header: "203.0.113.9"})
    assert refused.status_code == 403
    assert "own machine" in refused.text
    assert spend(live, path).status_code == 303


def test_a_link_and_the_session_it_opened_stand_in_the_audit(live: Live) -> None:
    spend(live, made(live, "Audited"))
    with live.client(Role.ADMIN) as client:
        entries = client.get("/v1/audit", params={"limit": 50}).json()["items"]
    mine = [entry for entry in entries if entry["actor"] == "Audited"]
    opened = ["session.opened", "session.opened", "sign_in_link.made"]
    assert [entry["action"] for entry in mine[:3]] == opened
    assert "for the dashboard" in mine[0]["after"]
    assert "sign-in link" in mine[1]["after"]
