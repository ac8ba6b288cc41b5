"""The user's own tracker gets the values too, and can do no harm."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spikeguard import Forward
from spikeguard.uplink.tracker import WAITING
from tests.agent.job import Job
from tests.agent.wire import await_that


class Tracker:
    """What arrived, and from where."""

    def __init__(self) -> None:
        self.seen: dict[int, dict[str, float]] = {}
        self.threads: set[str] = set()

    def take(self, values: dict[str, float], step: int) -> None:
        self.threads.add(threading.current_thread().name)
        self.seen.setdefault(step, {}).update(values)


class TensorBoard(Tracker):
    """A SummaryWriter's way."""

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.take({name: value}, step)


class Wandb(Tracker):
    """A W&B run's."""

    def log(self, values: dict[str, float], step: int) -> None:
        self.take(values, step)


def trained(folder: Path, forward: Forward, steps: int = 12) -> Job:
    job = Job(folder, forward=forward)
    job.train_to(steps)
    job.guard.finish()
    return job


@pytest.mark.parametrize("kind", [TensorBoard, Wandb])
def test_every_step_arrives_under_its_usual_names_from_another_thread(
    kind: type[Any], tmp_path: Path
) -> None:
    tracker = kind()
    trained(tmp_path, Forward(tracker))
    assert sorted(tracker.seen) == list(range(1, 13))
    assert {"train/loss", "train/grad_norm_raw", "train/learning_rate"} <= set(tracker.seen[1])
    assert tracker.threads == {"spikeguard-forward"}


def test_the_module_of_mlflow_is_refused_with_the_function_to_give() -> None:
    mlflow = SimpleNamespace(active_run=lambda: None, log_metrics=print)
    with pytest.raises(TypeError, match="run_id=RUN_ID"):
        Forward(mlflow)


def test_the_real_tensorboard_has_every_step(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path / "events"))
    forward = Forward(writer)
    trained(tmp_path, forward)
    writer.close()
    assert forward.error is None
    read = events.EventAccumulator(str(tmp_path / "events")).Reload()
    assert [event.step for event in read.Scalars("train/loss")] == list(range(1, 13))


def test_a_tracker_that_fails_is_counted_and_never_raised(tmp_path: Path) -> None:
    def broken(values: dict[str, float], step: int) -> None:
        raise OSError(f"no room for step {step}, {len(values)} values")

    forward = Forward(broken)
    job = trained(tmp_path, forward)
    assert (job.guard.steps, job.guard.faults) == (12, {})
    assert forward.failed == 12
    assert "no room" in str(forward.error)


def test_a_tracker_that_hangs_costs_a_bounded_queue_and_no_step(tmp_path: Path) -> None:
    release, entered = threading.Event(), threading.Event()

    def hung(values: dict[str, float], step: int) -> None:
        del values, step
        entered.set()
        release.wait()

    forward = Forward(hung)
    job = Job(tmp_path, forward=forward)
    job.train_to(1)
    assert entered.wait(120)
    for step in range(2, WAITING + 12):
        forward.put(step, {"loss": 1.0})
    assert forward.dropped == 10
    release.set()
    await_that(lambda: not forward._waiting)
    job.guard.finish()


def test_something_that_is_no_tracker_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="SummaryWriter"):
        Forward(3)
