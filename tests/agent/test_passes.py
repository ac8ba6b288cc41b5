"""Passes over data, and data by index: restarts, rollbacks and skips read what they would have."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler

from spikeguard import CheckpointDirectory, Guard, ResumeError, attach, by_position
from spikeguard_protocol import BatchRange, Medium, Rollback, SkipBatches

from .job import FAST, order, target_at

pytestmark = pytest.mark.slow  # seconds of restarts
PASS, STEPS = 24, 72


def rows(**given: Any) -> DataLoader[Tensor]:
    data: Any = [torch.tensor([float(n)]) for n in range(96)]
    return DataLoader(data, batch_size=4, **given)


def distributed() -> DataLoader[Tensor]:
    return rows(sampler=DistributedSampler(range(96), 1, 0, seed=3))  # type: ignore[arg-type]


class Turned(Dataset[Tensor]):
    """Other items in each pass; what it was set to it does not say."""

    def __init__(self) -> None:
        self._turn = 0

    def set_epoch(self, epoch: int) -> None:
        self._turn = epoch

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float((index + 7 * self._turn) % 96)])


LOADERS: dict[str, Callable[[], DataLoader[Tensor]]] = {
    "set_epoch": distributed,
    "generator": lambda: rows(shuffle=True, generator=torch.Generator().manual_seed(7)),
    "sampler": lambda: rows(
        sampler=RandomSampler(range(96), generator=torch.Generator().manual_seed(7))
    ),
    "global": lambda: rows(shuffle=True),
    "dataset": lambda: DataLoader(Turned(), batch_size=4, shuffle=True),
}


class Loop:
    """Three passes, with checkpoints."""

    def __init__(
        self, folder: Path, loader: DataLoader[Tensor], every: int = 10, **attaching: Any
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.loader = loader
        self.guard: Guard = attach(
            self.model,
            self.optimizer,
            run="test",
            settings=FAST,
            checkpoints=CheckpointDirectory(folder / "checkpoints", every=every, background=False),
            **attaching,
        )
        self.seen: dict[int, list[float]] = {}

    def train(self, batch: Tensor) -> None:
        self.seen[self.guard.steps] = batch.flatten().tolist()
        self.guard.loss(self.model(batch).mean()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.guard.step()

    def run(
        self,
        epochs: Iterator[int] | range,
        stop: int = STEPS,
        told: bool = False,
        save: bool = False,
    ) -> None:
        for epoch in epochs:
            if told:
                self.loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            for batch in self.guard.batches(self.loader):
                self.train(batch)
                if self.guard.steps == stop:
                    self.guard.finish()
                    return
            if save:
                self.guard.checkpoint()
        self.guard.finish()


@pytest.mark.parametrize(
    ("kind", "stop"),  # before, at and after the end of a pass
    [
        *(("set_epoch", 5), ("set_epoch", 48), ("generator", 24), ("generator", 71)),
        *(("sampler", 35), ("global", 48), ("dataset", 35)),
    ],
)
def test_a_restart_in_a_later_pass_reads_what_it_would_have_read(
    tmp_path: Path, kind: str, stop: int
) -> None:
    whole = Loop(tmp_path / "whole", LOADERS[kind]())
    whole.run(whole.guard.epochs(3), stop=99)
    assert list(whole.seen) == list(range(STEPS))
    assert whole.seen[0] != whole.seen[PASS]  # each pass in an order of its own
    first = Loop(tmp_path, LOADERS[kind]())
    first.run(first.guard.epochs(3), stop=stop)
    again = Loop(tmp_path, LOADERS[kind]())
    assert again.guard.resume() == stop // 10 * 10
    again.run(again.guard.epochs(3), stop=99)
    assert {**first.seen, **again.seen} == whole.seen
    assert again.guard.faults == {}


@pytest.mark.parametrize("kind", ["set_epoch", "dataset", "generator"])
def test_a_restart_from_the_checkpoint_of_a_passs_end_reads_the_next_pass(
    tmp_path: Path, kind: str
) -> None:
    """As a loop has it that saves once a pass."""
    whole = Loop(tmp_path / "whole", LOADERS[kind]())
    whole.run(whole.guard.epochs(3), stop=99)
    first = Loop(tmp_path, LOADERS[kind]())
    for _ in first.guard.epochs(1):
        for batch in first.guard.batches(first.loader):
            first.train(batch)
        first.guard.checkpoint()
    first.guard.finish()
    again = Loop(tmp_path, LOADERS[kind]())
    assert again.guard.resume() == PASS
    again.run(again.guard.epochs(3), stop=99)
    assert {**first.seen, **again.seen} == whole.seen


def test_a_loop_that_counts_its_epochs_anew_reads_the_rest_of_the_pass_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As every script for DistributedDataParallel: the passes that were trained give nothing."""
    whole = Loop(tmp_path / "whole", distributed())
    whole.run(range(3), told=True, stop=99)
    first = Loop(tmp_path, distributed())
    first.run(range(3), told=True, stop=55)
    with caplog.at_level(logging.WARNING, "spikeguard"):
        again = Loop(tmp_path, distributed())
        assert again.guard.resume() == 50
        again.run(range(3), told=True, stop=99)
    assert {**first.seen, **again.seen} == whole.seen
    assert "Write `for epoch in guard.epochs(E)`" in caplog.text


