"""How long ranks wait for one another."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from spikeguard.world import LEAST, join_world


def test_a_rank_is_waited_for_as_long_as_the_jobs_own_collectives_wait(tmp_path: Path) -> None:
    """One that saves or evaluates alone is no later here than the job itself allows."""
    assert join_world().timeout == LEAST
    for patience, expected in ((timedelta(minutes=7), timedelta(minutes=7)), (LEAST / 2, LEAST)):
        meeting = f"file://{tmp_path / str(patience.seconds)}"
        dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1, timeout=patience)
        try:
            assert join_world().timeout == expected
            assert join_world(5.0).timeout == timedelta(seconds=5)
        finally:
            dist.destroy_process_group()
