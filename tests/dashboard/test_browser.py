"""The dashboard as a person has it: its own process, a real browser, real clicks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from benchmarks.http_server import free_port
from tests.dashboard.conftest import RUN
from tests.dashboard.recording_proxy import RecordingProxy

START_S, SHOW_MS = 120.0, 120_000
SETTLE_MS = 400  # from an answer to what the browser shows of it
PHONE = {"width": 390, "height": 844}
STARTING = {
    "code": "starting", "field": None, "message": "The server is starting", "remedy": "Wait",
}  # fmt: skip

pytestmark = pytest.mark.slow


@contextmanager
def dashboard(server: str, folder: Path, port: int) -> Iterator[str]:
    """The process that `spikeguard up` starts, ready to be looked at."""
    address = f"http://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "SPIKEGUARD_SERVER": server,
        "SPIKEGUARD_PUBLIC_URL": server,
        "SPIKEGUARD_DASHBOARD_REFRESH": "3",
        "HOME": str(folder),
    }
    command = [sys.executable, "-m", "spikeguard_dashboard", "--port", str(port)]
    process = subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL)
    try:
        wait_until_healthy(address, process)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=120)


def wait_until_healthy(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "the dashboard ended while starting"
        try:
            with urlopen(f"{address}/_stcore/health", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the dashboard was not healthy within {START_S} s")


@pytest.fixture(scope="module")
def address(proxy: RecordingProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("home")
    with dashboard(proxy.address, home, free_port()) as address:
        yield address


@pytest.fixture(scope="module")
def ada(browser: Any, address: str, proxy: RecordingProxy) -> Iterator[Any]:
    """The browser of somebody who has."""
    context = browser.new_context()
    value = {
        "name": "spikeguard_dashboard",
        "value": proxy.session,
        "url": address,
        "httpOnly": True,
    }
    context.add_cookies([value])
    yield context
    context.close()


@contextmanager
def opened(context: Any, url: str) -> Iterator[Any]:
    """A page, closed at the end so that it asks no more."""
    page = context.new_page()
    page.set_default_timeout(SHOW_MS)
    page.goto(url, wait_until="domcontentloaded")
    try:
        yield page
    finally:
        page.close()


def await_refreshes(page: Any, proxy: RecordingProxy, count: int) -> None:
    """Until the page has asked for something more often than `count` times, and shown it. Any
    page asks once for all that it shows, and the one before it may still do so."""
    before = Counter(proxy.asked)
    deadline = time.monotonic() + START_S
    while _most_often(Counter(proxy.asked) - before) <= count:
        assert time.monotonic() < deadline, "the page asks for nothing any more"
        page.wait_for_timeout(50)
    page.wait_for_timeout(SETTLE_MS)


def _most_often(asked: Counter[str]) -> int:
    """But for whose session it is, which the socket asks."""
    return max((often for path, often in asked.items() if path != "/v1/me"), default=0)


def fits_a_phone(page: Any) -> None:
    page.wait_for_timeout(SETTLE_MS)
    width = "document.querySelector('[data-testid=stMain]').scrollWidth"
    assert page.evaluate(width) <= PHONE["width"], page.url


def lose_the_first(page: Any, chunk: str, lost: list[str]) -> None:
    """The code of `chunk` cannot be fetched at first."""

    def route(asked: Any) -> None:
        if lost:
            asked.continue_()
        else:
            lost.append(asked.request.url)
            asked.abort()

    page.route(chunk, route)


def test_nothing_runs_out_of_a_phones_width(ada: Any, address: str, proxy: RecordingProxy) -> None:
    """From runs to an incident, and from there to the page that decides, by links in the dark.

    A chart whose code could not be fetched at first is asked for again. New data appears by
    itself; a refresh that brings nothing new redraws no curve: that is what flickers.
    """
    lost: list[str] = []
    with opened(ada, "about:blank") as page:
        page.set_viewport_size(PHONE)
        page.emulate_media(color_scheme="dark")
        page.goto(address)
        page.locator("[data-testid=stDataFrame]").first.wait_for()  # what asks again is there
        fits_a_phone(page)
        search = page.get_by_role("textbox", name="Search")
        search.fill("llama")
        search.press("Enter")
        page.wait_for_url("**/?search=llama")  # so that a list can be shared
        lose_the_first(page, "**/*VegaLite*.js", lost)
        page.get_by_role("link", name="llama-8b-c4#1", exact=True).click()
        page.wait_for_url("**/incident?run=default/llama-8b-c4&number=1")
        marks = page.locator("canvas.marks, svg.marks")
        marks.first.wait_for()
        assert lost
        page.get_by_role("link", name="llama-8b-c4", exact=True).click()
        page.wait_for_url("**/run?run=default/llama-8b-c4")
        marks.first.wait_for()
        fits_a_phone(page)
        page.get_by_role("link", name="incident 1 waiting for a decision").click()
        page.wait_for_url("**/incident?run=default/llama-8b-c4&number=1")
        page.get_by_text("The loss rose from 2.").first.wait_for()
        marks.nth(2).wait_for()
        fits_a_phone(page)
        decide = page.get_by_role("link", name="Look at it and decide")
        assert decide.bounding_box()["y"] < PHONE["height"]  # who is woken need not scroll
        stays_as_it_is_but_for_new_data(page, proxy)
        decide.click()
        page.wait_for_url("**/incident/default/llama-8b-c4/1")


def stays_as_it_is_but_for_new_data(page: Any, proxy: RecordingProxy) -> None:
    await_refreshes(page, proxy, 1)
    page.evaluate("document.querySelectorAll('.marks').forEach(mark => mark.dataset.same = 1)")
    before = page.locator("canvas.marks, svg.marks").count()
    await_refreshes(page, proxy, 1)
    assert page.locator(".marks[data-same]").count() == before > 0
    back = {"summary": "It is on its way back"}
    proxy.change(f"{RUN}/incidents/1", lambda incident: incident.update(back))
    page.get_by_text("it is on its way back").wait_for()
    assert page.locator(".marks[data-same]").count() == before


def test_an_outage_is_said_and_mends_itself_and_two_ticked_runs_are_compared(
    ada: Any, address: str, proxy: RecordingProxy
) -> None:
    """Under an address that says so. No usage statistics go anywhere, and no button offers to
    deploy."""
    asked: list[str] = []
    with opened(ada, "about:blank") as page:
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.get_by_text("Runs 1 to 3 of 3").wait_for()
        table = page.get_by_test_id("stDataFrame")
        table.wait_for()  # its answer has come: there is one to keep
        assert page.get_by_text("Deploy").count() == 0
        proxy.broken = 503, {"error": STARTING}
        page.get_by_text("The server is starting. What you see is").wait_for()
        page.get_by_text("Runs 1 to 3 of 3").wait_for()
        proxy.broken = None
        page.get_by_text("The server is starting").first.wait_for(state="detached")
        page.wait_for_timeout(SETTLE_MS)
        box = table.bounding_box()
        for row in (1, 2):
            page.mouse.click(box["x"] + 18, box["y"] + 35 * row + 18)
        compare = page.get_by_role("link", name="Compare")
        compare.wait_for()
        await_refreshes(page, proxy, 1)
        page.set_viewport_size(PHONE)
        compare.click()
        page.wait_for_url("**/compare?run=default/llama-8b-c4&run=vision/vit-g*")
        page.get_by_text("band: from the lowest to the highest value").wait_for()
        page.locator("canvas.marks, svg.marks").first.wait_for()
        fits_a_phone(page)
    assert asked
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


def test_no_other_site_may_frame_the_dashboard(address: str) -> None:
    """A page around it could lead a person's clicks; the server's own pages refuse it as well."""
    with urlopen(address, timeout=120) as answer:
        headers = answer.headers
    assert "frame-ancestors 'self'" in headers["Content-Security-Policy"]
    assert headers["X-Frame-Options"] == "SAMEORIGIN"
    assert headers["X-Content-Type-Options"] == "nosniff"
