"""The dashboard as a person has it: its own process, a real browser, real clicks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import httpx
import pytest
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import connect
from websockets.typing import Origin

from spikeguard_dashboard.visitors import MOST_OF_ADDRESS
from tests.dashboard import story
from tests.dashboard.notices import NOTICES
from tests.dashboard.stand_in import ADA_TOKEN, VIEWER_TOKEN, Heard, World, error, serving

START_S, SHOW_MS = 60.0, 30_000
SETTLE_MS = 400  # from an answer to what the browser shows of it
INCIDENT = "/incident?run=default/llama-8b-c4&number=2"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def dashboard(server: str, folder: Path) -> Iterator[str]:
    """The process that `spikeguard up` starts, ready to be looked at."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    environment = {
        **os.environ,
        "SPIKEGUARD_SERVER": server,
        "SPIKEGUARD_PUBLIC_URL": server,
        "SPIKEGUARD_TOKEN": VIEWER_TOKEN,
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
        process.wait(timeout=20)


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
def world() -> World:
    return story.world()


@pytest.fixture(scope="module")
def address(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(world) as server, dashboard(server, tmp_path_factory.mktemp("home")) as address:
        yield address


@pytest.fixture(autouse=True)
def _fresh(world: World) -> None:
    """Every test finds the world as it was at first."""
    anew = story.world()
    world.incidents, world.people = anew.incidents, anew.people
    world.broken = world.before_decision = None
    world.heard.clear()


@pytest.fixture(scope="module")
def stranger(browser: Any) -> Iterator[Any]:
    """The browser of somebody who has not signed in."""
    context = browser.new_context()
    yield context
    context.close()


@pytest.fixture(scope="module")
def ada(browser: Any, address: str) -> Iterator[Any]:
    """The browser of somebody who has."""
    context = browser.new_context()
    value = {"name": "spikeguard_dashboard", "value": ADA_TOKEN, "url": address, "httpOnly": True}
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


def await_refreshes(page: Any, world: World, count: int) -> None:
    """Until the page has asked for something more often than `count` times, and shown it. Any
    page asks once for all that it shows, and the one before it may still do so."""
    before = Counter(asked.path for asked in world.heard)
    deadline = time.monotonic() + START_S
    while _most_often(Counter(asked.path for asked in world.heard) - before) <= count:
        assert time.monotonic() < deadline, "the page asks for nothing any more"
        page.wait_for_timeout(50)
    page.wait_for_timeout(SETTLE_MS)


def _most_often(asked: Counter[str]) -> int:
    """But for whose session it is, which the socket asks."""
    return max((often for path, often in asked.items() if path != "/v1/me"), default=0)


def time_goes_on(world: World) -> None:
    """What a refresh may bring while the proposal stays the same."""
    world.incidents[0]["newest_step"] = 1_401_000
    proposal = world.incidents[0]["proposal"]
    proposal["expires_in_s"], proposal["cost"]["seconds"] = 59.0, 599.0


def press_at_once(page: Any, button: Any) -> None:
    """Press where a button is, as a hand does that was already on its way."""
    place = button.bounding_box()
    page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)


def reading(world: World) -> list[Heard]:
    """What was read, beside the question who is there."""
    return [heard for heard in world.heard if heard.method == "GET" and heard.path != "/v1/me"]


def test_the_way_from_runs_to_an_incident_and_from_there_to_signing_in_is_by_links(
    stranger: Any, address: str
) -> None:
    with opened(stranger, address) as page:
        page.get_by_role("link", name="llama-8b-c4", exact=True).click()
        page.wait_for_url("**/run?run=default/llama-8b-c4")
        page.locator("canvas.marks, svg.marks").first.wait_for()
        page.get_by_role("link", name="incident 2 waiting for a decision").click()
        page.wait_for_url("**/incident?run=default/llama-8b-c4&number=2")
        page.get_by_text("The loss rose from 3.766 to 5.186").wait_for()
        link = page.get_by_role("link", name="Approve or reject on the server's page")
        link.wait_for()
        assert link.get_attribute("href").endswith("/confirm/default/llama-8b-c4/2/1")
        assert page.get_by_role("button", name="Approve").count() == 0
        page.get_by_role("link", name="Sign in", exact=True).click()  # in the bar at the top
        page.wait_for_url("**/login?next=**")


