"""Somebody is paged and has only the message: three faults, a phone and a laptop, a real browser.

They find the cause, take the right action, see it work, and read the post-mortem. Incidents are made
of messages over HTTP; one server and one browser serve all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.seeded import FAULTS, Fault, SeededRun
from spikeguard_protocol import Role
from tests.server.face.test_links import LABEL, SECRET
from tests.server.notify.listener import Listener, listening

if TYPE_CHECKING:
    from tests.server.face.conftest import Live

pytestmark = pytest.mark.slow
PHONE, LAPTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 800}
MOST_BYTES = 400_000  # of a page that is looked at before deciding
SHOW_MS = 60_000


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
    errors: int = 0

    def opened(self, url: str) -> str:
        """What a page says, once it is there; it is light and no wider than the screen."""
        self.bytes = 0
        self.page.goto(url, wait_until="load")
        assert self.bytes < MOST_BYTES
        return self.read()

    def read(self) -> str:
        wide = self.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= self.size["width"], f"{self.page.url} is {wide} px wide"
        return str(self.page.inner_text("body"))

    def without_scrolling(self, words: str) -> None:
        """`words` stand on the first screen."""
        box = self.page.get_by_text(words).first.bounding_box()
        assert box is not None
        assert box["y"] < self.size["height"], f"{words!r} stands at {box['y']:.0f} px"


@pytest.fixture(params=[PHONE, LAPTOP], ids=["phone", "laptop"])
def reader(request: pytest.FixtureRequest, browser: Any) -> Iterator[Reader]:
    context = browser.new_context(viewport=request.param)
    context.set_default_timeout(SHOW_MS)
    found = Reader(context.new_page(), request.param)
    found.page.on("response", lambda answer: _count(found, answer))
    found.page.on("pageerror", lambda _: setattr(found, "errors", found.errors + 1))
    yield found
    assert found.errors == 0
    context.close()


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
        asked = (message["incident"] or {}).get("proposal")
        return bool(asked) and (asked["command"], asked["revision"]) == (
            proposal["id"], proposal["revision"],
        )  # fmt: skip

    inbox.wait_for(lambda messages: any(map(asks, messages)))
    return run, next(m.json() for m in reversed(inbox.received) if asks(m.json()))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_whoever_has_only_the_message_finds_the_cause_acts_and_reads_how_it_ended(
    live: Live, inbox: Listener, reader: Reader, fault: Fault
) -> None:
    name = f"{fault.name}-{reader.size['width']}"
    run, message = paged(live, inbox, name, fault)
    five = message["text"].splitlines()[:5]
    assert any(word in five[2].lower() for word in fault.causes), five
    assert five[3].startswith(f"Proposed: {fault.remedy}")
    assert five[4].startswith("Can wait ")

    said = reader.opened(message["links"][LABEL])  # without signing in
    assert any(word in said.lower() for word in fault.causes)
    reader.without_scrolling(five[0].rstrip("."))
    assert (run.incident() or {})["proposal"]["state"] == "proposed"  # looking decides nothing
    reader.page.get_by_label("Your name").fill("Ada")
    reader.page.get_by_role("button", name="Approve").click()
    reader.page.get_by_text("Approved by Ada").first.wait_for()

    command = run.until(lambda i: [c for c in i["commands"] if c["state"] != "superseded"])[-1]
    run.carry_out(command)
    reader.page.get_by_text("carried out and judged").first.wait_for()  # nobody pressed reload
    assert run.until(lambda i: i["outcome"]) == "recovered"
    run.until(lambda i: i["has_postmortem"])

    token = live.session("Ada")
    cookie = {"name": "spikeguard_session", "value": token, "url": live.url}
    reader.page.context.add_cookies([cookie])
    assert "recovered" in reader.opened(message["links"]["Open"]).lower()
    reader.page.get_by_role("link", name="Post-mortem").click()
    reader.page.wait_for_load_state()
    told = reader.read()
    assert any(word in told.lower() for word in fault.causes)
    assert "Ada" in told
    last = inbox.received[-1].json()["title"]
    assert "recovered" in last or "back on" in last, last
