"""Without a server the job's own log tells of a spike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spikeguard.loop.local_watch import LocalWatch
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_protocol import BatchRange, Medium, Samples, SegmentId, TargetSaved
from tests.agent.job import FAST, Job
from tests.agent.wire import Wire, served

from .wire import await_that

ONSET = 151
SEGMENT = SegmentId("a" * 16, 0)
ALONE = replace(FAST, watch_alone=True)


def raise_the_rate(job: Job) -> None:
    if ONSET <= job.guard.steps + 1 < ONSET + 6:
        for group in job.optimizer.param_groups:
            group["lr"] = 1.0


def spiked(folder: Path, steps: int = 200, **attaching: object) -> Job:
    job = Job(folder, **{"settings": ALONE, **attaching})  # type: ignore[arg-type]
    job.spoil = raise_the_rate
    job.train_to(steps)
    return job


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines about spikes, in order."""
    words = ("spike", "  cause", "  at step")
    return [text for r in caplog.records if (text := r.getMessage()).startswith(words)]


def wait_for(caplog: pytest.LogCaptureFixture, part: str) -> None:
    await_that(lambda: any(part in line for line in told(caplog)))


def test_a_spike_is_told_with_its_kind_its_cause_and_what_would_be_proposed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = spiked(tmp_path)
    wait_for(caplog, "it would propose: roll back to step")
    job.guard.finish()
    first, cause, *_ = told(caplog)
    assert first.startswith(f"spike #1 of this attempt, since step {ONSET + 1}, seen at ")
    assert " in loss: " in first
    assert cause.startswith("  cause: learning rate too high (99%): the learning rate rose ")


def test_rows_that_come_at_once_are_told_step_by_step_with_one_figure_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    noise = np.random.default_rng(1).normal(0.0, 0.02, 600)
    losses = 2.0 + 9.0 * (np.arange(600) + 3.0) ** -0.3 + noise
    losses[400:] += 0.02 * np.arange(200)  # it climbs
    watch = LocalWatch(SEGMENT, [TargetSaved("step-300", 0, 300, 300, Medium.DISK)])
    for step, loss in enumerate(losses.tolist(), start=1):
        watch.put(Samples(0, (step,), {"loss": (loss,)}, (BatchRange(step - 1, step),)))
    wait_for(caplog, "it would propose: roll back to step 300")
    watch.close()
    (rollback,) = (line for line in told(caplog) if "propose: roll back" in line)
    at = rollback.removeprefix("  at step ").split()[0]
    (named,) = (line for line in told(caplog) if f"by step {at}: divergent" in line)
    sure = named.partition("(")[2].partition(")")[0]
    assert f"Divergent ({sure})." in rollback


def test_a_calm_run_is_told_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = Job(tmp_path, settings=ALONE)
    job.train_to(200)
    watch = job.guard._reporter._watch
    assert watch is not None
    assert watch._thread is not None
    job.guard.finish()
    watch._thread.join(120)  # it has judged every row
    assert told(caplog) == []


def test_with_a_server_the_server_tells(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(Wire()) as wire:
        monkeypatch.setenv("SPIKEGUARD_SERVER", wire.url)
        monkeypatch.setenv("SPIKEGUARD_TOKEN", "any")
        spiked(tmp_path).guard.finish()
    assert told(caplog) == []


def test_its_failure_is_told_and_reaches_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("of a detector")

    monkeypatch.setattr(Monitor, "observe", fails)
    job = Job(tmp_path, settings=ALONE)
    job.train_to(20)
    wait_for(caplog, "spikes are no longer looked for: ZeroDivisionError: of a detector")
    job.train_to(25)
    job.guard.finish()
    assert job.guard.steps == 25
