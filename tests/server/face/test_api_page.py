"""The page of the API: in a real browser, without internet, and without a call of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from tests.server.face.conftest import Live


@pytest.fixture(scope="module")
def opened(live: Live, browser: Any) -> Iterator[tuple[Any, list[str], list[str]]]:
    """The page, what it asked for, and what the browser refused or failed at."""
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    context.add_cookies([{"name": "spikeguard_session", "value": "x", "url": live.url}])
    asked: list[str] = []
    wrong: list[str] = []

    def own_host_only(route: Any) -> None:
        asked.append(route.request.url)
        if route.request.url.startswith(live.url):
            route.continue_()
        else:
            route.abort()

    context.route("**/*", own_host_only)
    page = context.new_page()
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(f"{live.url}/docs")
    page.get_by_text("/v1/runs", exact=True).first.wait_for()
    yield page, asked, wrong
    context.close()


def test_the_page_shows_every_call_that_the_server_takes(
    live: Live, opened: tuple[Any, list[str], list[str]]
) -> None:
    page, _, _ = opened
    paths = httpx.get(f"{live.url}/openapi.json", timeout=60).json()["paths"]
    assert page.locator(".opblock").count() == sum(len(calls) for calls in paths.values())


def test_the_page_asks_its_own_server_for_three_files_and_makes_no_call(
    live: Live, opened: tuple[Any, list[str], list[str]]
) -> None:
    """Neither by itself nor at a click: there is no button, and the browser would refuse one."""
    page, asked, wrong = opened
    files = ("", "/start.js", "/swagger-ui-bundle.js", "/swagger-ui.css")
    assert sorted(asked) == [f"{live.url}/docs{file}" for file in files]
    assert not wrong
    assert not page.locator(".try-out, .authorize, input[type=password]").count()
    refused = page.evaluate("fetch('/v1/me').then(() => 'sent', () => 'refused')")
    assert refused == "refused"


def test_the_page_lets_no_other_script_run(live: Live) -> None:
    headers = httpx.get(f"{live.url}/docs", timeout=30).headers
    policy = headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "connect-src" not in policy  # so default-src holds
    assert "default-src 'none'" in policy
    assert headers["x-frame-options"] == "DENY"


def test_a_file_that_the_page_does_not_load_is_not_there(live: Live) -> None:
    assert httpx.get(f"{live.url}/docs/redoc.standalone.js", timeout=30).status_code == 404
