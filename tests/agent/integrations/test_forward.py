"""The user's own tracker gets the values too, and can do no harm."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spikeguard import AttachError
from spikeguard.loop.exchange import FORWARDED, Write
from tests.agent.job import Job
from tests.agent.wire import await_that


def trained(folder: Path, forward: Write, steps: int = 12) -> Job:
    job = Job(folder, forward=forward).train_to(steps)
    job.guard.finish()
    return job


def test_every_step_arrives_by_its_signals_names_from_another_thread(tmp_path: Path) -> None:
    seen, threads = dict[int, dict[str, float]](), set[str]()

    def take(values: dict[str, float], step: int) -> None:
        threads.add(threading.current_thread().name)
        seen[step] = values

    trained(tmp_path, take)
    assert list(seen) == list(range(1, 13))
    assert {"loss", "grad_norm", "lr"} <= set(seen[1])
    assert threads == {"spikeguard-forward"}


def test_the_real_tensorboard_has_every_step(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path / "events"))
    trained(tmp_path, lambda values, step: writer.add_scalars("train", values, step))
    writer.close()
    read = events.EventAccumulator(str(tmp_path / "events" / "train_loss")).Reload()
    assert [event.step for event in read.Scalars("train")] == list(range(1, 13))


def test_a_tracker_that_fails_is_counted_and_never_raised(tmp_path: Path) -> None:
    def broken(values: dict[str, float], step: int) -> None:
        raise SystemExit(f"no room for step {step}, {len(values)} values")

    job = trained(tmp_path, broken)
    assert (job.guard.steps, job.guard.faults) == (12, {"forward": 12})


def test_a_tracker_that_hangs_costs_a_bounded_queue_and_no_step(tmp_path: Path) -> None:
    release, entered = threading.Event(), threading.Event()

    def hung(values: dict[str, float], step: int) -> None:
        del values, step
        entered.set()
        release.wait()

    job = Job(tmp_path, forward=hung).train_to(1)
    assert entered.wait(120)
    tracker = job.guard._reporter._forward
    assert tracker is not None
    for step in range(2, FORWARDED + 12):
        tracker.put(step, {"loss": 1.0})
    assert job.guard.faults == {"forward": 10}
    release.set()
    await_that(lambda: not tracker._waiting)
    job.guard.finish()


def test_something_that_is_no_function_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(AttachError, match=r"forward=.*function of \(values, step\)"):
        Job(tmp_path, forward=3)
