"""Somebody is paged and has only the message: three faults, a phone and a laptop, a real browser.

They find the cause, take the right action, see it work, and read the post-mortem. Incidents are
made of messages over HTTP; one server and one browser serve all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from spikeguard_protocol import Role
from tests.server.face.browsers import cookie_of
from tests.server.face.seeded import FAULTS, Fault, SeededRun
from tests.server.face.test_links import LABEL, SECRET
from tests.server.notify.listener import Listener, listening

if TYPE_CHECKING:
    from tests.server.face.conftest import Live

pytestmark = pytest.mark.slow
PHONE, LAPTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 800}
SIZES = (PHONE, LAPTOP)
MOST_BYTES = 400_000  # of a page that is looked at before deciding
SHOW_MS = 120_000


@pytest.fixture(scope="module")
def inbox() -> Iterator[Listener]:
    with listening() as found:
        yield found


@dataclass
class Reader:
    """A browser of one size, as Ada or as nobody who has signed in."""

    page: Any
    size: dict[str, int]
    bytes: int = 0

    def opened(self, url: str) -> str:
        """What a page says, once it is there; it is light and no wider than the screen."""
        self.page.goto("about:blank")  # where no page is about to look again by itself
        self.bytes = 0
        self.page.goto(url, wait_until="load")
        assert self.bytes < MOST_BYTES
        return self.read()

    def read(self) -> str:
        wide = self.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= self.size["width"], f"{self.page.url} is {wide} px wide"
        return str(self.page.inner_text("body"))

    def without_scrolling(self, words: str, role: str | None = None) -> None:
        """`words`, of a button or of any other `role` where one is given, stand on the first
        screen."""
        found = self.page.get_by_role(role, name=words) if role else self.page.get_by_text(words)
        box = found.first.bounding_box()
        assert box is not None
        assert box["y"] < self.size["height"], f"{words!r} stands at {box['y']:.0f} px"


@pytest.fixture(scope="module")
def screens(browser: Any) -> Iterator[list[Reader]]:
    """A phone and a laptop."""
    contexts = [browser.new_context(viewport=size) for size in (PHONE, LAPTOP)]
    found = [Reader(each.new_page(), size) for each, size in zip(contexts, SIZES, strict=True)]
    for reader in found:
        reader.page.set_default_timeout(SHOW_MS)
        reader.page.on("response", partial(_count, reader))
        reader.page.on("pageerror", lambda error: pytest.fail(str(error)))
    yield found
    for each in contexts:
        each.close()


@pytest.fixture
def readers(screens: list[Reader]) -> list[Reader]:
    """The same two, with nobody signed in."""
    for reader in screens:
        reader.page.goto("about:blank")
        reader.page.context.clear_cookies()
    return screens


def _count(reader: Reader, answer: Any) -> None:
    reader.bytes += int(answer.headers.get("content-length", 0))


def paged(live: Live, inbox: Listener, name: str, fault: Fault) -> tuple[SeededRun, dict[str, Any]]:
    """A run of its own with `fault`, and the message that asks somebody to decide."""
    run = SeededRun(live.client(Role.AGENT), live.client(Role.VIEWER), name)
    target = {"url": f"{inbox.url}/hook", "secret": SECRET}
    rules = {"kind": "webhook", "target": target, "runs": [name], "links": True}
    with live.client(Role.ADMIN) as admin:
        assert admin.put(f"/v1/channels/default/{name}", json=rules).status_code == 200
    run.begin()
    proposal = run.fail(fault)["proposal"]

    def asks(message: dict[str, Any]) -> bool:
        asked = (message["incident"] or {}).get("proposal") or {}
        seen = asked.get("command"), asked.get("revision")
        return seen == (proposal["id"], proposal["revision"])

    inbox.wait_for(lambda messages: any(map(asks, messages)))
    return run, next(m.json() for m in reversed(inbox.received) if asks(m.json()))


@pytest.mark.parametrize(("fault", "acting"), list(zip(FAULTS, (0, 0, 1), strict=True)), ids=str)
def test_whoever_has_only_the_message_finds_the_cause_acts_and_reads_how_it_ended(
    live: Live, inbox: Listener, readers: list[Reader], fault: Fault, acting: int
) -> None:
    """One of them acts by the link, which needs no signing in; the other one, signed in, looks."""
    actor, onlooker = readers[acting], readers[1 - acting]
    run, message = paged(live, inbox, fault.name, fault)
    happened, _, cause, proposed, wait = message["text"].splitlines()[:5]
    assert fault.cause in cause
    assert proposed.startswith("Proposed: roll back to step ")
    assert wait.startswith("Can wait ")

    cookie = {
        "name": "spikeguard_session",
        "value": cookie_of(live.engine, live.session("Ada")),
        "url": live.url,
    }
    onlooker.page.context.add_cookies([cookie])
    for reader, link in ((actor, LABEL), (onlooker, "Open"), (onlooker, "Decide")):
        assert fault.cause in reader.opened(message["links"][link])
        reader.without_scrolling(happened)
        reader.without_scrolling(fault.cause)
        if link != "Open":
            reader.without_scrolling("Approve", role="button")
    assert (run.incident() or {})["proposal"]["state"] == "proposed"  # looking decides nothing
    actor.page.get_by_label("Your name").fill("Ada")
    actor.page.get_by_role("button", name="Approve").click()
    actor.page.get_by_text("Approved by Ada").first.wait_for()

    run.carry_out(run.until(lambda i: [c for c in i["commands"] if c["state"] == "approved"])[-1])
    actor.page.get_by_text("carried out and judged").first.wait_for()  # nobody pressed reload
    assert run.until(lambda i: i["outcome"]) == "recovered"
    run.until(lambda i: i["has_postmortem"])
    actor.page.context.add_cookies([cookie])
    for reader in readers:
        assert "recovered" in reader.opened(message["links"]["Open"]).lower()
        reader.page.get_by_role("link", name="Post-mortem").click()
        reader.page.wait_for_url("**/postmortem*")
        told = reader.read()
        assert fault.cause in told
        assert "Ada" in told
    inbox.wait_for(lambda all: any(_ends(one, message["key"]) for one in all))


def _ends(message: dict[str, Any], key: str) -> bool:
    """Whether it closes the conversation and says how it ended."""
    closed = message["key"] == key and message["status"] == "resolved"
    return closed and "recovered" in message["title"]
