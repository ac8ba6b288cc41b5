"""How long ranks wait for one another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from spikeguard.measure.readback import Row
from spikeguard.ranks import rank_group as of_ranks
from spikeguard.ranks.agreement import Agreement
from spikeguard.ranks.layout import Topology
from spikeguard.ranks.rank_group import LEAST, Ties, World, join_world
from spikeguard.ranks.vote import Word


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


def test_an_ending_waits_for_no_rank_as_long_as_a_step_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of hours' patience ends within `LEAST`, where a rank has ended before."""
    monkeypatch.setattr(of_ranks, "LEAST", timedelta(seconds=0.5))
    store = dist.FileStore(str(tmp_path / "store"), 2)  # type: ignore[attr-defined]
    patience = timedelta(hours=1)
    with ThreadPoolExecutor() as threads:
        groups: list[Any] = list(
            threads.map(lambda rank: dist.ProcessGroupGloo(store, rank, 2, patience), range(2))
        )
    world = World(0, 2, patience, Ties(groups[0]))
    agreement = Agreement[Row](world, Topology(2), compares=True)
    agreement.exchange(Word(0, False, ()), None)
    assert agreement.part() == []
    assert world.ties.broken
