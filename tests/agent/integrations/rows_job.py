"""What one rank does of the rows of `benchmarks.real_jobs` that take several, one after another."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

import spikeguard
from benchmarks import real_jobs_loops as loops
from benchmarks.real_jobs_probe import Probe, install
from benchmarks.real_jobs_text import Plan

from ..wire import await_checkpoint, await_that

ORDERED = 12  # the step after which the server orders; it hears of one a few steps later
HEARD = ORDERED + 4
PIPED = loops.SHAPE
SMALL = replace(PIPED, layers=1)


def main(rank: int, ranks: int, meeting: str, runs: list[tuple[str, str, Plan]]) -> None:
    """Each run: which row, the address of its server, its plan."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "SPIKEGUARD_TOKEN": "none"}
    os.environ["SPIKEGUARD_SEND_INTERVAL"] = "0.02"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    attach, step = spikeguard.attach, Probe.step
    Probe.step = lambda probe, *_: waiting(step, probe)  # type: ignore[method-assign]
    for name, url, plan in runs:
        os.environ["SPIKEGUARD_SERVER"] = url
        loops.SHAPE = PIPED if name.startswith("pp") else SMALL
        spikeguard.attach = attach
        install(plan)
        loops.LOOPS[name](plan)
    dist.destroy_process_group()


def waiting(step: Any, probe: Any) -> None:
    """The order, which no loop waits for, is to come within a run of a second; so is each
    checkpoint."""
    parts = probe._guard._p
    await_checkpoint(probe._guard)
    first = probe._plan.bad[1] and parts.progress.segment == 0
    if first and parts.progress.steps + 1 == HEARD:
        if parts.world.rank == 0:
            await_that(lambda: parts.inbox.deliveries)
        dist.barrier()
    step(probe)
