"""Orders and the job's own mitigations: carried out as ordered, or refused with a reason."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from spikeguard import AttachError, AttemptAborted, Mitigation
from spikeguard.commands.rollback import Rollbacks
from spikeguard.data import reading
from spikeguard.optim.lr_scale import LrScale
from spikeguard_cli.main import main
from spikeguard_protocol import (
    Ack,
    Action,
    Apply,
    AttemptStarted,
    BatchRange,
    CheckpointNow,
    Medium,
    ResultState,
    Rollback,
    ScaleLr,
    SkipBatches,
    Stop,
    Verb,
    Watch,
)
from spikeguard_protocol.abilities import mitigations_from_settings

from .heard import hear
from .job import FAST, Job, batch_at, order, result, target_at
from .wire import Wire, await_that, served

REFUSED: list[tuple[Action, dict[str, Any], str]] = [
    (Watch(5), {"attempt": "0" * 16}, "meant for attempt"),
    (Watch(5), {"expires_in_s": -1.0}, "expired"),
    (Watch(5), {"expires_at_step": 30}, "expired at step 30"),
    (SkipBatches(BatchRange(31, 35)), {}, "position 31 was read already"),
    (Rollback("memory-gone", 20), {}, "is gone"),
]


@pytest.mark.parametrize(("action", "changes", "reason"), REFUSED)
def test_an_order_that_cannot_be_obeyed_is_refused_with_a_reason(
    tmp_path: Path, action: Action, changes: dict[str, Any], reason: str
) -> None:
    job = Job(tmp_path).train_to(30)
    assert job._batches is not None
    next(job._batches)  # a batch that is fetched ahead is read, though nothing has trained on it
    command = order(job, action, **changes)
    job.train_step()
    assert result(job, command).state is ResultState.REFUSED
    assert reason in result(job, command).reason
    assert job.guard.steps == 31
    job.guard.finish()


def test_going_back_is_refused_where_reading_the_data_again_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader without a state, 2 ms an item: 20 items are over 10 ms, and under 600 s."""

    def slow() -> Iterator[Tensor]:
        for number in range(1000):
            time.sleep(0.002)
            yield batch_at(number)

    class Loader:
        def __iter__(self) -> Iterator[Tensor]:
            return slow()

    for limit, state in ((0.01, ResultState.REFUSED), (600.0, ResultState.APPLIED)):
        monkeypatch.setattr(reading, "AGAIN_S", limit)
        job = Job(tmp_path / f"{limit}", loader=Loader()).train_to(30)
        command = order(job, Rollback(target_at(job, 20, Medium.MEMORY), 20))
        job.train_step()
        told = result(job, command)
        assert told.state is state
        assert ("over 0.01 s" in told.reason) is (state is ResultState.REFUSED)
        job.guard.finish()


def test_a_rollback_to_another_step_than_named_is_refused(tmp_path: Path) -> None:
    job = Job(tmp_path).train_to(30)
    command = order(job, Rollback(target_at(job, 20, Medium.MEMORY), 10))
    job.train_step()
    assert "is of step 20, not 10" in result(job, command).reason
    job.guard.finish()


def test_an_abandoned_checkpoint_is_never_returned_to(tmp_path: Path) -> None:
    job = Job(tmp_path).train_to(60)
    newer = target_at(job, 50, Medium.DISK)
    order(job, Rollback(target_at(job, 25, Medium.DISK), 25), 1)
    job.train_step()
    command = order(job, Rollback(newer, 50), 2)
    job.train_step()
    assert "abandoned" in result(job, command).reason
    job.guard.finish()


def test_what_a_loop_cannot_do_is_not_offered_and_refused(tmp_path: Path) -> None:
    """A loop that reads its loader directly can neither skip nor go back."""
    job = Job(tmp_path)
    assert "rollback" not in job.guard.capabilities
    job.guard.step()
    command = order(job, SkipBatches(BatchRange(50, 60)))
    job.guard.step()
    assert "cannot skip_batches" in result(job, command).reason
    job.guard.finish()


def test_a_repeated_order_is_obeyed_once(tmp_path: Path) -> None:
    job = Job(tmp_path).train_to(35)
    name = target_at(job, 20, Medium.MEMORY)
    order(job, Rollback(name, 20))
    job.train_step()
    again = job.guard.state().orders[0]
    for _ in range(5):
        hear(job.guard, Ack(1, (again,)))
        job.train_step()
    assert (job.guard.steps, job.guard.state().segment) == (25, 1)
    job.guard.finish()


