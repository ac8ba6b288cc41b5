"""The whole way of a person at the screen, against the real server and a real training run."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spikeguard_trainer.stage.job import Job
from spikeguard_trainer.stage.service import Service, awaiting
from tests.end_to_end.forked import ForkingChildren

PACE = ("--preset", "tiny", "--batch", "12", "--steps", "520", "--step-time", "0.03")
LIMIT_S, SHOW_MS = 60.0, 40_000
PERSON = "Ada Lovelace"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@contextmanager
def folder() -> Iterator[Path]:
    """A short path, because a Postgres socket's may not be long."""
    place = Path(tempfile.mkdtemp(prefix="sg-see-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """`spikeguard up` with its dashboard, and a run that is damaged at step 150."""
    monkeypatch.setenv("SPIKEGUARD_DASHBOARD_REFRESH", "5")
    children = ForkingChildren()
    with folder() as place:
        try:
            service = Service.start(children, place / "service")
            options = [*PACE, "--run", "seen", "--fault", "bit_flip@150"]
            environment = service.agent_environment(send_interval_s=0.2)
            Job.start(children, place / "run", environment, *options)
            yield service
        finally:
            children.end()


def proposed(service: Service) -> dict[str, Any]:
    """The incident whose rollback waits for a person."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        for incident in service.incidents("seen"):
            if awaiting(incident):
                return incident
        time.sleep(0.25)
    raise AssertionError(f"no command was proposed within {LIMIT_S} s")


def sign_in(page: Any, service: Service) -> None:
    page.get_by_role("link", name="Sign in at the server").click()
    page.wait_for_url("**/login?next=**")
    page.get_by_label("Access token").fill(Path(service.place.login_token_file).read_text().strip())
    page.get_by_label("Your name").fill(PERSON)
    page.get_by_role("button", name="Log in").click()


def test_a_person_signs_in_approves_the_rollback_and_reads_the_post_mortem(
    browser: Any, service: Service
) -> None:
    """The sign-in page leads back to the dashboard, which leads to the page that decides."""
    assert service.place.dashboard is not None
    dashboard = service.place.dashboard.replace("127.0.0.1", "spikeguard.localhost")
    page = browser.new_context().new_page()
    page.set_default_timeout(SHOW_MS)
    page.goto(dashboard, wait_until="commit")
    sign_in(page, service)
    page.wait_for_url(f"{dashboard}/**")
    page.get_by_text(f"Signed in as {PERSON}").wait_for()
    number = proposed(service)["number"]
    incident = f"{dashboard}/incident?run=default/seen&number={number}"
    page.goto(incident, wait_until="commit")
    page.get_by_role("link", name="Look at it and decide").click()
    page.get_by_role("link", name="Decide").click()
    page.get_by_role("button", name="Approve").click()
    page.get_by_text(f"Approved by {PERSON}").first.wait_for()
    page.get_by_text("carried out and judged").first.wait_for()
    page.goto(incident, wait_until="commit")
    page.get_by_text(re.compile(r"from step \d+ back to")).first.wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="HTML, to print").click()
    assert PERSON in Path(download.value.path()).read_text()
    page.get_by_role("heading", name=re.compile("seen#1: .* spike")).wait_for()
    (record,) = service.incidents("seen")
    assert record["commands"][-1]["decided_by"] == PERSON
