"""How much of the agent runs in the loop: modules and functions, by the profiler."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from spikeguard_protocol import BatchRange, Medium, Rollback
from tests.agent.job import Job, order, target_at
from tests.walks import ROOT, within

AGENT = str(ROOT / "agent/")


def counts(act: Callable[[], object]) -> tuple[int, int]:
    """Modules of the project and functions of them that `act` runs on the loop's thread."""
    called: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _given: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(AGENT):
            called.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return len({path for path, _ in called}), len(called)


def test_a_training_step_runs_no_more_code_than_stated(tmp_path: Path) -> None:
    job = Job(tmp_path).train_to(30)
    taken = counts(job.train_step)
    job.guard.finish()
    assert within(taken, "a training step")


def test_a_rollback_runs_no_more_code_than_stated(tmp_path: Path) -> None:
    job = Job(tmp_path).train_to(40)
    order(job, Rollback(target_at(job, 20, Medium.MEMORY), 20, BatchRange(25, 27)))
    taken = counts(job.train_step)
    job.guard.finish()
    assert job.guard.steps == 20
    assert within(taken, "a rollback")
