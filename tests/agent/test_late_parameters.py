"""What begins to train after `attach()` is measured, clipped and guarded like everything else."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spikeguard import Guard, Settings, attach
from spikeguard.optim.clipping import AdaGC, Rule

from .heard import parts_of
from .job import assert_same

WARM_UP = 5


class Growing:
    """A trained head over a body that is frozen while the guard attaches."""

    def __init__(self, folder: Path, clip: Rule | None = None) -> None:
        torch.manual_seed(3)
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 4)
        self.model = nn.Sequential(self.body, self.head)
        self.body.requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.head.parameters(), lr=1e-3, fused=True)
        settings = Settings(slow_signals_every=1)
        self.guard: Guard = attach(
            self.model, self.optimizer, run="test", directory=folder, settings=settings, clip=clip
        )

    def step(self, clip: Callable[[], Any], gradient: float | None = None) -> None:
        """`gradient`: of each of the body's 16 weights, in place of its own."""
        self.guard.loss(self.model(torch.ones(2, 4)).square().mean()).backward()
        if gradient is not None:
            self.body.weight.grad = torch.full((4, 4), gradient)
        clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.guard.step()


def unfrozen(job: Growing) -> None:
    job.body.requires_grad_(True)
    job.optimizer.add_param_group({"params": list(job.body.parameters())})


def unfrozen_in_its_group(job: Growing) -> None:
    job.body.requires_grad_(True)
    job.optimizer.param_groups[0]["params"] += list(job.body.parameters())


def put_on_top(job: Growing) -> None:
    """A layer that the model did not have."""
    job.body = nn.Linear(4, 4)
    job.model.append(job.body)
    job.optimizer.add_param_group({"params": list(job.body.parameters())})


def outside_the_model(job: Growing) -> None:
    """A parameter of the loss, which only the optimizer knows."""
    job.body = nn.Linear(4, 4)
    job.optimizer.add_param_group({"params": list(job.body.parameters())})


def gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


LATE = [unfrozen, unfrozen_in_its_group, put_on_top, outside_the_model]


@pytest.mark.parametrize("late", LATE)
def test_a_nan_in_it_never_becomes_a_weight(
    tmp_path: Path, late: Callable[[Growing], None]
) -> None:
    job = Growing(tmp_path)
    job.step(int)
    late(job)
    job.step(int, 0.1)
    before = copy.deepcopy((job.model.state_dict(), job.optimizer.state_dict()["state"]))
    job.step(int, math.nan)
    assert_same((job.model.state_dict(), job.optimizer.state_dict()["state"]), before)
    job.guard.finish()


@pytest.mark.parametrize("late", [unfrozen, put_on_top])
def test_adagc_lets_it_warm_up_and_keeps_what_it_knew_of_the_others(
    tmp_path: Path, late: Callable[[Growing], None]
) -> None:
    """A row that has seen nothing is not held against an average of nothing."""
    rule, left = AdaGC(warm_up=WARM_UP, warm_up_norm=1e6), list[float]()
    job = Growing(tmp_path, rule)
    for _ in range(3 * WARM_UP):
        job.step(lambda: job.guard.clip_grad_norm_(None))
    names = parts_of(job.guard).collector._listed.names
    known = {n: row.clone() for n, row in zip(names, rule.state_dict()["state"].T, strict=True)}
    late(job)

    def clip() -> None:
        job.guard.clip_grad_norm_(None)
        left.append(float(gradient_of(job.body.weight).norm()))

    for _ in range(WARM_UP):
        job.step(clip, 1.0)
    assert left == pytest.approx([4.0] * WARM_UP)
    job.step(clip, 100.0)
    assert left[-1] == pytest.approx(4.0 * 1.05, rel=1e-3)
    now = dict(zip(names, rule.state_dict()["state"].T, strict=True))
    assert all(
        float(now[n][1]) == float(row[1]) + WARM_UP + 1 for n, row in known.items() if row[1]
    )
    assert job.guard.faults == {}
    job.guard.finish()
