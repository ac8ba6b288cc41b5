"""A lowered learning rate is used by the step and seen by no scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from spikeguard import attach
from spikeguard.optim.lr_scale import LrScale
from spikeguard_protocol import Ack, Order, ScaleLr
from tests.agent.heard import hear, parts_of

SCHEDULES: list[Callable[[Any], Any]] = [
    lambda o: lr_scheduler.CosineAnnealingLR(o, 50),
    lambda o: lr_scheduler.LinearLR(o, total_iters=30),
    lambda o: lr_scheduler.LambdaLR(o, lambda step: 1.0 / (1 + step)),
    lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=60),
]


def rates(schedule: Callable[[Any], Any], *, tensor: bool, scaled: bool) -> tuple[list[float], ...]:
    """What the groups show between steps, and what each step really used."""
    model = nn.Linear(4, 4)
    lr: Any = torch.tensor(0.01) if tensor else 0.01
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    scheduler = schedule(optimizer)
    guard = attach(model, optimizer, run="test", scheduler=scheduler, directory=None)
    used: list[float] = []
    optimizer.register_step_pre_hook(lambda o, *_: used.append(float(o.param_groups[0]["lr"])))
    if scaled:
        parts_of(guard).rates.scale = LrScale(0.25, 0, 20)
    shown = []
    for _ in range(40):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        guard.step()
        shown.append(float(optimizer.param_groups[0]["lr"]))
    assert guard.faults == {}
    guard.finish()
    return shown, used


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_scheduler_sees_the_scale(schedule: Callable[[Any], Any], tensor: bool) -> None:
    shown, used = rates(schedule, tensor=tensor, scaled=True)
    bare, plain = rates(schedule, tensor=tensor, scaled=False)
    assert shown == bare
    factors = [a / b for a, b in zip(used, plain, strict=True)]
    assert factors[:18] == pytest.approx([0.25] * 18)
    assert factors[18:20] == pytest.approx([0.5, 0.75])
    assert used[20:] == plain[20:]


@pytest.mark.parametrize("tensor", [False, True])
def test_a_cap_lowers_a_rate_that_jumped_and_leaves_the_usual_ones_as_they_are(
    tensor: bool,
) -> None:
    """And never by more than its factor."""
    model = nn.Linear(4, 4)
    groups: list[dict[str, Any]] = [
        {"params": [weight], "lr": torch.tensor(rate) if tensor else rate}
        for weight, rate in ((model.weight, 0.01), (model.bias, 0.001))
    ]
    optimizer = torch.optim.AdamW(groups, fused=True)
    guard = attach(model, optimizer, run="test", directory=None)
    parts_of(guard).rates.scale = LrScale(0.05, 0, 20, cap=0.01)
    used: list[list[float]] = []
    optimizer.register_step_pre_hook(
        lambda o, *_: used.append([float(group["lr"]) for group in o.param_groups])
    )
    for jump in (1.0, 4.0, 0.5, 100.0):
        for group, usual in zip(optimizer.param_groups, (0.01, 0.001), strict=True):
            rate = usual * jump
            if tensor:
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        guard.step()
    assert used == [
        pytest.approx([0.01, 0.001]),
        pytest.approx([0.01, 0.001]),
        pytest.approx([0.005, 0.0005]),
        pytest.approx([0.05, 0.005]),
    ]
    assert guard.faults == {}
    guard.finish()


def test_an_order_to_scale_survives_a_step_that_fails() -> None:
    """An optimizer step that raises leaves no scaled rate behind."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, run="test")
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    guard.step()
    order = Order("test#1.1", guard.attempt, ScaleLr(0.5, 10), 60.0, None)
    hear(guard, Ack(1, (order,)))
    guard.step()
    assert guard.state().lr_scale is not None

    def fail() -> float:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step(fail)
    guard.step()
    assert optimizer.param_groups[0]["lr"] == 0.01
    guard.finish()
