"""After a rollback and a skip the run is, bit for bit, one that never saw the skipped batches."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from spikeguard import CheckpointDirectory, ResumeError, attach
from spikeguard_protocol import (
    BatchRange,
    Medium,
    ResultState,
    Rollback,
    ScaleLr,
    SkipBatches,
    Verb,
)

from .job import FAST, Job, Loader, assert_same, batch_at, order, result, target_at

pytestmark = pytest.mark.slow  # seconds of restarts


class Without(Loader):
    """A loader that never had the batches in `ranges` (positions)."""

    def __init__(self, ranges: list[tuple[int, int]], micro_batches: int = 1) -> None:
        super().__init__(micro_batches)
        self.ranges = ranges

    def __next__(self) -> Tensor:
        while any(a <= self.read // self.micro_batches < b for a, b in self.ranges):
            self.read += 1
        return super().__next__()


class Plain:
    """The same order of data, but only to be iterated anew; draws a random number per pass."""

    def __init__(self, ranges: tuple[tuple[int, int], ...] = ()) -> None:
        self.ranges = ranges

    def __iter__(self) -> Iterator[Tensor]:
        torch.rand(1)
        kept = (n for n in range(200) if not any(a <= n < b for a, b in self.ranges))
        return (batch_at(n) for n in kept)


def reference(step: int, ranges: list[tuple[int, int]], micro_batches: int = 1) -> Any:
    job = Job(micro_batches=micro_batches, loader=Without(ranges, micro_batches)).train_to(step)
    job.guard.finish()
    return job.everything()


@pytest.mark.parametrize(
    ("medium", "step", "micro_batches"), [(Medium.MEMORY, 40, 3), (Medium.DISK, 25, 1)]
)
def test_a_rollback_equals_never_having_seen_the_batches(
    tmp_path: Path, medium: Medium, step: int, micro_batches: int
) -> None:
    job = Job(tmp_path, micro_batches=micro_batches).train_to(60)
    action = Rollback(target_at(job, step, medium), step, BatchRange(45, 52))
    command = order(job, action)
    job.train_step()
    assert (job.guard.steps, job.guard.position) == (step, step)
    assert result(job, command).state is ResultState.APPLIED
    job.train_to(step + 50)
    job.guard.finish()
    assert job.guard.faults == {}
    assert_same(job.everything(), reference(step + 50, [(45, 52)], micro_batches))


def test_rollbacks_in_a_row_are_exact(tmp_path: Path) -> None:
    """To a snapshot of the segment that the one before opened, to the same one again, which is not
    consumed by it, and to one from before both."""
    job = Job(tmp_path)
    for number, (at, step, skip) in enumerate(
        [(45, 40, (43, 45)), (63, 50, (60, 64)), (55, 50, (54, 56)), (62, 40, (68, 70))], 1
    ):
        job.train_to(at)
        name = target_at(job, step, Medium.MEMORY)
        order(job, Rollback(name, step, BatchRange(*skip)), number)
        job.train_step()
        assert job.guard.steps == step
    job.train_to(80)
    job.guard.finish()
    assert_same(job.everything(), reference(80, [(43, 45), (54, 56), (60, 64), (68, 70)]))


def test_over_an_iterator_it_skips_and_does_not_go_back(tmp_path: Path) -> None:
    """What a generator gave out is gone: a rollback over it would train on what comes later."""
    job = Job(tmp_path, loader=iter(Plain())).train_to(45)
    assert Verb.ROLLBACK not in job.guard.capabilities
    assert Verb.SKIP_BATCHES in job.guard.capabilities
    (row,) = [row for row in job.guard.state().abilities if row.name == "rollback"]
    assert "state_dict() and load_state_dict()" in row.reason + row.remedy
    back = order(job, Rollback(target_at(job, 40, Medium.MEMORY), 40, BatchRange(43, 45)), 1)
    order(job, SkipBatches(BatchRange(50, 55)), 2)
    job.train_to(60)
    job.guard.finish()
    assert result(job, back).state is ResultState.REFUSED
    never = Job(loader=iter(Plain(((50, 55),)))).train_to(60)
    assert_same(job.everything(), never.everything())
    never.guard.finish()


def test_a_restart_in_a_later_pass_over_an_iterator_is_refused(tmp_path: Path) -> None:
    """Which pass the new iterator begins nobody knows: counting in it could train on other data."""
    first = Job(tmp_path, loader=iter(Plain())).train_to(10)
    first.loader, first._batches = iter(Plain()), None
    first.train_to(30)
    first.guard.finish()
    second = Job(tmp_path, loader=iter(Plain()))
    assert second.guard.resume() == 25
    with pytest.raises(ResumeError, match=r"pass 2, .* state_dict\(\) and load_state_dict\(\)"):
        second.train_step()
    second.guard.finish()


def test_a_skip_ahead_equals_never_having_had_the_batches(tmp_path: Path) -> None:
    job = Job(tmp_path).train_to(20)
    command = order(job, SkipBatches(BatchRange(30, 35)))
    job.train_to(60)
    job.guard.finish()
    assert result(job, command).state is ResultState.APPLIED
    assert job.guard.position == 65
    assert_same(job.everything(), reference(60, [(30, 35)]))


def test_a_restart_continues_bit_for_bit(tmp_path: Path) -> None:
    first = Job(tmp_path).train_to(57)
    first.guard.finish()
    second = Job(tmp_path)
    assert second.guard.resume() == 50
    second.train_to(80)
    second.guard.finish()
    assert_same(second.everything(), reference(80, []))


def test_what_was_skipped_and_abandoned_stays_so_after_a_restart(tmp_path: Path) -> None:
    """The process dies right after the rollback, before any new checkpoint."""
    first = Job(tmp_path).train_to(77)
    order(first, Rollback(target_at(first, 50, Medium.DISK), 50, BatchRange(55, 60)))
    first.train_step()
    first.guard.finish()
    assert any("00000075" in p.name for p in (tmp_path / "checkpoints").iterdir())
    second = Job(tmp_path)
    assert second.guard.resume() == 50
    second.train_to(90)
    second.guard.finish()
    assert_same(second.everything(), reference(90, [(55, 60)]))


def test_a_lowered_rate_goes_back_with_its_target(tmp_path: Path) -> None:
    """The scale in force at a target is in force again after going back to it."""
    job = Job(tmp_path / "went-back").train_to(30)
    order(job, ScaleLr(0.5, 100))
    job.train_to(60)
    order(job, Rollback(target_at(job, 40, Medium.MEMORY), 40), 2)
    job.train_step()
    job.train_to(140)
    job.guard.finish()
    straight = Job(tmp_path / "straight").train_to(30)
    order(straight, ScaleLr(0.5, 100))
    straight.train_to(140)
    straight.guard.finish()
    assert_same(job.everything(), straight.everything())


SKIP, TARGET, LAST = (13, 16), 10, 24
KINDS = ("groups", "sgd", "lambda", "one_cycle", "chain", "plateau", "autocast", "scaler")


def optimizer_of(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim == 1]
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, nesterov=True)
    groups = [
        {"params": matrices, "lr": 1e-2, "weight_decay": 0.1, "betas": (0.9, 0.95)},
        {"params": rest, "lr": 3e-2, "weight_decay": 0.0},
    ]
    given: Any = groups if kind == "groups" else model.parameters()
    return torch.optim.AdamW(given, lr=1e-2, fused=True)


def schedule_of(kind: str, optimizer: torch.optim.Optimizer) -> Any:
    match kind:
        case "lambda":
            return lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step / 10))
        case "one_cycle":
            return lr_scheduler.OneCycleLR(optimizer, 3e-2, total_steps=60)
        case "chain":
            warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=8)
            cosine = lr_scheduler.CosineAnnealingLR(optimizer, 40)
            return lr_scheduler.SequentialLR(optimizer, [warm, cosine], [8])
        case "plateau":
            return lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, threshold=0.1)
    return lr_scheduler.CosineAnnealingLR(optimizer, 60)


def trained(kind: str, folder: Path | None, medium: Medium = Medium.MEMORY) -> Any:
    """Everything at step `LAST`; with a `folder` by way of a rollback, else without the batches."""
    torch.set_num_threads(1)
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Dropout(0.1), nn.Linear(24, 8))
    optimizer = optimizer_of(kind, model)
    schedule = schedule_of(kind, optimizer)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=64.0, growth_interval=5, enabled=kind == "scaler"
    )
    loader = Loader() if folder else Without([SKIP])
    on_disk = folder is not None and medium is Medium.DISK
    guard = attach(
        model, optimizer, run="test", scheduler=schedule, directory=folder, state=[scaler],
        settings=replace(FAST, snapshot_every=0) if on_disk else FAST,
        checkpoints=(
            CheckpointDirectory(folder / "saved", every=TARGET, background=False)
            if folder is not None and on_disk else None
        ),
    )  # fmt: skip
    ordered = folder is None
    for batch in guard.batches(loader):
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
            loss = guard.loss((model(batch).float() - batch.roll(1, 1)).square().mean())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        guard.clip_grad_norm_(1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step(*([float(loss.detach())] if kind == "plateau" else []))
        optimizer.zero_grad(set_to_none=True)
        if not ordered and guard.steps == 19:
            ordered = True
            order(guard, Rollback(target_at(guard, TARGET, medium), TARGET, BatchRange(*SKIP)))
        guard.step()
        if guard.steps == LAST:
            break
    guard.finish()
    assert guard.faults == {}
    assert (folder is None) or guard.state().segment == 1
    parts = (model, optimizer, schedule, scaler)
    return copy.deepcopy([part.state_dict() for part in parts]), torch.get_rng_state()


@pytest.mark.parametrize(
    ("kind", "medium"), list(zip(KINDS, itertools.cycle(Medium), strict=False)), ids=KINDS
)
def test_a_rollback_is_exact_for_every_kind_of_loop(
    kind: str, medium: Medium, tmp_path: Path
) -> None:
    assert_same(trained(kind, tmp_path, medium), trained(kind, None))