def test_an_approval_arrives_once_in_the_persons_name(ada: Any, address: str, world: World) -> None:
    with opened(ada, address + INCIDENT) as page:
        page.get_by_text("Signed in as Ada Lovelace").wait_for()
        page.get_by_role("button", name="Approve revision 2 as Ada Lovelace").click()
        page.get_by_text("Approved by Ada Lovelace. The job fetches it next.").wait_for()
        page.get_by_text("approved, not yet fetched by the job").first.wait_for()
    (request,) = world.decisions()
    assert request.bearer == ADA_TOKEN
    assert request.body == {"revision": 2}
    assert request.path.endswith("/runs/default/llama-8b-c4/incidents/2/commands/1/approve")
    assert {heard.bearer for heard in world.heard} == {ADA_TOKEN}


def test_a_rejection_needs_a_reason_and_carries_it(ada: Any, address: str, world: World) -> None:
    with opened(ada, address + INCIDENT) as page:
        page.get_by_role("button", name="Reject with a reason").click()
        reject = page.get_by_role("button", name="Reject revision 2")
        reject.click()
        page.get_by_text("Say why, then reject.").wait_for()
        assert world.decisions() == []
        page.get_by_label("Reason, kept in the record").fill("the shard is new on purpose")
        page.evaluate("document.querySelectorAll('button').forEach(each => each.dataset.same = 1)")
        place = reject.bounding_box()
        time_goes_on(world)
        await_refreshes(page, world, 2)  # they must not take the words away, nor move a button
        assert "Expires in 59 s" in page.locator(".expiry").inner_text()
        page_only = page.get_by_test_id(
            "stMain"
        )  # above it Streamlit shows a button while it works
        assert page_only.locator("button[data-same]").count() > 1
        assert page_only.locator("button:not([data-same])").count() == 0
        assert reject.bounding_box() == place
        reject.click()
        page.get_by_text("Rejected by Ada Lovelace: the shard is new on purpose").first.wait_for()
    (request,) = world.decisions()
    assert request.bearer == ADA_TOKEN
    assert request.body == {"revision": 2, "reason": "the shard is new on purpose"}


def test_who_has_an_incident_is_said_and_changed_in_the_persons_name(
    ada: Any, address: str, world: World
) -> None:
    world.incidents[0].update(acknowledged_by=None, assignee=None, responses=[])
    with opened(ada, address + INCIDENT) as page:
        page.get_by_text("Nobody has acknowledged it.").wait_for()
        page.get_by_role("button", name="Acknowledge as Ada Lovelace").click()
        page.get_by_text("Ada Lovelace looks at it.").first.wait_for()
        page.get_by_role("button", name="Take it").click()
        page.get_by_text("It is assigned to Ada Lovelace.").wait_for()
        page.get_by_role("button", name="Comment", exact=True).click()
        page.get_by_role("button", name="Send the comment").click()
        page.get_by_text("Write your comment first.").wait_for()
        page.get_by_label("Comment, kept in the post-mortem").fill("shard 14 <b>twice</b>")
        await_refreshes(page, world, 2)  # they must not take the words away
        page.get_by_role("button", name="Send the comment").click()
        page.get_by_text("Ada Lovelace: shard 14 <b>twice</b>").wait_for()
    told = [(heard.path.rpartition("/")[2], heard.body) for heard in world.decisions()]
    assert told == [
        ("acknowledgement", {}), ("assignee", {"assignee": "Ada Lovelace"}),
        ("comments", {"text": "shard 14 <b>twice</b>"}),
    ]  # fmt: skip
    assert {heard.bearer for heard in world.decisions()} == {ADA_TOKEN}


