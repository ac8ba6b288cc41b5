"""A long attempt in a process of its own: prints what it held of memory at two times."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path

import spikeguard.uplink.backlog

from .job import FAST, Job

WARM_UP, STEPS = 150, 400


def held() -> dict[str, int]:
    """Objects that the collector knows of, and bytes of this process in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {"objects": len(gc.get_objects()), "bytes": 4096 * pages}


def main(folder: str, server: str) -> None:
    spikeguard.uplink.backlog.SEAL_RECORDS = 20  # what waits to be sent is held in memory
    settings = replace(FAST, outbox_bytes=200_000, slow_signals_every=1)
    job = Job(Path(folder), server=server or None, settings=settings)
    job.train_to(WARM_UP)
    before = held()
    job.train_to(WARM_UP + STEPS)
    after = held()
    job.guard.finish()
    print(json.dumps({name: after[name] - before[name] for name in before}))
