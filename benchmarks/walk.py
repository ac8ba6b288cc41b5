"""Somebody is paged and has only the message: the way to the right decision, in a real browser.

`python -m benchmarks.walk [--quick] [--json] [--out FILE] [--pictures DIR] [--examples DIR]`.
Real processes: server, dashboard, a training run with an injected fault, a webhook's receiver,
Chromium at a phone's width and at a laptop's. Of each fault the links of the message are opened,
the cause that the first view names is held against the fault that was injected, the proposal is
approved on the phone, and the page is followed until the outcome stands there; then the post-mortem
is read. Told are the bytes and the time of every page on the way, and what was not found. Exit
status 1 where anything was not. `--pictures` keeps every page as a PNG, `--examples` the
post-mortems.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.browser import browsing
from benchmarks.machine import machine
from benchmarks.truth_site import Lengths, Site
from spikeguard_trainer.stage.job import Job
from spikeguard_trainer.stage.service import Service, awaiting

PHONE, LAPTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
FAULT_STEP = 220
SIZE = ("--preset", "tiny", "--batch", "36", "--checkpoint-every", "25", "--keep", "40")
PACE = ("--steps", "620", "--step-time", "0.03")
SEND_INTERVAL_S = 0.2
LIMIT_S, SHOW_MS = 120.0, 40_000
MOST_HEIGHT, COLOURS = 1800, 256  # of a picture that is kept


@dataclass(frozen=True)
class Story:
    """One fault, and what a page has to say of it."""

    name: str
    fault: str
    causes: tuple[str, ...]  # of which the first view names one
    outcome: str  # as the page ends
    approved: bool  # whether somebody has to act


STORIES = (
    Story("learning-rate-bump", f"lr_bump@{FAULT_STEP}:12:40", ("learning rate",), "recovered",
          approved=True),
    Story("bad-batch", f"bad_batch@{FAULT_STEP}", ("data", "batch"), "healed", approved=False),
    Story("damaged-weights", f"bit_flip@{FAULT_STEP}", ("weights",), "recovered", approved=True),
)  # fmt: skip


@dataclass(frozen=True)
class View:
    """One page as a browser had it."""

    page: str
    width: int
    bytes: int  # of all answers, as they came
    requests: int
    seconds: float  # until everything had loaded


@dataclass
class Walk:
    """What was seen on the way through one story."""

    story: str
    views: list[View] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    paged_to_approved_s: float | None = None  # of which the reader takes none

    def expect(self, what: str, where: str, words: Sequence[str]) -> None:
        """Note what none of `words` tells on a page that reads `where`."""
        if not any(word.lower() in where.lower() for word in words):
            self.missing.append(f"{what}: none of {', '.join(words)}")


class Reader:
    """A browser of one width, signed in."""

    def __init__(self, browser: Any, service: Service, size: dict[str, int], walk: Walk) -> None:
        self.size, self.walk = size, walk
        self.context = browser.new_context(viewport=size, device_scale_factor=1)
        session = service.browser_session()
        cookie = {"name": "spikeguard_session", "value": session, "url": service.place.server}
        self.context.add_cookies([cookie])
        self.page = self.context.new_page()
        self.page.set_default_timeout(SHOW_MS)

    def open(self, name: str, url: str, wait_for: str = "") -> str:
        """Open a page, measure it, and return what it says."""
        self.page.goto("about:blank")  # where no page is about to look again by itself
        self.page.set_viewport_size(self.size)
        answers: list[Any] = []

        def note(answer: Any) -> None:
            answers.append(answer)

        self.page.on("response", note)
        begin = time.perf_counter()
        self.page.goto(url, wait_until="load")
        if wait_for:
            self.page.get_by_text(wait_for).first.wait_for()
        seconds = time.perf_counter() - begin
        self.page.remove_listener("response", note)
        total = sum(_bytes(answer) for answer in answers)
        self.walk.views.append(View(name, self.size["width"], total, len(answers), seconds))
        return self.text()

    def text(self) -> str:
        return str(self.page.inner_text("body"))

    def unfold(self) -> None:
        """Make the window as high as what scrolls within it, for a picture of all."""
        high = self.page.evaluate("document.querySelector('.stMain')?.scrollHeight ?? 0")
        height = max(self.size["height"], min(int(high), MOST_HEIGHT))
        self.page.set_viewport_size({**self.size, "height": height})
        self.page.wait_for_timeout(1_500)  # charts are drawn anew

    def picture(self, place: Path | None, name: str) -> None:
        """Keep what is on the screen."""
        if place is not None:
            place.mkdir(parents=True, exist_ok=True)
            seen = self.page.screenshot(full_page=True)
            whole = Image.open(BytesIO(seen)).convert("RGB")
            part = whole.crop((0, 0, whole.width, min(whole.height, MOST_HEIGHT)))
            small = part.quantize(COLOURS, dither=Image.Dither.NONE)
            small.save(place / f"{name}-{self.size['width']}.png", optimize=True)


def _bytes(answer: Any) -> int:
    sizes = answer.request.sizes()
    return int(sizes["responseBodySize"] + sizes["responseHeadersSize"])


def walk(site: Site, browser: Any, story: Story, options: Namespace) -> Walk:
    """One story from the fault to the post-mortem."""
    found, children = Walk(story.name), site.children
    job = Job.start(
        children, site.directory / story.name, site.service.agent_environment(SEND_INTERVAL_S),
        *SIZE, *PACE, "--run", story.name, "--fault", story.fault,
    )  # fmt: skip
    link = _paged(site, story)
    phone = Reader(browser, site.service, PHONE, found)
    laptop = Reader(browser, site.service, LAPTOP, found)
    for reader in (phone, laptop):
        said = reader.open("incident", link)
        found.expect(f"cause at {reader.size['width']} px", said, story.causes)
        reader.picture(options.pictures, f"{story.name}-incident")
    if story.approved:
        _approve(site, story, phone, found, options)
    _until(lambda: site.service.incidents(story.name)[-1]["state"] == "closed", "no end came")
    _until(lambda: site.service.incidents(story.name)[-1]["has_postmortem"], "no post-mortem came")
    said = phone.open("incident, closed", link)
    found.expect("outcome", said, [story.outcome])
    phone.picture(options.pictures, f"{story.name}-closed")
    _read_postmortem(site, story, phone, found, options)
    if story is STORIES[0]:
        _look_around(site, laptop, options)
    for reader in (phone, laptop):
        reader.context.close()
    job.process.wait(LIMIT_S)
    return found


def _paged(site: Site, story: Story) -> str:
    """Where the message that asks for a decision leads; of a spike that heals before anybody is
    told there is none, and it is read in the morning."""

    def told() -> str | None:
        for _, message in site.inbox.of(story.name):
            if "Decide" in message["links"]:
                return str(message["links"]["Open"])
        return None

    if story.approved:
        return str(_until(told, "no message came"))
    _until(lambda: site.service.incidents(story.name), "no incident opened")
    return f"{site.service.place.server}/incident/default/{story.name}/1"


def _approve(site: Site, story: Story, phone: Reader, found: Walk, options: Namespace) -> None:
    _until(lambda: awaiting(site.service.incidents(story.name)[-1]), "nothing was proposed")
    newest = site.inbox.of(story.name)[-1][1]
    said = phone.open("confirm", newest["links"]["Decide"])
    found.expect("cause where one decides", said, story.causes)
    phone.picture(options.pictures, f"{story.name}-confirm")
    begin = next(at for at, message in site.inbox.of(story.name) if message["links"].get("Decide"))
    phone.page.get_by_role("button", name="Approve").click()
    found.paged_to_approved_s = time.time() - begin
    phone.page.get_by_text("judged").first.wait_for(timeout=LIMIT_S * 1000)
    phone.picture(options.pictures, f"{story.name}-judged")


def _read_postmortem(
    site: Site, story: Story, phone: Reader, found: Walk, options: Namespace
) -> None:
    incident = site.service.incidents(story.name)[-1]
    said = site.service.postmortem(incident, "md").decode()
    found.expect("cause in the post-mortem", said, story.causes)
    found.expect("outcome in the post-mortem", said, [story.outcome])
    if options.examples is not None:
        options.examples.mkdir(parents=True, exist_ok=True)
        (options.examples / f"{story.name}.md").write_text(said)
        (options.examples / f"{story.name}.pdf").write_bytes(
            site.service.postmortem(incident, "pdf")
        )
    page = site.directory / f"{story.name}.html"
    page.write_bytes(site.service.postmortem(incident, "html"))
    phone.open("post-mortem", page.as_uri())
    phone.picture(options.pictures, f"{story.name}-postmortem")


def _look_around(site: Site, laptop: Reader, options: Namespace) -> None:
    """The dashboard's pages, as they stand at the end of the first story."""
    dashboard = site.service.place.dashboard
    assert dashboard is not None
    pages = {
        "runs": ("", "Runs"),
        "run": (f"run?run=default/{STORIES[0].name}", STORIES[0].name),
        "evidence": (f"incident?run=default/{STORIES[0].name}&number=1", "Likely cause"),
        "notifications": ("notifications", "Notifications"),
    }
    for name, (path, wait_for) in pages.items():
        laptop.open(f"dashboard: {name}", f"{dashboard}/{path}", wait_for)
        laptop.page.wait_for_timeout(6_000)  # what the web socket brings
        laptop.picture(options.pictures, f"dashboard-{name}")


