"""The server's own pages: the login, what every page carries, and what waits across runs."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import httpx
import pytest

from spikeguard_protocol import AttemptEnded, CommandResult, ResultState, Role
from spikeguard_server.access.grants import Grant
from spikeguard_server.http.routes.pages import safe_next
from spikeguard_server.settings import Settings
from tests.server.face.conftest import Job, Live, client_of
from tests.server.face.test_responses import HOSTILE

SESSION = "spikeguard_session"


def log_in(client: httpx.Client, token: str, name: str, path: str = "") -> httpx.Response:
    """As a person does: look at the page, fill in the form, send it."""
    assert client.get("/login", params={"next": path}).status_code == 200
    return client.post("/login", data={"next": path, "token": token, "name": name})


def test_logging_in_sets_a_cookie_that_no_script_can_read(live: Live) -> None:
    with live.client() as client:
        answer = log_in(client, live.tokens[Role.OPERATOR], "Ada Lovelace")
        cookie = next(c for c in answer.headers.get_list("set-cookie") if c.startswith(SESSION))
        assert answer.status_code == 303
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert "Secure" not in cookie  # the public address of this server is plain http
        assert "Ada Lovelace" in client.get("/login").text


def test_logging_in_goes_on_to_where_the_person_came_from(live: Live) -> None:
    with live.client() as client:
        path = "/confirm/default/spiked/1/2"
        answer = log_in(client, live.tokens[Role.OPERATOR], "Ada", path)
        assert answer.headers["location"] == path


@pytest.mark.parametrize(
    "path",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/x"],
)
def test_logging_in_never_leads_away_from_us(live: Live, path: str) -> None:
    with live.client() as client:
        answer = log_in(client, live.tokens[Role.OPERATOR], "Ada", path)
        assert answer.headers["location"] == "/login"


def test_the_dashboard_is_a_place_to_go_on_to() -> None:
    settings = Settings(dashboard_url="http://127.0.0.1:8501")
    assert safe_next(settings, "http://127.0.0.1:8501/run?x=1") == "http://127.0.0.1:8501/run?x=1"
    assert safe_next(settings, "http://127.0.0.1:8501@evil.example/") == "/login"


def test_a_wrong_token_is_told_on_the_page_and_the_name_is_kept(live: Live) -> None:
    with live.client() as client:
        answer = log_in(client, "x" * 43, "Ada <Lovelace>")
    assert answer.status_code == 401
    assert "unknown, expired or revoked" in answer.text
    assert "Ada &lt;Lovelace&gt;" in answer.text
    assert SESSION not in answer.headers.get("set-cookie", "")


KEY = re.compile(r'name="key" value="([0-9a-f]+)"')
ELSEWHERE = (
    {"Origin": "https://evil.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Origin": "null"},
)


@pytest.mark.parametrize("headers", ELSEWHERE)
def test_a_login_form_from_elsewhere_logs_nobody_in(live: Live, headers: dict[str, str]) -> None:
    form = {"token": live.tokens[Role.OPERATOR], "name": "Mallory"}
    with live.client() as client:
        refused = client.post("/login", data=form, headers=headers)
        assert (refused.status_code, SESSION in str(refused.headers)) == (403, False)
        assert client.get("/inbox").status_code == 303
        own = {"Origin": str(client.base_url).rstrip("/")}
        assert client.post("/login", data=form, headers=own).status_code == 303


def test_logging_out_ends_the_session_and_not_only_the_cookie(live: Live) -> None:
    with live.client() as client:
        log_in(client, live.tokens[Role.OPERATOR], "Ada")
        kept = dict(client.cookies)
        assert client.post("/logout").status_code == 303
        assert SESSION not in client.cookies
    with live.client() as late:
        late.cookies.update(kept)
        assert late.get("/inbox").status_code == 303


@pytest.mark.parametrize("path", ["/login", "/v1/me", "/healthz", "/none", "/pages/style.css"])
def test_every_answer_carries_the_headers_of_a_careful_service(live: Live, path: str) -> None:
    with live.client() as client:
        headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    referrer = "same-origin" if path == "/login" else "no-referrer"  # its forms say where they are
    assert headers["referrer-policy"] == referrer
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert policy.endswith("form-action 'self' http://127.0.0.1:8501")
    assert "script-src" not in policy
    assert "unsafe" not in policy


def test_no_page_holds_a_script_or_a_style_of_its_own(live: Live) -> None:
    with live.client() as client:
        text = client.get("/login").text
    assert not re.search(r"<script|<style|\son\w+=|\sstyle=", text)


@pytest.mark.parametrize("headers", ELSEWHERE)
def test_another_sites_page_logs_nobody_out(live: Live, headers: dict[str, str]) -> None:
    with live.browser(live.session("Ada")) as page:
        refused = page.post("/logout", headers=headers)
        assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
        assert page.get("/inbox").status_code == 200
        own = {"Origin": "null", "Sec-Fetch-Site": "same-origin"}  # of a page without a referrer
        assert page.post("/logout", headers=own).status_code == 303


CARD = re.compile(
    r'<span class="badge[^"]*">([^<]+)</span> .*\n<p class="act">(?:<a[^>]*>)?([^<]+)<'
)


def browser(live: Live, project: str, role: Role = Role.OPERATOR, person: str = "Ada") -> Any:
    """A browser in which somebody of `project` is signed in."""
    return live.browser(live.token(Grant(role, project, person=person)))


def waiting(live: Live, project: str, person: str = "Ada") -> list[tuple[str, str]]:
    """(what for, title) of everything that waits for somebody of that project."""
    with browser(live, project, person=person) as page:
        return [(waits, unescape(title)) for waits, title in CARD.findall(page.get("/inbox").text)]


def test_a_proposal_waits_once_with_its_price_and_deadline_until_it_is_decided(
    live: Live, project: str, spiking: Job
) -> None:
    ada = client_of(live, project)
    ada.assign(spiking.incident_id, "Ada")
    [(waits, title)] = waiting(live, project)
    assert (waits, title.startswith(f"{project}/gpt#1: decide: roll back to step 300")) == (
        "decision", True,
    )  # fmt: skip
    with browser(live, project) as page:
        text = page.get("/inbox").text
    assert re.search(r"Costs <b>[1-9]\d*</b> steps", text)
    assert re.search(r"Can wait <b>[\d.]+ \w+</b>; then nothing is done", text)
    assert "It is assigned to Ada." in text
    ada.approve(*spiking.offer())
    assert waiting(live, project) == [("yours", f"{project}/gpt#1: yours: lingering spike")]


def test_a_command_that_failed_waits_until_something_else_is_proposed(
    live: Live, project: str, spiking: Job
) -> None:
    ada = client_of(live, project)
    proposals = 0
    while proposal := spiking.incident()["proposal"]:
        assert proposals < 10
        assert [waits for waits, _ in waiting(live, project)] == ["decision"]
        ada.approve(*spiking.offer())
        spiking.train(1, excess=3.0)
        failed = CommandResult(proposal["id"], ResultState.FAILED, "no such file", spiking.step)
        spiking.send(failed)
        proposals, last = proposals + 1, proposal["id"]
    assert proposals > 1
    [(waits, title)] = waiting(live, project)
    assert (waits, title.partition(":")[0]) == ("failed command", last)
    assert "failed in the job: " in title
    with browser(live, project) as page:
        assert "No such file." in page.get("/inbox").text
    spiking.send(AttemptEnded("finished"))
    assert waiting(live, project) == []


def test_an_open_incident_waits_until_somebody_looks_at_it_or_it_closes(
    live: Live, project: str, spiking: Job
) -> None:
    ada = client_of(live, project)
    ada.reject(*spiking.offer(), "we wait")
    assert [waits for waits, _ in waiting(live, project)] == ["not acknowledged"]
    ada.acknowledge(spiking.incident_id)
    assert waiting(live, project) == []
    ada.assign(spiking.incident_id, "bob")
    assert waiting(live, project) == []
    assert [waits for waits, _ in waiting(live, project, "Bob")] == ["yours"]
    spiking.send(AttemptEnded("finished"))
    assert waiting(live, project, "Bob") == []


def test_a_switch_that_is_on_stands_with_who_threw_it_and_why_above_what_waits(
    live: Live, project: str, spiking: Job
) -> None:
    del spiking
    ada = client_of(live, project)
    ada.halt(project, "a bad checkpoint went round")
    with live.person("Eve", Role.ADMIN) as eve:
        wanted = {"project": project, "policy": {"price_per_hour": 5.0}}
        assert eve.put("/v1/policy", json=wanted).status_code == 200
    with browser(live, project) as page:
        text = page.get("/inbox").text
    assert re.search(r"Ada threw it at [\d-]+ [\d:]+ UTC: “a bad checkpoint went round”", text)
    assert [waits for waits, _ in waiting(live, project)] == ["decision"]


def test_nobody_sees_what_waits_in_a_project_that_is_not_theirs(
    live: Live, project: str, spiking: Job
) -> None:
    del spiking
    assert waiting(live, "elsewhere") == []
    with live.browser(live.token(Grant(Role.VIEWER))) as everywhere:
        assert f"{project}/gpt#1: decide" in everywhere.get("/inbox").text


def test_the_page_leads_to_first_views_and_decisions(
    live: Live, project: str, spiking: Job
) -> None:
    incident = spiking.incident_id
    client_of(live, project).acknowledge(incident)
    with browser(live, project) as page:
        assert page.get("/").headers["location"] == "/inbox"
        text = page.get("/inbox").text
        assert f'href="/incident/{project}/gpt/1"' in text
        number = spiking.offer()[0].number
        assert f'href="/confirm/{project}/gpt/1/{number}"' in text
        assert "Ada looks at it." in text
        assert "<script" not in text
    with browser(live, project, Role.VIEWER) as page:
        text = page.get("/inbox").text
        assert "/confirm/" not in text
        assert "Throw or lift it" not in text
    with live.client() as anybody:
        assert anybody.get("/inbox").headers["location"] == "/login?next=/inbox"
        assert anybody.get("/").headers["location"] == "/login"


def test_the_switch_is_thrown_from_the_page_and_lifted_by_an_admin(
    live: Live, project: str, spiking: Job
) -> None:
    del spiking
    with browser(live, project) as page:
        assert 'http-equiv="refresh"' in page.get("/inbox").text
        writing = page.get("/inbox?write=true").text
        assert 'http-equiv="refresh"' not in writing
        (key,) = KEY.findall(writing)
        form = {"key": key, "project": project, "reason": HOSTILE, "verdict": "halt"}
        for wrong, status in (
            ({"reason": " "}, 422), ({"project": "../x"}, 422), ({"project": "other"}, 403),
            ({"key": "0" * 64}, 403), ({"verdict": "dance"}, 422), ({"verdict": "resume"}, 403),
        ):  # fmt: skip
            assert page.post("/inbox", data={**form, **wrong}).status_code == status, wrong
        assert page.post("/inbox", data=form).status_code == 303
        text = page.get("/inbox").text
        assert "is on: nothing can be approved" in text
        assert "Ada threw it at" in text
        assert "<script" not in text
        assert "DROP" in unescape(text)
        assert page.post("/inbox", data=form).status_code == 409
    with browser(live, project, Role.ADMIN) as page:
        (key,) = KEY.findall(page.get("/inbox?write=true").text)
        lifted = {"key": key, "project": project, "reason": "found it", "verdict": "resume"}
        assert page.post("/inbox", data=lifted).status_code == 303
        assert "is on: nothing" not in page.get("/inbox").text
