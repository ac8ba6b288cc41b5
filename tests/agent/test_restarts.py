"""A restart goes on, or says what it needs; it is never asked for again in vain."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from spikeguard import CheckpointDirectory, Guard, ResumeError, attach
from spikeguard.errors import EXIT_CANNOT_RESTORE, EXIT_HALF_APPLIED
from spikeguard.state.random_numbers import (
    forget_gpus,
    random_refusal,
    random_state,
    restore_random_state,
)

from .job import Job


class Gpus:
    """Stands for `torch.cuda` of a host without one: `visible` GPUs, `current` among them."""

    def __init__(self, visible: int, current: int, used: set[int]) -> None:
        self.visible, self.current, self.used = visible, current, used
        self.states = {gpu: torch.full((16,), gpu, dtype=torch.uint8) for gpu in range(visible)}

    def in_place_of_torchs(self, patch: pytest.MonkeyPatch) -> None:
        def set_rng_state(state: Tensor, gpu: int) -> None:
            self.states[range(self.visible)[gpu]] = state.clone()

        for name, function in {
            "is_available": lambda: self.visible > 0,
            "is_initialized": lambda: self.visible > 0,
            "device_count": lambda: self.visible,
            "current_device": lambda: self.current,
            "memory_allocated": lambda gpu: int(gpu in self.used),
            "get_rng_state": lambda gpu: self.states[gpu],
            "set_rng_state": set_rng_state,
        }.items():
            patch.setattr(torch.cuda, name, function)


@pytest.mark.parametrize(
    ("saved", "here", "expected"),
    [
        (Gpus(2, 1, {1}), Gpus(1, 0, {0}), {0: 1}),  # its own, whatever else is visible
        (Gpus(2, 0, {0, 1}), Gpus(2, 0, {0, 1}), {0: 0, 1: 1}),  # a model in two parts
        (Gpus(2, 0, {0, 1}), Gpus(1, 0, {0}), {0: 0}),
        (Gpus(8, 3, {3}), Gpus(8, 5, {5}), {5: 3, 3: 3, 0: 0}),
    ],
)
def test_a_rank_puts_back_the_generators_of_its_own_gpus(
    saved: Gpus, here: Gpus, expected: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved.in_place_of_torchs(monkeypatch)
    forget_gpus()
    tree = copy.deepcopy(random_state())
    here.in_place_of_torchs(monkeypatch)
    forget_gpus()
    restore_random_state(tree)
    assert {gpu: int(here.states[gpu][0]) for gpu in expected} == expected
    Gpus(0, 0, set()).in_place_of_torchs(monkeypatch)
    assert random_refusal(tree) == "it holds the random numbers of a GPU, and there is none here"
    forget_gpus()


def test_a_restart_that_fails_twice_in_the_same_way_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 75 asks for another start; the second failure ends with 78 and says what to do."""
    job = Job(tmp_path)
    job.train_to(50)
    job.guard.finish()
    ended = []
    for _ in range(3):
        again = Job(tmp_path)
        monkeypatch.setattr(again.ema, "load_state_dict", {}.pop)
        with pytest.raises(SystemExit, match="restoring checkpoint-00000050") as raised:
            again.guard.resume()
        ended.append(raised.value.code)
        again.guard.finish()
    assert ended == [EXIT_HALF_APPLIED, EXIT_CANNOT_RESTORE, EXIT_CANNOT_RESTORE]
    assert "move this checkpoint away" in str(raised.value)
    mended = Job(tmp_path)
    assert mended.guard.resume() == 50
    mended.guard.finish()
    assert not (tmp_path / "guard/restore_failed.txt").exists()


def test_a_schedule_that_a_checkpoint_has_no_state_of_is_told_before_anything_changes(
    tmp_path: Path,
) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    kept = CheckpointDirectory(tmp_path / "kept", background=False)
    guard = attach(model, optimizer, run="test", directory=tmp_path, checkpoints=kept)
    guard.step()
    assert guard.checkpoint() is not None
    guard.finish()
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    guard = attach(
        model, optimizer, run="test", directory=tmp_path, checkpoints=kept, scheduler=schedule
    )
    with pytest.raises(ResumeError, match="no state of a scheduler"):
        guard.resume()
    guard.finish()


def test_groups_that_the_loop_added_late_are_named_at_the_restart(tmp_path: Path) -> None:
    def begun() -> tuple[nn.Sequential, torch.optim.Optimizer, Guard]:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
        model[1].requires_grad_(False)
        optimizer = torch.optim.AdamW(model[0].parameters(), fused=True)
        kept = CheckpointDirectory(tmp_path / "kept", background=False)
        return (
            model,
            optimizer,
            attach(model, optimizer, run="test", directory=tmp_path, checkpoints=kept),
        )

    model, optimizer, guard = begun()
    model[1].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[1].parameters())})
    guard.step()
    assert guard.checkpoint() is not None
    guard.finish()
    model, optimizer, guard = begun()
    with pytest.raises(ResumeError) as raised:
        guard.resume()
    for said in ("2 parameter groups and has 1", "add_param_group() before guard.resume()"):
        assert said in str(raised.value)
    assert "'1.weight', '1.bias'" in str(raised.value)
    optimizer.add_param_group({"params": list(model[1].parameters())})
    assert guard.resume() == 1
    guard.finish()