def _until(condition: Callable[[], Any], failure: str) -> Any:
    deadline = time.monotonic() + LIMIT_S
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{failure} within {LIMIT_S:g} s")
        time.sleep(0.2)
    return value


def measure(options: Namespace) -> dict[str, Any]:
    """Every story; with `--quick` the first."""
    stories = STORIES[:1] if options.quick else STORIES
    with (
        tempfile.TemporaryDirectory(prefix="sg-walk-") as place,
        Site.started(Path(place), Lengths(), dashboard=True) as site,
        browsing() as browser,
    ):
        walks = [walk(site, browser, story, options) for story in stories]
    return {"walks": [asdict(one) for one in walks], "machine": machine()}


def by_page(found: dict[str, Any]) -> dict[str, Any]:
    """Of each page the bytes and the times of all stories, and whether all was found."""
    views = [view for one in found["walks"] for view in one["views"]]
    pages = sizes_of([View(**view) for view in views])
    missing = [what for one in found["walks"] for what in one["missing"]]
    return {"pages": pages, "missing": missing, "stories": len(found["walks"])}


def sizes_of(views: Sequence[View]) -> dict[str, Any]:
    """Of each page how often it was opened, its bytes at most, and its times."""
    pages = {}
    for page in dict.fromkeys(view.page for view in views):
        seen = [view for view in views if view.page == page]
        seconds = [round(view.seconds, 2) for view in seen]
        pages[page] = {
            "views": len(seen),
            "most_bytes": max(view.bytes for view in seen),
            "seconds": [round(statistics.median(seconds), 2), min(seconds), max(seconds)],
        }
    return pages


