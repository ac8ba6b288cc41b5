"""Lowered learning rates: by order, and by the job's own rule, where it asks for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from spikeguard import AttachError, Settings, attach
from spikeguard.optim.lr_scale import LrScale
from spikeguard_cli.main import main
from spikeguard_protocol import OWN_RULE, ScaleLr
from tests.agent.heard import parts_of
from tests.agent.job import FAST, Job, order

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
    order(guard, ScaleLr(0.5, 10))
    guard.step()
    assert guard.state().lr_scale is not None

    def fail() -> float:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step(fail)
    guard.step()
    assert optimizer.param_groups[0]["lr"] == 0.01
    guard.finish()


RULE = replace(FAST, emergency_drops=3, emergency_factor=0.5, emergency_steps=10)


def spoilt(at: Sequence[int]) -> Callable[[Job], None]:
    """The gradients of those steps are not finite."""

    def spoil(job: Job) -> None:
        if job.guard.steps + 1 in at:
            for p in job.model.parameters():
                p.grad = torch.full_like(p, torch.nan)
            job.guard.clip_grad_norm_(None)

    return spoil


def shares(job: Job, steps: int) -> list[float]:
    """What each step was made with, over what the schedule set, of `steps` from here on."""
    used: list[float] = []
    handle = job.optimizer.register_step_post_hook(
        lambda o, *_: used.append(o.param_groups[0]["lr"])
    )
    seen: list[float] = []
    job.optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["lr"]))
    job.train_to(job.guard.steps + steps)
    handle.remove()
    return [round(ours / theirs, 3) for ours, theirs in zip(seen, used, strict=True)]


@pytest.mark.parametrize(
    ("settings", "at", "lowered"),
    [
        (RULE, (5, 6, 7), range(8, 18)),
        (RULE, (5, 6, 8, 9), ()),  # never three in a row
        (FAST, (5, 6, 7, 8, 9), ()),  # nobody asked for it
        (RULE, range(5, 16), range(8, 18)),  # once, however many more
        (replace(RULE, observe_only=True), (5, 6, 7), ()),
    ],
)
def test_so_many_updates_dropped_in_a_row_lower_the_rate_for_so_long(
    settings: Settings, at: Sequence[int], lowered: Sequence[int], tmp_path: Path
) -> None:
    job = Job(tmp_path, settings=settings)
    job.spoil = spoilt(at)
    found = shares(job, 30)
    assert [step for step, rate in enumerate(found, start=1) if rate < 1.0] == list(lowered)
    assert not lowered or found[lowered[0] - 1] == 0.5
    job.guard.finish()


def test_it_lives_through_a_restart_and_is_undone_by_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = replace(RULE, emergency_steps=100)
    job = Job(tmp_path, settings=settings)
    job.spoil = spoilt((20, 21, 22))
    job.train_to(26)
    job.guard.finish()
    again = Job(tmp_path, settings=settings)
    again.guard.resume()
    assert again.guard.state().lr_scale is not None
    again.guard.finish()
    assert main(["journal", str(tmp_path / "guard"), "--undo", f"test#0.{OWN_RULE + 22}"]) == 0
    assert "is undone from the next start" in capsys.readouterr().out
    last = Job(tmp_path, settings=settings)
    last.guard.resume()
    assert last.guard.state().lr_scale is None
    last.guard.finish()


def test_a_scaler_that_looks_for_its_scale_at_the_start_does_not_count(tmp_path: Path) -> None:
    """Eight overflows before the first step; later ones count like any other update left out."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    guard = attach(model, optimizer, run="test", directory=tmp_path, settings=RULE, state=[scaler])
    scales = []
    for step in range(1, 40):
        loss = guard.loss(model(torch.ones(4, 4)).square().mean())
        scaler.scale(loss).backward()
        if step <= 8 or 20 <= step < 23:
            for p in model.parameters():
                p.grad = torch.full_like(p, torch.inf)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        guard.step()
        scales.append(guard.state().lr_scale)
    guard.finish()
    assert scales[:20] == [None] * 20
    assert scales[30] is not None
    assert guard.faults == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"emergency_factor": 0.01},
        {"emergency_steps": 9_000},
        {"allowed_verbs": ("rollback",)},
        {"emergency_drops": -1},
    ],
)
def test_a_rule_that_the_jobs_own_limits_forbid_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(AttachError, match=r"emergency_"):
        replace(RULE, **wrong)  # type: ignore[arg-type]
