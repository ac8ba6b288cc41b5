"""Without a server the job's own log tells of a spike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spikeguard_core.monitor.monitor import Monitor
from tests.agent.job import FAST, Job
from tests.agent.wire import Wire, served

from .wire import await_that

ONSET = 151
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
    words = ("spike", "  cause", "  would propose")
    return [text for r in caplog.records if (text := r.getMessage()).startswith(words)]


def wait_for(caplog: pytest.LogCaptureFixture, part: str) -> None:
    await_that(lambda: any(part in line for line in told(caplog)))


def test_a_spike_is_told_with_its_kind_its_cause_and_what_would_be_proposed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = spiked(tmp_path)
    wait_for(caplog, "would propose")
    job.guard.finish()
    first, cause, *_ = told(caplog)
    assert first.startswith(f"spike #1 of this attempt, since step {ONSET + 1}, seen at ")
    assert "in loss, z " in first
    assert cause.startswith("  cause: learning rate too high (99%): the learning rate rose ")
    assert any("would propose: roll back to step" in line for line in told(caplog))


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