def show(found: dict[str, Any]) -> None:
    """Print the table for a person."""
    print(f"{'story':20} {'page':26} {'px':>5} {'kB':>8} {'calls':>6} {'s':>6}")
    for one in found["walks"]:
        for view in one["views"]:
            print(
                f"{one['story']:20} {view['page']:26} {view['width']:5} "
                f"{view['bytes'] / 1000:8.1f} {view['requests']:6} {view['seconds']:6.2f}"
            )
        if one["paged_to_approved_s"] is not None:
            print(f"{one['story']:20} message to approval {one['paged_to_approved_s']:.1f} s")
        for missing in one["missing"]:
            print(f"{one['story']:20} NOT FOUND: {missing}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="benchmarks.walk", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one story")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, help="file for sizes and times by page")
    parser.add_argument("--pictures", type=Path, help="folder for the pages as PNG")
    parser.add_argument("--examples", type=Path, help="folder for the post-mortems")
    options = parser.parse_args(arguments)
    found = measure(options)
    if options.out is not None:
        options.out.write_text(json.dumps(by_page(found), indent=1) + "\n")
    if options.json:
        print(json.dumps(found))
    else:
        show(found)
    return 1 if any(one["missing"] for one in found["walks"]) else 0


if __name__ == "__main__":
    sys.exit(main())
