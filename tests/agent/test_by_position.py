"""Data that is a function of an index: exact restarts, rollbacks and skips without a loader."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spikeguard import CheckpointDirectory, attach, by_position
from spikeguard_protocol import BatchRange, Medium, Rollback, SkipBatches

from .job import FAST, order, target_at

TEXT = torch.arange(10_000)


def get_batch() -> Tensor:
    """As nanoGPT's: it draws where to read from the global random numbers."""
    drawn = int(torch.randint(8_000, ())) + random.randrange(900) + np.random.randint(900)
    return TEXT[drawn].float().view(1, 1)


class Loop:
    """Fetches one item ahead and draws random numbers of its own, as dropout does."""

    def __init__(self, folder: Path, loader: Any, micro: int = 1) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=True)
        checkpoints = CheckpointDirectory(folder / "checkpoints", every=5, background=False)
        self.guard = attach(
            self.model,
            self.optimizer,
            run="test",
            checkpoints=checkpoints,
            micro_batches=micro,
            settings=FAST,
        )
        self.guard.resume()
        self.items, self.micro = iter(self.guard.batches(loader)), micro
        self.held: Tensor | None = None
        self.trained: dict[int, list[float]] = {}  # by step, as it was trained last

    def train(self, steps: int) -> None:
        while self.guard.steps < steps:
            before, used = self.guard.steps, []
            for _ in range(self.micro):
                item = next(self.items) if self.held is None else self.held
                used.append(float(item))
                loss = (self.model(item) * torch.rand(())).mean()
                self.held = next(self.items)
                self.guard.loss(loss).backward()
            self.guard.clip_grad_norm_(1.0)
            self.optimizer.step()
            self.guard.step()
            if self.guard.steps == before + 1:
                self.trained[self.guard.steps] = used

    def bits(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]


@pytest.mark.parametrize("micro", [1, 3])
def test_restart_rollback_and_skip_are_exact(tmp_path: Path, micro: int) -> None:
    def loader() -> Any:
        return by_position(lambda _: get_batch(), seed=7)

    plain = Loop(tmp_path / "plain", loader(), micro)
    plain.train(40)
    plain.guard.finish()

    loop = Loop(tmp_path / "restarted", loader(), micro)
    loop.train(23)
    loop.guard.finish()
    again = Loop(tmp_path / "restarted", loader(), micro)
    assert again.guard.steps == 20
    again.train(40)
    again.guard.finish()
    assert {**loop.trained, **again.trained} == plain.trained
    assert all(map(torch.equal, again.bits(), plain.bits()))

    skipping = Loop(tmp_path / "skipping", loader(), micro)
    skipping.train(14)
    order(skipping, Rollback(target_at(skipping, 10, Medium.MEMORY), 10, BatchRange(11, 13)))
    skipping.train(16)
    order(skipping, SkipBatches(BatchRange(25, 30)), 2)
    skipping.train(30)
    assert skipping.guard.faults == {}
    skipping.guard.finish()
    left = [p for p in range(40) if not (11 <= p < 13 or 25 <= p < 30)]
    assert list(skipping.trained.values()) == [plain.trained[p + 1] for p in left[:30]]


def test_the_jobs_own_random_numbers_stay_as_they_are() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())  # type: ignore[index]
    items = by_position(lambda _: get_batch(), seed=3)
    first = list(islice(items, 5))
    after = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())  # type: ignore[index]
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])
    assert len({float(item) for item in first}) == 5
    again = islice(by_position(lambda _: get_batch(), seed=3), 5)
    assert [float(item) for item in again] == [float(item) for item in first]
    other = islice(by_position(lambda _: get_batch(), seed=4), 5)
    assert [float(item) for item in other] != [float(item) for item in first]