def test_another_order_of_a_number_that_was_used_is_refused_and_never_called_done(
    tmp_path: Path,
) -> None:
    """A server that was restored from a backup counts on from there; also after a restart."""
    first = Job(tmp_path).train_to(5)
    command = order(first, Watch(5))
    before = first.guard.state().orders[0]
    first.train_step()
    for again in (False, True):
        job = Job(tmp_path) if again else first
        job.guard._executor._answered_at.clear()  # as if it was long ago
        another = replace(before, action=ScaleLr(0.5, 10), attempt=job.guard.attempt)
        hear(job.guard, Ack(1, (another,)))
        job.train_step()
        assert result(job, command).reason == "watching for 5 steps"
        assert job.guard.state().lr_scale is None
        job.guard.finish()
        told = (tmp_path / "guard" / "outbox" / job.guard.attempt).glob("*.jsonl")
        text = b"".join(file.read_bytes() for file in told)
        assert text.count(b"another command of this number") == 1


def test_an_order_repeated_by_the_server_does_not_get_more_time(tmp_path: Path) -> None:
    job = Job(tmp_path).train_to(5)
    order(job, Watch(5), expires_in_s=0.05)
    again = job.guard.state().orders[0]
    time.sleep(0.1)
    hear(job.guard, Ack(1, (again,)))
    job.train_step()
    assert "expired" in result(job, "test#1.1").reason
    job.guard.finish()


def test_a_checkpoint_on_demand_lies_on_disk(tmp_path: Path) -> None:
    job = Job(tmp_path).train_to(10)
    command = order(job, CheckpointNow())
    job.train_step()
    assert result(job, command).state is ResultState.APPLIED
    assert job.guard.state().checkpoints[0].step == 11
    job.guard.finish()


def test_a_stop_ends_the_batches(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url).train_to(10)
        await_that(lambda: wire.messages)
        command = wire.order(Stop())
        await_that(lambda: job.guard.state().orders)
        job.train_to(60)
        assert job.guard.stopped
        job.guard.finish()
        assert wire.result(command)
        assert wire.history()[-1].reason == "stopped"


def test_without_a_journal_nothing_is_carried_out(tmp_path: Path) -> None:
    """A journal that cannot be written could not keep the bad data out after a crash."""
    job = Job(tmp_path).train_to(35)
    journal = tmp_path / "guard/journal.jsonl"
    journal.unlink()
    journal.mkdir()
    command = order(job, Rollback(target_at(job, 20, Medium.MEMORY), 20, BatchRange(22, 24)))
    job.train_step()
    assert job.guard.steps == 36
    assert "journal" in result(job, command).reason
    assert job.guard.state().skipped == ()
    job.guard.finish()


