"""Somebody is paged and has only the message, or looks at the dashboard, in a real browser.

They find the cause, take the right action, see it work, and read the post-mortem. Incidents are
made of messages over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from spikeguard_protocol import Role
from tests.agent.wire import await_that
from tests.server.face.conftest import Job, Live
from tests.server.face.serving import cookie_of
from tests.server.face.test_judgements import roll_back
from tests.server.face.test_links import LABEL, SECRET
from tests.server.notify.listener import Listener, listening

pytestmark = pytest.mark.slow
PHONE, LAPTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 800}
SIZES = (PHONE, LAPTOP)
MOST_BYTES = 400_000  # of a page that is looked at before deciding
SHOW_MS = 120_000
CAUSE = "bad data"  # as pages name it


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


@pytest.fixture
def readers(browser: Any) -> Iterator[list[Reader]]:
    """A phone and a laptop, with nobody signed in."""
    contexts = [browser.new_context(viewport=size) for size in (PHONE, LAPTOP)]
    found = [Reader(each.new_page(), size) for each, size in zip(contexts, SIZES, strict=True)]
    for reader in found:
        reader.page.set_default_timeout(SHOW_MS)
        reader.page.on("response", partial(_count, reader))
        reader.page.on("pageerror", lambda error: pytest.fail(str(error)))
    yield found
    for each in contexts:
        each.close()


def _count(reader: Reader, answer: Any) -> None:
    reader.bytes += int(answer.headers.get("content-length", 0))


@pytest.fixture
def paged(live: Live, inbox: Listener) -> tuple[Job, dict[str, Any]]:
    """A run with three batches of strange tokens, and the message that asks somebody to decide."""
    job = Job(live, "paged").start()
    target = {"url": f"{inbox.url}/hook", "secret": SECRET}
    rules = {"kind": "webhook", "target": target, "runs": [job.run], "links": True}
    with live.client(Role.ADMIN) as admin:
        assert admin.put("/v1/channels/default/paged", json=rules).status_code == 200
    for _ in range(4):
        job.send(job.steps(100, token_entropy=3.1), job.saved())
    job.train(3, excess=3.0, token_entropy=0.2)
    proposal = None
    while proposal is None or proposal["verb"] != "rollback":
        assert job.step < 600, job.incident()
        job.train(20, excess=3.0, token_entropy=3.1)
        proposal = job.incident()["proposal"]
    wanted = proposal["id"], proposal["revision"]

    def asks(message: dict[str, Any]) -> bool:
        asked = (message["incident"] or {}).get("proposal") or {}
        return (asked.get("command"), asked.get("revision")) == wanted

    inbox.wait_for(lambda messages: any(map(asks, messages)))
    return job, next(m.json() for m in reversed(inbox.received) if asks(m.json()))


def until(job: Job, seen: Callable[[dict[str, Any]], Any]) -> Any:
    """What `seen` finds in the incident, once it finds anything."""
    return await_that(lambda: seen(job.incident()))


def test_whoever_has_only_the_message_finds_the_cause_acts_and_reads_how_it_ended(
    live: Live, inbox: Listener, readers: list[Reader], paged: tuple[Job, dict[str, Any]]
) -> None:
    """On the phone they act by the link, which needs no signing in; the laptop's, signed in,
    looks."""
    (actor, onlooker), (job, message) = readers, paged
    happened, _, cause, proposed, wait = message["text"].splitlines()[:5]
    assert CAUSE in cause
    assert proposed.startswith("Proposed: roll back to step ")
    assert wait.startswith("Can wait ")

    cookie = {
        "name": "spikeguard_session",
        "value": cookie_of(live.engine, live.session("Ada")),
        "url": live.url,
    }
    onlooker.page.context.add_cookies([cookie])
    for reader, link in ((actor, LABEL), (onlooker, "Open"), (onlooker, "Decide")):
        assert CAUSE in reader.opened(message["links"][link])
        reader.without_scrolling(happened)
        reader.without_scrolling(CAUSE)
        if link != "Open":
            reader.without_scrolling("Approve", role="button")
    assert job.incident()["proposal"]["state"] == "proposed"  # looking decides nothing
    actor.page.get_by_label("Your name").fill("Ada")
    actor.page.get_by_role("button", name="Approve").click()
    actor.page.get_by_text("Approved by Ada").first.wait_for()

    approved = until(job, lambda i: [c for c in i["commands"] if c["state"] == "approved"])
    roll_back(job, approved[-1], job.step)
    actor.page.get_by_text("carried out.").first.wait_for()  # nobody pressed reload
    assert until(job, lambda i: i["outcome"]) == "recovered"
    until(job, lambda i: i["has_postmortem"])
    actor.page.context.add_cookies([cookie])
    for reader in readers:
        assert "recovered" in reader.opened(message["links"]["Open"]).lower()
        reader.page.get_by_role("link", name="Post-mortem").click()
        reader.page.wait_for_url("**/postmortem*")
        told = reader.read()
        assert CAUSE in told
        assert "Ada" in told
    inbox.wait_for(lambda all: any(_ends(one, message["key"]) for one in all))


def _ends(message: dict[str, Any], key: str) -> bool:
    """Whether it closes the conversation and says how it ended."""
    closed = message["key"] == key and message["status"] == "resolved"
    return closed and "recovered" in message["title"]
