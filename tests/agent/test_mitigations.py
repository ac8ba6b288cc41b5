"""What a job has registered is on at the ordered steps, on no others, and nothing else is taken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spikeguard import AttachError, Mitigation
from spikeguard_cli.main import main
from spikeguard_protocol import (
    Action,
    Apply,
    AttemptStarted,
    BatchRange,
    Medium,
    ResultState,
    Rollback,
    Verb,
)
from spikeguard_protocol.abilities import mitigations_from_settings

from .job import FAST, Job, order, result, target_at
from .wire import Wire, await_that, served


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
        job = Swapped(tmp_path, server=wire.url)
        job.train_to(12)
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
    job = Swapped(tmp_path)
    job.train_to(45)
    target = target_at(job, 40, Medium.MEMORY)
    first = Rollback(target, 40, BatchRange(41, 43), apply="swap-data", apply_steps=30)
    command = order(job, first, 1)
    job.train_to(55)
    assert "then with swap-data" in result(job, command).reason
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
    job = Swapped(tmp_path)
    job.train_to(10)
    order(job, Apply("swap-data", 40), command="test#1.7")
    job.train_to(30)
    job.guard.finish()  # the checkpoint of step 25 is the newest
    second = Swapped(tmp_path)
    assert second.guard.resume() == 25
    second.train_to(60)
    second.guard.finish()
    end = job.made[0] + 39
    assert second.made == list(range(26, end + 1))
    third = Swapped(tmp_path / "third")
    third.train_to(10)
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
    job = Swapped(tmp_path, settings=replace(FAST, **changed))
    job.train_to(12)
    command = order(job, action)
    job.train_to(20)
    assert result(job, command).state is ResultState.REFUSED
    assert reason in result(job, command).reason
    assert job.made == []
    job.guard.finish()


def test_one_that_cannot_be_switched_on_is_told_as_failed_and_the_loop_trains_on(
    tmp_path: Path,
) -> None:
    job = Swapped(tmp_path, broken=True)
    job.train_to(12)
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
