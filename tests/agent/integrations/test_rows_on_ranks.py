"""A row of `benchmarks.real_jobs` that takes several ranks, small: one NaN and one rollback."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

import spikeguard
from benchmarks import real_jobs_loops as loops
from benchmarks.real_jobs_cells import _roll_back
from benchmarks.real_jobs_probe import Probe, install
from benchmarks.real_jobs_rows import ROWS
from benchmarks.real_jobs_runs import Run, read_ranks
from benchmarks.real_jobs_server import serving
from benchmarks.real_jobs_text import Plan

from ..ranks import play
from ..wire import await_checkpoint, await_that

ORDERED = 12  # the step after which the server orders; it hears of one a few steps later
HEARD = ORDERED + 4
NOISE, NAN = (10, 12), 4
PLAN = Plan("", "", steps=24, stop=24, nan=(NAN, 1), checkpoint_every=10)  # NaN on one rank alone
PLANS = {"noisy": replace(PLAN, bad=NOISE), "sound": replace(PLAN, omit=NOISE)}
NAME = "pp_muon"  # stages of torch's pipeline; `test_layouts` has HSDP
RANKS = 2


def row(_folder: Path, _rank: int, _: int, *, runs: list[tuple[str, Plan]]) -> None:
    """Each run: the address of its server, its plan."""
    os.environ |= {"SPIKEGUARD_TOKEN": "none", "SPIKEGUARD_SEND_INTERVAL": "0.02"}
    attach, step = spikeguard.attach, Probe.step
    Probe.step = lambda probe, *_: waiting(step, probe)  # type: ignore[method-assign]
    for url, plan in runs:
        os.environ["SPIKEGUARD_SERVER"] = url
        spikeguard.attach = attach
        install(plan)
        loops.LOOPS[NAME](plan)


def waiting(step: Any, probe: Any) -> None:
    """The order, which no loop waits for, is to come within a run of a second; so is each
    checkpoint."""
    await_checkpoint(probe._guard)
    now = probe._guard.state()
    if probe._plan.bad[1] and now.segment == 0 and now.step + 1 == HEARD:
        if dist.get_rank() == 0:
            await_that(lambda: probe._guard.state().orders)
        dist.barrier()
    step(probe)


def test_ranks_skip_a_nan_and_go_back_as_if_they_never_had_the_batches(tmp_path: Path) -> None:
    """To the bit, on every rank: weights, moments and momenta; no failure of the guard's own."""
    told: dict[str, Run] = {}
    with ExitStack() as servers:
        runs = []
        for kind, wanted in PLANS.items():
            home = tmp_path / kind
            plan = replace(wanted, out=str(home / "out"), record=str(home / "record"))
            for folder in (plan.out, plan.record):
                Path(folder).mkdir(parents=True)
            decide = partial(_roll_back, NOISE, ORDERED)
            server = servers.enter_context(serving(decide if plan.bad[1] else lambda _: None))
            told[kind] = Run(server, [], [0], home)
            runs.append((server.url, plan))
        play(tmp_path / "ranks", RANKS, {"row": partial(row, runs=runs)})
    for run in told.values():
        run.ranks = read_ranks(run.log / "record", RANKS)
        assert run.faults() == {}
        assert all(run.steps(rank)[NAN]["held"] for rank in range(RANKS))
        assert run.server.dropped()[:1] == [NAN]
    assert ROWS[NAME].lines <= 12
    noisy, sound = told["noisy"], told["sound"]
    assert [result.state for result in noisy.server.results()] == ["applied"]
    assert "" not in noisy.digests()
    assert noisy.digests() == sound.digests()