def test_follow_ups_are_ticked_off_and_added_in_the_persons_name(
    ada: Any, address: str, world: World
) -> None:
    with opened(ada, address + INCIDENT) as page:
        page.get_by_role("button", name="Change a follow-up").click()
        page.get_by_role("button", name="Done", exact=True).click()
        page.locator(".chip", has_text="done").first.wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Add a follow-up").click()
        page.get_by_label("What is to be done").fill("filter the mix")
        await_refreshes(page, world, 2)  # they must not take the words away
        page.get_by_role("button", name="Add it").click()
        page.locator("td", has_text="filter the mix").wait_for()
    bodies = [heard.body for heard in world.decisions()]
    assert bodies == [
        {"revision": 1, "state": "done"}, {"text": "filter the mix", "owner": None},
    ]  # fmt: skip
    assert {heard.bearer for heard in world.decisions()} == {ADA_TOKEN}


def test_a_proposal_that_changed_is_shown_and_asked_for_again(
    ada: Any, address: str, world: World
) -> None:
    """The decision of another process falls between the look and the press.

    The button that comes in the place of the other takes no press before it can have been read,
    which is here drawn out.
    """
    with opened(ada, address + INCIDENT) as page:
        long = ".st-key-approve-llama-8b-c4-2-1-3-0 button { animation-duration: 600s !important }"
        drawn_out = page.add_style_tag(content=long)
        button = page.get_by_role("button", name="Approve revision 2")
        button.wait_for()
        newer = story.command(revision=3, verb="watch", arguments={"steps": 200})

        def change() -> None:
            world.incidents[0].update(proposal=newer, commands=[newer])

        world.before_decision = change
        button.click()
        page.get_by_text("Nothing was done: the proposal had changed").wait_for()
        newest = page.get_by_role("button", name="Approve revision 3")
        press_at_once(page, newest)
        await_refreshes(page, world, 1)
        assert len(world.decisions()) == 1
        drawn_out.evaluate("style => style.remove()")
        newest.click()
        page.get_by_text("Approved by Ada Lovelace").first.wait_for()
    assert [request.body["revision"] for request in world.decisions()] == [2, 3]


def test_a_decision_in_a_session_that_ended_is_not_taken_and_said(
    ada: Any, address: str, world: World
) -> None:
    """The session ends between the look and the press."""

    def end() -> None:
        del world.people[ADA_TOKEN]

    with opened(ada, address + INCIDENT) as page:
        world.before_decision = end
        page.get_by_role("button", name="Approve revision 2").click()
        page.get_by_text("Nothing was done: your session has ended").wait_for()
        page.get_by_text("Your session has ended, reading only").wait_for()
        page.get_by_role("link", name="Approve or reject on the server's page").wait_for()
    assert len(world.decisions()) == 1
    assert world.incidents[0]["proposal"]["state"] == "proposed"
    assert reading(world)[-1].bearer == VIEWER_TOKEN


def test_a_session_that_ends_while_somebody_looks_takes_the_buttons_away(
    ada: Any, address: str, world: World
) -> None:
    """What would be refused is not offered: the way to sign in stands in its place."""
    with opened(ada, address + INCIDENT) as page:
        button = page.get_by_role("button", name="Approve revision 2")
        button.wait_for()
        del world.people[ADA_TOKEN]
        page.get_by_role("link", name="Approve or reject on the server's page").wait_for()
        page.get_by_text("Your session has ended, reading only").wait_for()
        button.wait_for(state="detached")
    assert reading(world)[-1].bearer == VIEWER_TOKEN


def test_new_data_appears_by_itself_and_what_is_unchanged_is_left_alone(
    stranger: Any, address: str, world: World
) -> None:
    """A refresh that brings nothing new must not redraw a curve: that is what flickers."""
    with opened(stranger, address + INCIDENT) as page:
        marks = page.locator("canvas.marks, svg.marks")
        marks.nth(2).wait_for()
        await_refreshes(page, world, 1)
        page.evaluate("document.querySelectorAll('.marks').forEach(mark => mark.dataset.same = 1)")
        before = marks.count()
        await_refreshes(page, world, 2)
        assert page.locator(".marks[data-same]").count() == before > 0
        world.incidents[0]["reason"] = "it is on its way back"
        page.get_by_text("it is on its way back.").wait_for()
        assert page.locator(".marks[data-same]").count() == before


