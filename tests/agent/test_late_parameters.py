"""What begins to train after `attach()` is measured, clipped and guarded like everything else."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from spikeguard import Guard, Settings, attach

from .job import assert_same


class Growing:
    """A trained head over a body that is frozen while the guard attaches."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(3)
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 4)
        self.model = nn.Sequential(self.body, self.head)
        self.body.requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.head.parameters(), lr=1e-3, fused=True)
        settings = Settings(slow_signals_every=1)
        self.guard: Guard = attach(
            self.model, self.optimizer, run="test", directory=folder, settings=settings
        )

    def step(self, gradient: float | None = None) -> None:
        """`gradient`: of each of the body's 16 weights, in place of its own."""
        self.guard.loss(self.model(torch.ones(2, 4)).square().mean()).backward()
        if gradient is not None:
            self.body.weight.grad = torch.full((4, 4), gradient)
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


LATE = [unfrozen, unfrozen_in_its_group, put_on_top, outside_the_model]


@pytest.mark.parametrize("late", LATE)
def test_a_nan_in_it_never_becomes_a_weight(
    tmp_path: Path, late: Callable[[Growing], None]
) -> None:
    job = Growing(tmp_path)
    job.step()
    late(job)
    job.step(0.1)
    before = copy.deepcopy((job.model.state_dict(), job.optimizer.state_dict()["state"]))
    job.step(math.nan)
    assert_same((job.model.state_dict(), job.optimizer.state_dict()["state"]), before)
    job.guard.finish()
