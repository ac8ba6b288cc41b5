"""Rollback and skip, bit for bit, whatever optimizer, schedule and precision the loop has."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from spikeguard import CheckpointDirectory, attach
from spikeguard_protocol import Ack, BatchRange, Medium, Order, Rollback

from .heard import hear
from .job import FAST, Loader, assert_same
from .test_exactness import Without

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
            ordered, state = True, guard.state()
            held = state.snapshots or state.checkpoints
            name = next(target.name for target in held if target.step == TARGET)
            action = Rollback(name, TARGET, BatchRange(*SKIP))
            command = Order("test#1.1", guard.attempt, action, 60.0, None)
            hear(guard, Ack(1, (command,)))
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