def test_nothing_runs_out_of_a_phones_width(stranger: Any, address: str, world: World) -> None:
    with opened(stranger, address) as page:
        page.set_viewport_size({"width": 390, "height": 844})
        page.emulate_media(color_scheme="dark")
        for path in (
            "/",
            "/run?run=llama-8b-c4",
            "/compare?run=llama-8b-c4&run=llama-8b-old",
            INCIDENT,
        ):
            page.goto(address + path)
            page.locator(".sg-head").first.wait_for()
            await_refreshes(page, world, 1)
            width = "document.querySelector('[data-testid=stMain]').scrollWidth"
            assert page.evaluate(width) <= 390, path
        order = page.get_by_text("Proposed command").bounding_box()
        curves = page.get_by_role("heading", name="Signals").bounding_box()
        assert order["y"] < curves["y"]  # who is woken sees what is proposed without scrolling


def test_an_outage_is_said_and_mends_itself_and_nobody_else_is_told_of_anything(
    stranger: Any, address: str, world: World
) -> None:
    """No usage statistics go anywhere, and no button offers to deploy."""
    asked: list[str] = []
    with opened(stranger, "about:blank") as page:
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.get_by_role("heading", name="3 runs").wait_for()
        assert page.get_by_text("Deploy").count() == 0
        world.broken = lambda: error(503, "starting", "The server is starting", "Wait a moment")
        page.get_by_text("The server is starting. What you see is").wait_for()
        page.get_by_role("heading", name="3 runs").wait_for()
        world.broken = None
        page.get_by_text("The server is starting").first.wait_for(state="detached")
    assert asked
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


def test_who_may_decide_tests_a_channel_and_sees_what_became_of_it(
    ada: Any, address: str, world: World
) -> None:
    world.notices = NOTICES
    with opened(ada, f"{address}/notifications") as page:
        page.get_by_role("button", name="Test oncall").click()
        page.get_by_text("oncall: Sent after 84 ms: to oncall").wait_for()
        page.get_by_text("it had ended as healed before anybody was told").wait_for()
        [pressed] = world.decisions()
        assert (pressed.path, pressed.bearer) == ("/v1/channels/default/oncall/test", ADA_TOKEN)


def test_two_ticked_runs_stay_ticked_and_are_compared_under_an_address_that_says_so(
    stranger: Any, address: str, world: World
) -> None:
    with opened(stranger, address) as page:
        table = page.get_by_test_id("stDataFrame")
        table.wait_for()
        page.wait_for_timeout(SETTLE_MS)
        box = table.bounding_box()
        for row in (1, 2):
            page.mouse.click(box["x"] + 18, box["y"] + 35 * row + 18)
        compare = page.get_by_role("link", name="Compare")
        compare.wait_for()
        await_refreshes(page, world, 2)
        compare.click()
        page.wait_for_url("**/compare?run=default/llama-8b-c4&run=vision/vit-g*")
        page.get_by_text("band: from the lowest to the highest value").wait_for()
        page.locator("canvas.marks, svg.marks").first.wait_for()


def test_a_refused_field_says_so_beside_it_and_nothing_that_was_typed_is_lost(
    ada: Any, address: str, world: World
) -> None:
    world.notices = NOTICES
    world.people[ADA_TOKEN]["role"] = "admin"
    with opened(ada, f"{address}/notifications") as page:
        page.get_by_text("Write or remove a channel").click()
        page.get_by_label("Name", exact=True).fill("pager")
        page.get_by_label("URL").fill("ftp://example.test")
        page.get_by_role("textbox", name="Secret").fill("0123456789abcdef")
        await_refreshes(page, world, 2)
        assert page.get_by_label("URL").input_value() == "ftp://example.test"
        page.get_by_role("button", name="Save channel").click()
        page.get_by_text("target.url is an http or https URL. Write https://HOST/PATH").wait_for()
        assert page.get_by_role("textbox", name="Secret").input_value() == "0123456789abcdef"
        page.get_by_label("URL").fill("https://example.test/hook")
        page.get_by_role("button", name="Save channel").click()
        page.get_by_text("The channel was saved").wait_for()
    written = [heard for heard in world.heard if heard.method == "PUT"]
    assert [heard.path for heard in written] == ["/v1/channels/default/pager"] * 2
    assert written[1].body["target"] == {
        "url": "https://example.test/hook", "secret": "0123456789abcdef",
    }  # fmt: skip
    assert written[1].bearer == ADA_TOKEN


