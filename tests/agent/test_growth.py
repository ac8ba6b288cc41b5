"""A run of any length takes the memory of a short one."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path

import pytest

import spikeguard.uplink.backlog

from .forks import exit_status, start_script
from .job import FAST, Job
from .wire import Wire, served

pytestmark = pytest.mark.slow

MIB = 1 << 20
WARM_UP, STEPS = 150, 400
GROW = "import sys; from tests.agent.test_growth import main; main(*sys.argv[1:])"


def test_no_step_leaves_anything_behind_in_memory(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        said = tmp_path / "said.txt"
        grown = start_script(GROW, said, str(tmp_path), wire.url)
        assert exit_status(grown, 120) == 0, said.read_text()
    left = json.loads(said.read_text().splitlines()[-1])
    assert left["objects"] < 0.75 * STEPS  # less than one a step; what is on its way varies
    assert left["bytes"] < 16 * MIB


def held() -> dict[str, int]:
    """Objects that the collector knows of, and bytes of this process in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {"objects": len(gc.get_objects()), "bytes": 4096 * pages}


def main(folder: str, server: str) -> None:
    spikeguard.uplink.backlog.SEAL_RECORDS = 20  # what waits to be sent is held in memory
    settings = replace(FAST, outbox_bytes=200_000, slow_signals_every=1)
    job = Job(Path(folder), server=server or None, settings=settings).train_to(WARM_UP)
    before = held()
    job.train_to(WARM_UP + STEPS)
    after = held()
    job.guard.finish()
    print(json.dumps({name: after[name] - before[name] for name in before}))
