"""The rows of `benchmarks.real_jobs`, small and in this process: one NaN and one rollback each."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import spikeguard
from benchmarks import real_jobs_loops as loops, real_jobs_public as public
from benchmarks.real_jobs_cells import _roll_back
from benchmarks.real_jobs_probe import Probe, install
from benchmarks.real_jobs_rows import ROWS
from benchmarks.real_jobs_runs import Run, Server, read_ranks, run_job, serving, torchtitan
from benchmarks.real_jobs_text import Plan
from benchmarks.real_jobs_titan import LAYOUTS, ranks_of
from spikeguard.errors import EXIT_ROLL_BACK
from tests.agent.wire import await_checkpoint, await_that

NOISE, ORDERED, NAN = (12, 15), 17, 6
PLAN = Plan("", "", steps=24, stop=24, nan=(NAN, 0), checkpoint_every=4)
Train = Callable[[Plan], object]


def checkout(name: str, train: Callable[[Plan, Path], None], plan: Plan) -> None:
    folder = os.environ.get(name.upper())
    if folder is None:
        pytest.skip(f"{name.upper()} names no checkout")
    train(plan, Path(folder))


JOBS: dict[str, Train] = {
    "accelerate": loops.accelerate_loop,
    "hugging_face": loops.hugging_face_trainer,
    "lightning": loops.lightning_trainer,
    "adamw_muon": loops.LOOPS["adamw_muon"],
    "nanogpt": partial(checkout, "nanogpt", public.nanogpt),
    "nanochat": partial(checkout, "nanochat", public.nanochat),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Trains a job to its end, started again where it asks for it."""
    step = Probe.step
    monkeypatch.setenv("SPIKEGUARD_TOKEN", "none")
    monkeypatch.setenv("SPIKEGUARD_SEND_INTERVAL", "0.02")
    monkeypatch.setattr(spikeguard, "attach", spikeguard.attach)  # put back afterwards
    monkeypatch.setattr(spikeguard, "by_position", spikeguard.by_position)
    attach, by_position, threads = (
        spikeguard.attach,
        spikeguard.by_position,
        torch.get_num_threads(),
    )
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)

    def train(job: Train, plan: Plan, decide: Any = lambda _: None) -> Run:
        home = tmp_path / ("noise" if plan.bad[1] else "sound")
        plan = replace(plan, out=str(home / "out"), record=str(home / "record"))
        for folder in (plan.out, plan.record):
            Path(folder).mkdir(parents=True)
        with serving(decide) as server:
            monkeypatch.setenv("SPIKEGUARD_SERVER", server.url)
            monkeypatch.setattr(Probe, "step", lambda probe, *_: waiting(step, server, probe))
            statuses = []
            for _ in range(2):
                monkeypatch.setattr(spikeguard, "attach", attach)
                install(plan)
                by_index: Any = public.faulty_by_position(plan)
                drawn = job is JOBS["nanogpt"] or job is JOBS["nanochat"]
                spikeguard.by_position = by_index if drawn else by_position
                torch.manual_seed(0)
                statuses.append(_started(job, plan))
                if statuses[-1] != EXIT_ROLL_BACK:
                    break
        return Run(server, read_ranks(Path(plan.record), 1), statuses, home)

    yield train
    torch.set_num_threads(threads)


def _started(job: Train, plan: Plan) -> int:
    try:
        job(plan)
    except SystemExit as ending:
        return int(str(ending.code))
    return 0


def waiting(step: Any, server: Server, probe: Any) -> None:
    """The order, which no loop waits for, is to come within a run of a second; so is each
    checkpoint."""
    await_checkpoint(probe._guard)
    if probe._guard.steps + 1 == ORDERED + 2 and server.orders == [] and probe._plan.bad[1]:
        await_that(lambda: probe._guard.state().orders)
    step(probe)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_skips_a_nan_and_goes_back_as_if_it_never_had_the_batches(
    name: str, run: Any
) -> None:
    """To the bit: weights, moments and momenta; and no failure of the guard's own."""
    assert ROWS[name].lines <= 12
    decide = partial(_roll_back, NOISE, ORDERED)
    noisy: Run = run(JOBS[name], replace(PLAN, bad=NOISE), decide)
    sound: Run = run(JOBS[name], replace(PLAN, omit=NOISE))
    for each in (noisy, sound):
        assert each.ended_well
        assert each.faults() == {}
        assert each.steps()[NAN]["held"]
        assert each.server.dropped()[:1] == [NAN]
    items = [noisy.steps()[step]["items"] for step in range(1, PLAN.steps + 1)]
    assert items == [sound.steps()[step]["items"] for step in range(1, PLAN.steps + 1)]
    assert noisy.digests() == sound.digests()


@pytest.mark.timeout(900)  # torchtitan alone takes seconds to start
@pytest.mark.parametrize("layout", LAYOUTS)
def test_torchtitan_skips_a_nan_and_goes_back(layout: str, tmp_path: Path) -> None:
    """TORCHTITAN: an interpreter that has it, as `benchmarks.real_jobs` makes one."""
    python = os.environ.get("TORCHTITAN")
    if python is None:
        pytest.skip("TORCHTITAN names no interpreter")
    noise, ordered = (10, 12), 14
    command = torchtitan(Path(python), layout, ranks_of(layout))
    plan = replace(PLAN, steps=40, stop=40, nan=(NAN, command.ranks - 1), checkpoint_every=10)
    decide = partial(_roll_back, noise, ordered)
    noisy = run_job(command, replace(plan, bad=noise), tmp_path / "noisy", decide)
    sound = run_job(command, replace(plan, omit=noise), tmp_path / "sound")
    for each in (noisy, sound):
        assert each.ended_well
        assert each.faults() == {}
        assert all(each.steps(rank)[NAN]["held"] for rank in range(command.ranks))
    assert [result.state for result in noisy.server.results()] == ["applied"]
    assert noisy.digests() == sound.digests()
