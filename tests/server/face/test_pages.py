"""The login page, and what every page carries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httpx
import pytest

from spikeguard_protocol import Role
from spikeguard_server.http.routes.pages import safe_next
from spikeguard_server.settings import Settings

if TYPE_CHECKING:
    from tests.server.face.conftest import Live

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
