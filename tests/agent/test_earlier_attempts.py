"""However often a job is killed without a server, the disk holds what one attempt may leave."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from .job import FAST, Job
from .test_outbox import fill, outbox
from .wire import await_that

pytestmark = pytest.mark.slow

LIMIT, ATTEMPTS, STEPS = 40_000, 4, 600


@pytest.mark.parametrize("server", ["http://127.0.0.1:9", None])
def test_a_job_cuts_down_what_dead_attempts_left_of_its_run(
    tmp_path: Path, server: str | None
) -> None:
    parent = tmp_path / "guard/outbox"
    dead = outbox(parent, 200_000)
    fill(dead, spike=range(220, 225))
    dead.close()

    def on_disk() -> int:
        return sum(path.stat().st_size for path in parent.glob("*/*.jsonl"))

    assert on_disk() > 100_000
    job = Job(tmp_path, server=server, settings=replace(FAST, outbox_bytes=60_000))
    job.train_to(5)
    await_that(lambda: on_disk() <= 60_000 and "outbox" in job.guard.faults)
    job.guard.finish()
