"""What could not be put back is known at `attach()`; neither trying nor capturing changes a bit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from spikeguard import AttachError, attach

from .other_optimizers import KINDS, Kind, Training, missing

HERE = [kind for kind in KINDS if not missing(kind)]


class Choosy:
    """Takes back only a state that was saved later."""

    def __init__(self) -> None:
        self.rows, self.asked = [1, 2], 0

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.asked += 1
        self.rows.clear()
        torch.rand(1)
        raise ValueError(f"{len(state)} entries, not 2")


class Silent(Choosy):
    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError("later")


class Whole(Choosy):
    """Holds the model, so a trial could change that."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = {"average": model}


def job() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(4, 4)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


@pytest.mark.parametrize("kind", [Choosy, Silent])
@pytest.mark.parametrize("argument", ["scheduler", "state"])
def test_what_takes_its_own_state_not_back_is_refused_and_left_as_it_was(
    kind: type[Choosy], argument: str, tmp_path: Path
) -> None:
    model, optimizer = job()
    given, numbers = kind(), torch.get_rng_state()
    more: dict[str, Any] = {argument: [given] if argument == "state" else given}
    with pytest.raises(AttachError, match=kind.__name__) as refused:
        attach(model, optimizer, run="test", directory=tmp_path, **more)
    assert refused.value.argument == argument
    assert (given.rows, given.asked) == ([1, 2], 0)
    assert torch.equal(torch.get_rng_state(), numbers)


def test_what_holds_the_model_is_not_tried(tmp_path: Path) -> None:
    model, optimizer = job()
    whole = Whole(model)
    attach(model, optimizer, run="test", directory=tmp_path, state=[whole]).finish()
    assert (whole.rows, whole.asked) == ([1, 2], 0)


def test_schedules_and_scalers_are_tried_on_copies_that_reach_no_optimizer(tmp_path: Path) -> None:
    """Torch's own pass, and the rates of the groups stay as they are."""
    model, optimizer = job()
    warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=8)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, 40)
    schedule = lr_scheduler.SequentialLR(optimizer, [warm, cosine], [8])
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    before = copy.deepcopy((schedule.state_dict(), scaler.state_dict()))
    groups = copy.deepcopy([{**g, "params": None} for g in optimizer.param_groups])
    guard = attach(
        model, optimizer, run="test", directory=tmp_path, scheduler=schedule, state=[scaler]
    )
    assert (schedule.state_dict(), scaler.state_dict()) == before
    assert [{**g, "params": None} for g in optimizer.param_groups] == groups
    guard.finish()


def bits(tree: Any) -> Any:
    """All that can be reached of an optimizer's, with a copy of each tensor's bytes."""
    if isinstance(tree, Tensor):
        if hasattr(tree, "__tensor_flatten__"):
            return [bits(getattr(tree, name)) for name in tree.__tensor_flatten__()[0]]
        flat = tree.detach().clone().contiguous().reshape(-1)
        return (tuple(tree.shape), tree.data_ptr(), flat.view(torch.uint8).tolist())
    if isinstance(tree, dict):
        return {id(k) if isinstance(k, Tensor) else str(k): bits(v) for k, v in tree.items()}
    return [bits(value) for value in tree] if isinstance(tree, list | tuple) else repr(tree)


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("kind", HERE, ids=lambda kind: kind.name)
def test_capturing_the_state_of_an_optimizer_changes_no_bit_of_it(
    kind: Kind, steps: int, tmp_path: Path
) -> None:
    """Before its first step, when it has no state, and later: no step is made, nobody's hook runs,
    weights, moments, counters, rates and random numbers are what and where they were."""
    training = Training(kind.make, tmp_path)
    training.train_to(steps)
    called: list[Any] = []
    handle = register_optimizer_step_pre_hook(lambda *_: called.append("step"))

    def known() -> Any:
        held = [[each.state, each.param_groups] for each in training.optimizers]
        numbers = torch.get_rng_state().tolist()
        return bits([held, list(training.model.parameters())]), numbers

    before = known()
    recovery = training.guard._p.recovery
    recovery.live()
    recovery.snapshot()
    assert training.guard.checkpoint() is not None
    assert known() == before
    assert called == []
    handle.remove()
    training.finish()
