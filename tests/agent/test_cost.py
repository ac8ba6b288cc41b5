"""What the loop pays: little of the host, and never anybody else's wait."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from statistics import quantiles

from spikeguard_protocol import TargetSaved

from .heard import parts_of
from .job import FAST, Job
from .wire import Wire, served

PLAIN = replace(FAST, slow_signals_every=1_000_000, snapshot_every=0)  # no step but plain ones


def test_a_plain_step_costs_the_host_less_than_four_thousand_additions(tmp_path: Path) -> None:
    """In time of the loop's own thread, by the quicker quarter: a busy machine slows some steps;
    about 1,300 were measured, so the bound is no tight one."""
    job = Job(tmp_path, settings=PLAIN)
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

    job.guard.step = timed  # type: ignore[method-assign,assignment]
    job.train_to(150)
    job.guard.finish()
    assert quantiles(spent)[0] < quantiles(control)[0]
    assert job.guard.faults == {}


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
