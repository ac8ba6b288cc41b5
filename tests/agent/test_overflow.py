"""What is told of the steps that a loop's gradient scaler keeps out."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from spikeguard import attach
from spikeguard_core.detection.sample import Sample
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_protocol import Samples

from .job import FAST
from .wire import Wire, await_that, served

FIRST = 2.0**20  # in fp16, whose largest number is 65504, gradients times this are inf


def train(wire: Wire, folder: Path, fused: bool, clips: bool, steps: int) -> int:
    """Train under a scaler that starts far too high; returns how many steps it skipped."""
    torch.manual_seed(3)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    scaler, skipped, scales = torch.amp.GradScaler("cpu", init_scale=FIRST), 0, {}
    guard = attach(
        model, optimizer, run="test", server=wire.url, directory=folder, settings=FAST,
        state=[scaler],
    )  # fmt: skip
    for step in range(1, steps + 1):
        with torch.autocast("cpu", torch.float16):
            out = model(torch.randn(8, 4))
        loss = guard.loss((out.float() - 5.0).square().mean())
        scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(optimizer)
            guard.clip_grad_norm_(1.0)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
        scales[0, step] = scaler.get_scale()
        optimizer.zero_grad(set_to_none=True)
        guard.step()
    await_that(lambda: len(wire.column("loss")) == steps)
    guard.finish()
    assert guard.faults == {}
    assert wire.column("loss_scale") == scales
    return skipped


@pytest.mark.parametrize("unscales", [True, False])
def test_clipping_of_gradients_that_carry_the_scale_is_told(tmp_path: Path, unscales: bool) -> None:
    model = nn.Linear(4, 4)
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu")
    guard = attach(model, optimizer, run="test", directory=tmp_path, state=[scaler])
    for _ in range(2):
        scaler.scale(guard.loss(model(torch.ones(2, 4)).square().mean())).backward()
        if unscales:
            scaler.unscale_(optimizer)
        guard.clip_grad_norm_(1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        guard.step()
    guard.finish()
    assert guard.faults == ({} if unscales else {"clip": 2})
    assert unscales or "scaler.unscale_(optimizer)" in str(guard.state().newest_fault)


def samples(wire: Wire) -> list[Sample]:
    found = []
    for record in wire.records(Samples):
        for place, step in enumerate(record.steps):
            columns = {name: column[place] for name, column in record.signals.items()}
            found.append(Sample(step, {n: v for n, v in columns.items() if v is not None}))
    return found


@pytest.mark.parametrize("clips", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_a_scalers_search_is_reported_step_by_step_and_is_no_incident(
    fused: bool, clips: bool, tmp_path: Path
) -> None:
    with served(Wire()) as wire:
        skipped = train(wire, tmp_path, fused, clips, 30)
    told = wire.column("step_skipped")
    assert 0 < skipped < 10
    assert [step for (_, step), value in told.items() if value] == list(range(1, skipped + 1))
    assert len(told) == (30 if fused else skipped)
    assert Monitor().observe(samples(wire)) == []
    norms = wire.column("grad_norm" if clips else "grad_norm_at_step")
    over = [step for (_, step), norm in norms.items() if not math.isfinite(norm)]
    assert over == (list(range(1, skipped + 1)) if fused or clips else [])