def test_no_other_site_may_frame_the_dashboard(address: str) -> None:
    """A page around it could lead a person's clicks; the server's own pages refuse it as well."""
    with urlopen(address, timeout=20) as answer:
        headers = answer.headers
    assert "frame-ancestors 'self'" in headers["Content-Security-Policy"]
    assert headers["X-Frame-Options"] == "SAMEORIGIN"
    assert headers["X-Content-Type-Options"] == "nosniff"


def answer_to(address: str, host: str, *headers: str, path: str = "/") -> int:
    """The status of an answer to who calls the dashboard by the name `host`."""
    place = urlsplit(address)
    lines = (f"GET {path} HTTP/1.1", f"Host: {host}", *headers, "", "")
    with socket.create_connection((place.hostname or "", place.port or 0), 20) as connection:
        connection.sendall("\r\n".join(lines).encode())
        return int(connection.recv(64).split()[1])


def test_a_site_whose_name_leads_to_the_dashboard_cannot_read_it(address: str) -> None:
    """DNS rebinding: for the browser it is of one origin with the dashboard, and names the host."""
    port = urlsplit(address).port
    for host in (f"evil.example:{port}", "evil.example", "127.0.0.1.evil.example", "", "[::1",
                 f"evil.example@127.0.0.1:{port}"):  # fmt: skip
        socket_asked = (
            f"Origin: http://{host}", "Connection: Upgrade", "Upgrade: websocket",
            "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        )  # fmt: skip
        assert answer_to(address, host, "Connection: close") == 421
        assert answer_to(address, host, *socket_asked, path="/_stcore/stream") == 403
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "[::1]", "guard.localhost"):
        assert answer_to(address, host, "Connection: close") == 200


def test_what_no_page_of_ours_asks_for_is_refused(address: str) -> None:
    """Streamlit keeps uploads in memory, 200 MB each, of whoever has a socket open; the key that it
    asks for is any that stands in both places."""
    key = "00" * 16
    with connect(f"{address.replace('http', 'ws')}/_stcore/stream", origin=Origin(address)) as page:
        page.send(BackMsg(rerun_script=ClientState()).SerializeToString())
        session = ""
        while not session:
            told = ForwardMsg.FromString(page.recv(timeout=START_S))
            session = told.new_session.initialize.session_id
        answer = httpx.put(
            f"{address}/_stcore/upload_file/{session}/one", files={"file": b"x" * 1000},
            headers={"X-Xsrftoken": key}, cookies={"_streamlit_xsrf": key},
        )  # fmt: skip
        assert answer.status_code == 405
    for path in ("metrics", "agent/openapi.json", "upload_file/x/y", "message"):
        assert httpx.get(f"{address}/_stcore/{path}").status_code == 404
    assert httpx.get(f"{address}/auth/login").status_code == 404


def test_a_cookie_full_of_backslashes_holds_nobody_up(address: str) -> None:
    """Streamlit reads cookies of every request where all others wait."""
    began = time.monotonic()
    cookie = 'a=1; b="' + "\\" * 60_000 + '"; c=2'
    assert answer_to(address, "localhost", f"Cookie: {cookie}", "Connection: close") == 200
    assert time.monotonic() - began < 3.0  # it took 7 s of one core


def test_sockets_without_a_sign_in_have_a_number_and_keep_nobody_out_who_has(address: str) -> None:
    """Whoever reaches the port can open them, and each holds a session of Streamlit's."""
    port = urlsplit(address).port
    asked = (
        f"Origin: http://127.0.0.1:{port}", "Connection: Upgrade", "Upgrade: websocket",
        "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )  # fmt: skip
    lines = ("GET /_stcore/stream HTTP/1.1", f"Host: 127.0.0.1:{port}", *asked)
    with ExitStack() as held:

        def status(*more: str) -> int:
            connection = socket.create_connection(("127.0.0.1", port), 60)
            held.enter_context(connection)
            connection.sendall("\r\n".join((*lines, *more, "", "")).encode())
            return int(connection.recv(64).split()[1])

        assert [status() for _ in range(MOST_OF_ADDRESS)] == [101] * MOST_OF_ADDRESS
        assert status() == 403