@pytest.mark.parametrize("passes", [1, 2])
def test_a_loop_that_counts_its_epochs_anew_goes_on_behind_a_pass_that_was_at_its_end(
    tmp_path: Path, passes: int
) -> None:
    """As a loop has it that saves once a pass."""
    whole = Loop(tmp_path / "whole", distributed())
    whole.run(range(3), told=True, stop=99)
    first = Loop(tmp_path, distributed())
    first.run(range(passes), told=True, stop=99, save=True)
    again = Loop(tmp_path, distributed())
    assert again.guard.resume() == passes * PASS
    again.run(range(3), told=True, stop=99)
    assert {**first.seen, **again.seen} == whole.seen


class CountsItself(DistributedSampler[Any]):
    """Goes on to the next epoch by itself, as samplers without an end do."""

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        return super().__iter__()


def test_a_sampler_that_counts_its_passes_itself_goes_on_in_that_of_the_restart(
    tmp_path: Path,
) -> None:
    """In a loop that counts none: it is not left without data."""

    def loop(folder: Path, stop: int) -> Loop:
        made = Loop(folder, rows(sampler=CountsItself(range(96), 1, 0, seed=3)))  # type: ignore[arg-type]
        made.guard.resume()
        made.run(range(4), stop=stop)
        return made

    whole = loop(tmp_path / "whole", STEPS).seen
    seen = {**loop(tmp_path, 35).seen, **loop(tmp_path, 55).seen, **loop(tmp_path, STEPS).seen}
    assert seen == whole


# --- a run that is under way ---


def test_checkpoints_that_lie_unused_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Loop(tmp_path, rows())
    first.run(range(1), stop=12)
    with caplog.at_level(logging.WARNING, "spikeguard"):
        again = Loop(tmp_path, rows())
        again.run(range(1), stop=2)
    (said,) = [r.getMessage() for r in caplog.records if "holds checkpoints" in r.getMessage()]
    assert "up to step 10, and this attempt begins at step 0. Call guard.resume()" in said
    caplog.clear()
    with caplog.at_level(logging.WARNING, "spikeguard"):
        resumed = Loop(tmp_path, rows())
        resumed.guard.resume()
        resumed.run(range(1), stop=12)
    assert "holds checkpoints" not in caplog.text


def test_a_loop_that_restored_its_own_state_counts_on_from_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Counters, positions, the names of checkpoints and the segment that it goes on from."""
    first = Loop(tmp_path, rows())
    first.run(range(3), stop=34)
    with caplog.at_level(logging.WARNING, "spikeguard"):
        again = Loop(tmp_path, rows())
        assert again.guard.resume(step=30) == again.guard.steps == again.guard.position == 30
        for number, batch in enumerate(again.guard.batches(rows()), 31):
            again.train(batch)
            if number == 45:
                break
        again.guard.finish()
    names = sorted(path.name[:19] for path in (tmp_path / "checkpoints").glob("checkpoint-*"))
    assert names == [f"checkpoint-000000{n}" for n in (10, 20, 30, 40)]
    parent = again.guard.state().parent
    assert parent is not None
    assert parent.segment.attempt == first.guard.attempt
    said = [r.getMessage() for r in caplog.records if r.name == "spikeguard"]
    assert [text for text in said if "no server" not in text] == []
    third = Loop(tmp_path, rows())
    assert third.guard.resume() == 40
    third.guard.finish()


@pytest.mark.parametrize("step", [-1, 2.5, "30", True])
def test_a_step_that_is_none_is_refused(tmp_path: Path, step: Any) -> None:
    loop = Loop(tmp_path, rows())
    with pytest.raises(ResumeError, match="give the steps made so far, a whole number"):
        loop.guard.resume(step=step)
    loop.guard.finish()


TEXT = torch.arange(10_000)


def get_batch() -> Tensor:
    """As nanoGPT's: it draws where to read from the global random numbers."""
    drawn = int(torch.randint(8_000, ())) + random.randrange(900) + np.random.randint(900)
    return TEXT[drawn].float().view(1, 1)


class Indexed:
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

    plain = Indexed(tmp_path / "plain", loader(), micro)
    plain.train(40)
    plain.guard.finish()

    loop = Indexed(tmp_path / "restarted", loader(), micro)
    loop.train(23)
    loop.guard.finish()
    again = Indexed(tmp_path / "restarted", loader(), micro)
    assert again.guard.steps == 20
    again.train(40)
    again.guard.finish()
    assert {**loop.trained, **again.trained} == plain.trained
    assert all(map(torch.equal, again.bits(), plain.bits()))

    skipping = Indexed(tmp_path / "skipping", loader(), micro)
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