def test_a_rate_lowered_with_a_rollback_survives_a_crash_right_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun, not finished: the restart goes back, lowers the rate, and only then says applied."""
    job = Job(tmp_path).train_to(60)
    order(job, Rollback(target_at(job, 25, Medium.DISK), 25, BatchRange(27, 30), 0.5, 40))
    with monkeypatch.context() as patch:
        patch.setattr(Rollbacks, "begin", _fails)
        with pytest.raises(AttemptAborted, match="written down and not carried out"):
            job.train_step()
    job.guard.finish()
    second = Job(tmp_path)
    assert second.guard.resume() == 25
    assert second.guard.state().lr_scale == LrScale(0.5, 25, 40)
    second.train_step()
    assert result(second, "test#1.1").state is ResultState.APPLIED
    second.guard.finish()


def _fails(*_: object) -> None:
    raise RuntimeError("out of memory")


class Swapped(Job):
    """A job that can read other data; `made` holds the steps that were made of it, in turn."""

    def __init__(self, folder: Path, **attaching: Any) -> None:
        self.other, self.undone, self.made = False, 0, list[int]()
        self.broken = attaching.pop("broken", False)
        swap = Mitigation("swap-data", self.swap, self.back, "20 % a step")
        super().__init__(folder, mitigations=[swap], **attaching)
        self.spoil = lambda _: self.made.append(self.guard.steps + 1) if self.other else None

    def swap(self) -> None:
        if self.broken:
            raise RuntimeError("no such mix")
        self.other = True

    def back(self) -> None:
        self.other, self.undone = False, self.undone + 1


def test_it_is_on_for_the_ordered_steps_and_then_undone(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        job = Swapped(tmp_path, server=wire.url).train_to(12)
        command = wire.order(Apply("swap-data", 10))
        await_that(lambda: job.guard.state().orders)
        job.train_to(40)
        assert result(job, command).state is ResultState.APPLIED
        applied = result(job, command).step
        job.guard.finish()
        started = wire.records(AttemptStarted)[-1]
    assert job.made == list(range(applied + 1, applied + 11))
    assert (job.other, job.undone, job.guard.faults) == (False, 1, {})
    assert Verb.APPLY in started.capabilities
    assert mitigations_from_settings(started.settings) == {"swap-data": "20 % a step"}


def test_a_rollback_goes_on_with_it_and_one_to_before_it_undoes_it(tmp_path: Path) -> None:
    job = Swapped(tmp_path).train_to(45)
    target = target_at(job, 40, Medium.MEMORY)
    first = Rollback(target, 40, BatchRange(41, 43), apply="swap-data", apply_steps=30)
    command = order(job, first, 1)
    job.train_to(55)
    assert ", with swap-data" in result(job, command).reason
    assert job.made == list(range(41, 56))
    order(job, Rollback(target_at(job, 25, Medium.DISK), 25), 2)
    job.train_step()
    assert job.guard.mitigations == ()
    job.train_to(50)
    assert job.made == list(range(41, 57))
    job.guard.finish()


def test_a_restart_goes_on_with_it_until_its_end_unless_somebody_undid_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Swapped(tmp_path).train_to(10)
    order(job, Apply("swap-data", 40), command="test#1.7")
    job.train_to(30)
    job.guard.finish()  # the checkpoint of step 25 is the newest
    second = Swapped(tmp_path)
    assert second.guard.resume() == 25
    second.train_to(60)
    second.guard.finish()
    end = job.made[0] + 39
    assert second.made == list(range(26, end + 1))
    third = Swapped(tmp_path / "third").train_to(10)
    order(third, Apply("swap-data", 40), command="test#1.7")
    third.train_to(30)
    third.guard.finish()
    assert main(["journal", str(tmp_path / "third" / "guard"), "--undo", "test#1.7"]) == 0
    assert "swap-data" in capsys.readouterr().out
    last = Swapped(tmp_path / "third")
    last.guard.resume()
    last.train_to(40)
    last.guard.finish()
    assert last.made == []


@pytest.mark.parametrize(
    ("action", "changed", "reason"),
    [
        (Apply("tight-clip", 10), {}, "registered no mitigation tight-clip: swap-data"),
        (Apply("swap-data", 9_000), {}, "Settings.apply_steps_most"),
        (Apply("swap-data", 9), {"allowed_verbs": ("rollback",)}, "does not take apply"),
        (Apply("swap-data", 9), {"observe_only": True}, "only observes"),
    ],
)
def test_what_is_not_registered_or_beyond_the_limits_is_refused(
    action: Action, changed: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    job = Swapped(tmp_path, settings=replace(FAST, **changed)).train_to(12)
    command = order(job, action)
    job.train_to(20)
    assert result(job, command).state is ResultState.REFUSED
    assert reason in result(job, command).reason
    assert job.made == []
    job.guard.finish()


def test_one_that_cannot_be_switched_on_is_told_as_failed_and_the_loop_trains_on(
    tmp_path: Path,
) -> None:
    job = Swapped(tmp_path, broken=True).train_to(12)
    command = order(job, Apply("swap-data", 10))
    job.train_to(30)
    told = result(job, command)
    assert told.state is ResultState.FAILED
    assert "no such mix" in told.reason
    assert (job.made, job.undone) == ([], 1)
    job.guard.finish()
    again = Swapped(tmp_path)
    again.guard.resume()
    again.train_to(35)
    assert again.made == []
    again.guard.finish()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Mitigation("Swap", list, list),
        lambda: Mitigation("swap", list, 3),  # type: ignore[arg-type]
        lambda: Job(None, mitigations=[Mitigation("a", list, list)] * 2),
        lambda: Job(None, mitigations=["a"]),
    ],
)
def test_what_cannot_be_registered_names_the_remedy(
    wrong: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AttachError, match="mitigations"):
        wrong()
