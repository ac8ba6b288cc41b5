"""The job's wall clock jumps: budgets, ages and what lies on disk do not follow it."""

from __future__ import annotations

import os
from pathlib import Path

from spikeguard.state.checkpoints import CheckpointDirectory

from .job import Job

HOUR, DAY, DECADE = 3_600, 86_400, 10 * 365 * 86_400


def test_a_live_attempts_checkpoint_is_not_swept_however_old_a_jump_makes_it_look(
    tmp_path: Path,
) -> None:
    """Another attempt starts on the same machine while this one is still writing it."""
    job = Job(tmp_path)
    job.train_to(26)
    folder = tmp_path / "checkpoints" / f"checkpoint-00000030-{job.guard.attempt[:8]}.0"
    folder.mkdir(parents=True)
    os.utime(folder, (0, 0))
    other = Job(tmp_path)
    other.guard.finish()
    assert folder.exists()
    job.guard.finish()
    assert CheckpointDirectory(tmp_path / "checkpoints").targets()
