"""What the loop pays: little of the host, and never anybody else's wait."""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import quantiles

import pytest

from spikeguard_protocol import TargetSaved

from .heard import parts_of
from .job import FAST, Job
from .wire import Wire, served

PLAIN = replace(FAST, slow_signals_every=1_000_000, snapshot_every=0)  # no step but plain ones


def plain_steps(folder: Path) -> tuple[float, float]:
    """Seconds of the loop's own thread: of a step and of 4,000 additions beside it, each by the
    quicker quarter, since a busy machine slows some."""
    job = Job(folder, settings=PLAIN)
    spent: list[float] = []
    control: list[float] = []
    step = job.guard.step

    def timed() -> None:
        began = time.thread_time()
        step()
        between = time.thread_time()
        sum(range(4_000))
        spent.append(between - began)
        control.append(time.thread_time() - between)

    job.guard.step = timed  # type: ignore[method-assign]
    job.train_to(150)
    job.guard.finish()
    assert job.guard.faults == {}
    return quantiles(spent)[0], quantiles(control)[0]


@pytest.mark.slow
def test_a_plain_step_costs_the_host_less_than_four_thousand_additions(tmp_path: Path) -> None:
    """About 1,150 were measured. In a process of its own: other tests have filled this one."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
        spent, control = alone.submit(plain_steps, tmp_path).result(timeout=120)
    assert spent < control


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
