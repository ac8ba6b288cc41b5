"""Updates kept from optimizers that cannot drop them, where a sync in each step is paid for."""

from __future__ import annotations

import copy
import logging
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

BY_SYNC = replace(FAST, drop_by_sync=True)
MAKERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "fused sgd": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9, fused=True),
    "adam": lambda p: optim.Adam(p, lr=1e-2, weight_decay=0.1, foreach=True),
    "adamw, amsgrad": lambda p: optim.AdamW(p, lr=1e-2, amsgrad=True, foreach=False),
    "rmsprop": lambda p: optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=1e-2),
    "adafactor": lambda p: optim.Adafactor(p, lr=1e-2),
}


class Training:
    """A loop with any optimizer, one of whose gradients is spoilt at some steps."""

    def __init__(self, kind: str, spoilt: set[int], **attached: Any) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        self.optimizer = MAKERS[kind](self.model.parameters())
        attached = {"run": "test", "settings": BY_SYNC, **attached}
        self.guard = attach(self.model, self.optimizer, **attached)
        self.spoilt = spoilt

    def step(self) -> None:
        torch.manual_seed(self.guard.steps)
        batch = torch.randn(6, 4)
        self.guard.loss((self.model(batch) - batch).square().mean()).backward()
        gradients = [p.grad for p in self.model.parameters()]
        if self.guard.steps + 1 in self.spoilt:
            gradients[0][0, 0] = math.nan  # type: ignore[index]
        self.guard.clip_grad_norm_(1.0)
        self.optimizer.step()
        assert all(p.grad is g for p, g in zip(self.model.parameters(), gradients, strict=True))
        self.optimizer.zero_grad(set_to_none=True)
        self.guard.step()

    def state(self) -> Any:
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))


@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_withheld_update_leaves_weights_and_all_that_is_known_of_them(
    kind: str, at: int, tmp_path: Path
) -> None:
    """In the first step too, where momentum is not there yet; gradients come back as they were."""
    training = Training(kind, {at}, directory=tmp_path)
    for _ in range(at - 1):
        training.step()
    before = training.state()
    training.step()
    assert_same(training.state(), before)
    training.step()
    after = training.state()
    assert not torch.equal(after[0]["0.weight"], before[0]["0.weight"])
    assert all(torch.isfinite(p).all() for p in training.model.parameters())
    assert training.guard.faults == {}
    training.guard.finish()


def test_a_withheld_update_is_reported_as_dropped(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        training = Training("sgd", {3}, server=wire.url, directory=tmp_path)
        for _ in range(5):
            training.step()
        await_that(lambda: len(wire.column("loss")) == 5)
        training.guard.finish()
    dropped = wire.column("update_dropped")
    assert [step for (_, step), value in dropped.items() if value] == [3]


def test_what_is_not_paid_for_is_said_by_attach_and_only_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "spikeguard"):
        training = Training("sgd", {2}, directory=tmp_path, settings=FAST)
    said = [record.getMessage() for record in caplog.records if "found_inf" in record.getMessage()]
    assert len(said) == 1
    assert "SGD" in said[0]
    assert "drop_by_sync" in said[0]
    for _ in range(2):
        training.step()
    assert not all(torch.isfinite(p).all() for p in training.model.parameters())
    training.guard.finish()


def test_an_optimizer_that_takes_no_gradient_for_zero_is_never_held_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(4, 1)
    with caplog.at_level(logging.WARNING, "spikeguard"):
        guard = attach(
            model, optim.LBFGS(model.parameters()), run="test", directory=tmp_path, settings=BY_SYNC
        )
    assert "LBFGS takes no found_inf" in caplog.text
    assert "drop_by_sync" not in caplog.text
    guard.finish()


def test_who_can_drop_without_a_sync_is_not_made_to_wait(tmp_path: Path) -> None:
    """Fused AdamW keeps its gradients and is lent its flag, whatever was paid for."""
    model = nn.Linear(4, 4)
    optimizer = optim.AdamW(model.parameters(), fused=True)
    guard = attach(model, optimizer, run="test", directory=tmp_path, settings=BY_SYNC)
    seen: list[Any] = []
    optimizer.register_step_pre_hook(
        lambda *_: seen.append((hasattr(optimizer, "found_inf"), model.weight.grad is not None))
    )
    model(torch.full((2, 4), math.nan)).mean().backward()
    optimizer.step()
    guard.step()
    assert seen == [(True, True)]
    guard.finish()
