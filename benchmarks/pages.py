"""How heavy and how quick the pages are that somebody opens who was paged, and pictures of all.

`python -m benchmarks.pages [--quick] [--json] [--out FILE] [--pictures DIR]`. A server and a
dashboard as `spikeguard up` starts them, incidents made of messages (`benchmarks.seeded`), Chromium
at a phone's width and at a laptop's. Each page is opened several times; told are the bytes of all
answers and the time until everything had loaded. Bars: 400 kB and 1.5 s (median) for the server's
own pages. Exit status 1 where one is missed. `--pictures` keeps every page as a PNG below 200 kB.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.browser import browsing
from benchmarks.machine import machine
from benchmarks.seeded import FAULTS, SeededRun
from benchmarks.walk import LAPTOP, PHONE, Reader, View, Walk, sizes_of
from spikeguard_trainer.stage.processes import Children
from spikeguard_trainer.stage.service import Service

MOST_BYTES, MOST_S = 400_000, 1.5
TIMES = 5
SETTLE_MS = 10_000  # what the dashboard's web socket brings
WAITING, CLOSED = FAULTS[1].name, FAULTS[0].name


@dataclass(frozen=True)
class Page:
    """A page, and words that stand on it once it is there."""

    name: str
    path: str
    wait_for: str = ""


def own_pages(command: int) -> tuple[Page, ...]:
    """Those of the server; `command` is the one that waits."""
    return (
        Page("login", "/login"),
        Page("incident", f"/incident/default/{WAITING}/1"),
        Page("confirm", f"/confirm/default/{WAITING}/1/{command}"),
        Page("act", f"/act/default/{WAITING}"),
        Page("act-plan", f"/act/default/{WAITING}?verb=rollback&to=step-200&review=true"),
        Page("inbox", "/inbox"),
        Page("incident-closed", f"/incident/default/{CLOSED}/1"),
        Page("postmortem", f"/incident/default/{CLOSED}/1/postmortem"),
        Page("api", "/docs"),
    )


DASHBOARD = (
    Page("dashboard-runs", "", "Runs"),
    Page("dashboard-inbox", "inbox", "Inbox"),
    Page("dashboard-run", f"run?run=default/{WAITING}", WAITING),
    Page("dashboard-evidence", f"incident?run=default/{WAITING}&number=1", "Likely cause"),
    Page("dashboard-closed", f"incident?run=default/{CLOSED}&number=1", "Likely cause"),
    Page("dashboard-compare", f"compare?run=default/{WAITING}&run=default/{CLOSED}", "Compare"),
    Page("dashboard-summary", "summary", "Incidents from"),
    Page("dashboard-policy", "policy", "Policy of"),
    Page("dashboard-notifications", "notifications", "Notifications"),
)


@contextmanager
def seeded(directory: Path, *options: str) -> Iterator[tuple[Service, int]]:
    """A service with two incidents that wait and one that is over; the command that waits."""
    children = Children()
    try:
        service = Service.start(children, directory, *options)
        with ExitStack() as stack:
            agents = _client(service.place.server, _token(service))
            people = _client(service.place.server, service.api.credentials.token)
            calls = [stack.enter_context(client) for client in (agents, people)]
            yield service, _seed(*calls)
    finally:
        children.end()


def _token(service: Service) -> str:
    return Path(service.place.agent_token_file).read_text().strip()


def _client(server: str, token: str) -> httpx.Client:
    return httpx.Client(base_url=server, headers={"Authorization": f"Bearer {token}"}, timeout=60)


def _seed(agents: httpx.Client, people: httpx.Client) -> int:
    runs = {fault.name: SeededRun(agents, people, fault.name) for fault in FAULTS}
    found = {}
    for fault in FAULTS:
        runs[fault.name].begin()
        found[fault.name] = runs[fault.name].fail(fault)
    run, proposal = runs[CLOSED], found[CLOSED]["proposal"]
    path = f"{run.path}/incidents/1/commands/{proposal['number']}/approve"
    people.post(path, json={"revision": proposal["revision"]}).raise_for_status()
    run.carry_out(proposal)
    run.until(lambda incident: incident["has_postmortem"])
    return int(found[WAITING]["proposal"]["number"])


def look(
    service: Service, browser: Any, command: int, options: Namespace
) -> tuple[list[View], list[str]]:
    """Every page, as often as asked; and what kept a bar from being met."""
    seen = Walk("pages")
    readers = [Reader(browser, service, size, seen) for size in (PHONE, LAPTOP)]
    for page in own_pages(command):
        for reader in readers:
            for _ in range(1 if options.quick else TIMES):
                reader.open(page.name, f"{service.place.server}{page.path}", page.wait_for)
            reader.picture(options.pictures, page.name)
    own = list(seen.views)
    if service.place.dashboard is not None:
        for page in DASHBOARD:
            for reader in readers:
                reader.open(page.name, f"{service.place.dashboard}/{page.path}", page.wait_for)
                reader.page.wait_for_timeout(SETTLE_MS)
                reader.unfold()
                reader.picture(options.pictures, page.name)
    for reader in readers:
        reader.context.close()
    return seen.views, [*_over(own)]


def _over(views: Sequence[View]) -> Iterator[str]:
    """What the server's own pages take too much of, but for the reference of the API."""
    for name in dict.fromkeys(view.page for view in views if view.page != "api"):
        mine = [view for view in views if view.page == name]
        if (most := max(view.bytes for view in mine)) > MOST_BYTES:
            yield f"{name}: {most / 1000:.0f} kB, more than {MOST_BYTES / 1000:.0f}"
        if (middle := statistics.median(view.seconds for view in mine)) > MOST_S:
            yield f"{name}: {middle:.2f} s, more than {MOST_S}"


def show(views: Sequence[View]) -> None:
    """A line a page and width."""
    print(f"{'page':24} {'px':>5} {'kB':>8} {'calls':>6} {'s':>24}")
    for name, width in dict.fromkeys((view.page, view.width) for view in views):
        mine = [view for view in views if (view.page, view.width) == (name, width)]
        times = [view.seconds for view in mine]
        spread = f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"
        most = max(mine, key=lambda view: view.bytes)
        print(f"{name:24} {width:5} {most.bytes / 1000:8.1f} {most.requests:6} {spread:>24}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table or the JSON object."""
    parser = ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="each page once, and no dashboard")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, help="file for sizes and times by page")
    parser.add_argument("--pictures", type=Path, help="folder for the pages as PNG")
    options = parser.parse_args(arguments)
    more = ("--no-dashboard",) if options.quick else ()
    with (
        tempfile.TemporaryDirectory(prefix="sg-pages-") as place,
        seeded(Path(place), *more) as (service, command),
        browsing() as browser,
    ):
        views, over = look(service, browser, command, options)
    if options.out is not None:
        options.out.write_text(json.dumps({"pages": sizes_of(views)}, indent=1) + "\n")
    if options.json:
        found = {"views": [asdict(view) for view in views], "over": over}
        print(json.dumps({**found, "machine": machine()}))
    else:
        show(views)
        print("\n".join([*over, f"on {machine()}"]))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
