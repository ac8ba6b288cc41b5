"""Updates that optimizers cannot drop are not entered: on a CPU, and where a sync is paid for."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

from spikeguard import attach

from .job import FAST, assert_same
from .wire import Wire, await_that, served

BY_SYNC = replace(FAST, skip_by_sync=True)


class Stacks(optim.Optimizer):
    """Stacks its gradients, so that one that is missing would end the job."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(list(parameters), {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            moved = torch.stack([p.grad.norm() for p in group["params"]])
            for p, by in zip(group["params"], moved, strict=True):
                p.sub_(p.grad, alpha=group["lr"]).sub_(by, alpha=1e-6)
        return loss


class Coasts(optim.Optimizer):
    """Takes a missing gradient for zeros and moves on by momentum, as some Muons do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(list(parameters), {"lr": 1e-2})
        self.steps = 0

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                kept = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.sub_(kept.mul_(0.9).add_(p.grad), alpha=group["lr"])


class Ascends(Stacks):
    """Moves the weights before it calls its closure, as sharpness-aware ones do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(1e-3)
        return super().step(closure)


MAKERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "stacks": Stacks,
    "coasts": Coasts,
}


class Training:
    """A loop with any optimizer, one of whose gradients is spoilt at some steps."""

    def __init__(self, kind: str, spoilt: set[int], **attached: Any) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        self.optimizer = MAKERS[kind](self.model.parameters())
        attached = {"run": "test", "settings": FAST, **attached}
        self.guard = attach(self.model, self.optimizer, **attached)
        self.spoilt = spoilt

    def backward(self) -> torch.Tensor:
        torch.manual_seed(self.guard.steps)
        batch = torch.randn(6, 4)
        loss: torch.Tensor = self.guard.loss((self.model(batch) - batch).square().mean())
        loss.backward()
        if self.guard.steps + 1 in self.spoilt:
            next(self.model.parameters()).grad[0, 0] = math.nan  # type: ignore[index]
        return loss

    def closure(self) -> torch.Tensor:
        """As given to `step`; the gradients exist only once it has run."""
        self.optimizer.zero_grad()
        return self.backward()

    def closing_step(self) -> torch.Tensor:
        """A step that is given the closure; its answer."""
        optimizer: Any = self.optimizer
        return optimizer.step(self.closure)  # type: ignore[no-any-return]

    def step(self) -> None:
        self.backward()
        gradients = [p.grad for p in self.model.parameters()]
        self.guard.clip_grad_norm_(1.0)
        self.optimizer.step()
        assert all(p.grad is g for p, g in zip(self.model.parameters(), gradients, strict=True))
        self.optimizer.zero_grad(set_to_none=True)
        self.guard.step()

    def state(self) -> Any:
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))


@pytest.mark.parametrize("scheduled_first", [True, False])
def test_nothing_of_the_optimizer_runs_and_its_schedule_counts_on(
    scheduled_first: bool, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Neither its step nor anybody's hooks; in the very first step too, and whoever came first."""
    training = Training("coasts", {1, 3}, directory=tmp_path)
    if scheduled_first:
        training.guard.finish()
    schedule = optim.lr_scheduler.LinearLR(training.optimizer, total_iters=8)
    if scheduled_first:
        arguments: dict[str, Any] = {"run": "test", "settings": BY_SYNC, "directory": tmp_path}
        training.guard = attach(training.model, training.optimizer, **arguments)
    seen: list[str] = []
    training.optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    training.optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    for _ in range(4):
        training.step()
        schedule.step()
    assert training.optimizer.steps == 2  # type: ignore[attr-defined]
    assert seen == ["before", "after"] * 2
    assert schedule.last_epoch == 4
    assert [str(w.message) for w in recwarn if "lr_scheduler" in str(w.message)] == []
    assert training.guard.faults == {}
    training.guard.finish()
    training.step()
    assert training.optimizer.steps == 3  # type: ignore[attr-defined]


def test_a_step_with_a_closure_ends_behind_it(tmp_path: Path) -> None:
    """The loss comes back as from a step that was made; the next one trains on."""
    training = Training("stacks", {2}, directory=tmp_path)
    states, losses = [training.state()], []
    for _ in range(3):
        losses.append(training.closing_step())
        training.guard.step()
        states.append(training.state())
    assert all(isinstance(loss, torch.Tensor) and loss.isfinite() for loss in losses)
    assert_same(states[2], states[1])
    assert not torch.equal(states[3][0]["0.weight"], states[2][0]["0.weight"])
    assert training.guard.faults == {}
    training.guard.finish()


def test_a_step_that_has_moved_weights_before_its_closure_is_only_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To end it there would leave the weights where they are not meant to stay."""
    monkeypatch.setitem(MAKERS, "ascends", Ascends)
    with served(Wire()) as wire:
        training = Training("ascends", {2}, server=wire.url, directory=tmp_path)
        for _ in range(2):
            training.closing_step()
            training.guard.step()
        await_that(lambda: len(wire.column("update_dropped")) == 2)
        training.guard.finish()
    assert set(wire.column("update_dropped").values()) == {0.0}
    assert training.guard.faults["before_step"] >= 1
    assert not all(torch.isfinite(p).all() for p in training.model.parameters())


def test_a_step_taken_before_attach_is_only_reported_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The wrapper is not on its way, so what it does is not told as dropped."""
    torch.manual_seed(1)
    model = nn.Linear(4, 4)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    step = optimizer.step
    with served(Wire()) as wire:
        guard = attach(
            model, optimizer, run="test", server=wire.url, settings=BY_SYNC, directory=tmp_path
        )
        guard.loss(model(torch.full((2, 4), math.nan)).mean()).backward()
        step()
        guard.step()
        await_that(lambda: len(wire.column("update_dropped")) == 1)
        guard.finish()
    assert set(wire.column("update_dropped").values()) == {0.0}
    assert guard.faults == {"before_step": 1}
    assert "Compile optimizer.step after attach()" in caplog.text
