"""The job's wall clock jumps: budgets, ages and what lies on disk do not follow it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from spikeguard.commands.journal import Journal
from spikeguard.commands.order_limits import count_refusal
from spikeguard.state.checkpoints import CheckpointDirectory
from spikeguard_protocol import (
    BatchRange,
    Order,
    RunId,
    Samples,
    ScaleLr,
    SkipBatches,
    Verb,
)

from .job import FAST, Job
from .test_lying_server import ordered
from .test_outbox import outbox
from .wire import Wire, served

HOUR, DAY, DECADE = 3_600, 86_400, 10 * 365 * 86_400
RUN = RunId("default", "test")
ONE_A_DAY = replace(FAST, orders_a_day=1)
_wall = time.time


def let_jump(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(time, "time", lambda: _wall() + seconds)


@pytest.mark.parametrize("seconds", [HOUR, -HOUR, DAY, -DAY, DECADE, -DECADE])
def test_a_jump_neither_loses_a_sample_nor_gives_the_days_orders_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url, settings=ONE_A_DAY)
        job.train_to(5)
        (done,) = ordered(wire, job, ScaleLr(0.5, 10))
        let_jump(monkeypatch, seconds)
        job.train_to(job.guard.steps + 5)
        (refused,) = ordered(wire, job, ScaleLr(0.9, 10))
        last = job.guard.steps
        job.guard.finish()
    assert (done.state, refused.state) == ("applied", "refused")
    assert "Settings.orders_a_day" in refused.reason
    assert sorted(step for _, step in wire.column("loss")) == list(range(1, last + 1))


def test_an_order_dated_by_a_clock_that_was_ahead_counts_for_a_day_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = Order("test#1.1", "a" * 16, SkipBatches(BatchRange(5, 9)), 60.0, None)
    let_jump(monkeypatch, DECADE)
    Journal(tmp_path / "journal.jsonl", RUN).begin("test#1.1", 3, order=order)
    monkeypatch.undo()
    held = Journal(tmp_path / "journal.jsonl", RUN).carried_out
    now = time.monotonic()
    assert count_refusal(ONE_A_DAY, Verb.SKIP_BATCHES, held, now) is not None
    assert count_refusal(ONE_A_DAY, Verb.SKIP_BATCHES, held, now + DAY + 1) is None


def test_what_a_job_left_while_the_clock_stood_at_1970_is_still_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records are older than an age that a message may have."""
    let_jump(monkeypatch, -_wall())
    box = outbox(tmp_path)
    box.put(Samples(0, (1,), {"loss": (3.0,)}, (BatchRange(0, 1),)))
    box.close()
    monkeypatch.undo()
    message = outbox(tmp_path).next_message()
    assert message is not None
    assert message.age_s >= DECADE
    assert any(isinstance(record, Samples) for record in message.records)


def test_a_live_attempts_checkpoint_is_not_swept_however_old_a_jump_makes_it_look(
    tmp_path: Path,
) -> None:
    """Another attempt starts on the same machine while this one is still writing it."""
    job = Job(tmp_path)
    job.train_to(26)
    folder = tmp_path / "checkpoints" / f"checkpoint-00000030-{job.guard.attempt[:8]}.0"
    folder.mkdir(parents=True)
    os.utime(folder, (0, 0))
    other = Job(tmp_path)
    other.guard.finish()
    assert folder.exists()
    job.guard.finish()
    assert CheckpointDirectory(tmp_path / "checkpoints").targets()
