"""A real service for the end-to-end tests, one a file; each test starts its training jobs."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from spikeguard_cli.api import Refused
from spikeguard_trainer.stage.job import Job
from spikeguard_trainer.stage.processes import Children
from spikeguard_trainer.stage.service import Service, awaiting
from tests.end_to_end.forked import ForkingChildren

Follow = Callable[[Service, Job, str], list[dict[str, Any]]]
_NUMBERS = count()
STILL_S = 60.0  # without a step, a change of an incident or an end: it hangs
ASK_EVERY_S = 0.5  # every answer takes time from the training that is waited for


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A short path, because a Postgres socket's may not be long."""
    place = Path(tempfile.mkdtemp(prefix="sg-e2e-"))
    place.chmod(0o711)  # run as root, Postgres has an account of its own that must pass
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    """`spikeguard up` without its dashboard; a worker that has other files then has its core."""
    children = ForkingChildren()
    try:
        yield Service.start(children, folder / f"service-{next(_NUMBERS)}", "--no-dashboard")
    finally:
        children.end()


@pytest.fixture
def children() -> Iterator[Children]:
    """Ends whatever a test started."""
    children = ForkingChildren()
    yield children
    children.end()


@pytest.fixture(scope="session")
def follow() -> Follow:
    """Approve whatever is proposed until the job has ended and its incidents are written up."""

    def run(service: Service, job: Job, name: str) -> list[dict[str, Any]]:
        moved, stood = time.monotonic(), None
        while time.monotonic() < moved + STILL_S:
            incidents = service.incidents(name)
            for proposal in filter(None, map(awaiting, incidents)):
                assert proposal["verb"] == "rollback", proposal
                _approve(service, proposal)
            if job.process.poll() is not None and all(i["has_postmortem"] for i in incidents):
                return service.incidents(name)
            stands = (job.log.exists() and job.log.stat().st_size, incidents)
            if stands != stood:
                moved, stood = time.monotonic(), stands
            time.sleep(ASK_EVERY_S)
        tail = (job.directory / "trainer.log").read_text()[-2000:]
        raise AssertionError(f"{name} stood still for {STILL_S} s: {incidents}\n{tail}")

    return run


def _approve(service: Service, proposal: dict[str, Any]) -> None:
    try:
        service.approve(proposal)
    except Refused as refusal:
        if refusal.status != 409:  # it changed between reading and approving: read it anew
            raise
