"""What the loop never pays: anybody else's wait."""

from __future__ import annotations

from pathlib import Path

from spikeguard_protocol import TargetSaved

from .heard import parts_of
from .job import Job
from .wire import Wire, served


def test_a_disk_that_hangs_holds_up_no_step_and_loses_nothing(tmp_path: Path) -> None:
    """The writer's lock is held, as it is while a write hangs: the loop never asks for it."""
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url)
        outbox = parts_of(job.guard).outbox
        assert outbox is not None
        with outbox._io:
            job.train_to(60)
        job.guard.finish()
        saved = [target.step for target in wire.records(TargetSaved)]
    assert sorted(step for _, step in wire.column("loss")) == list(range(1, 61))
    assert {10, 20, 30, 40, 50, 60} <= set(saved)
