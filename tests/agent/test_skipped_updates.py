"""A dropped update leaves no trace in weights, moments and buffers; what a scaler drops is told."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spikeguard import Guard, Settings, attach
from spikeguard_core.detection.sample import Sample
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_protocol import Samples

from .job import FAST, Job, assert_same
from .wire import Wire, await_that, served

NOT_FINITE = (math.nan, math.inf, -math.inf)


def poison(job: Job) -> None:
    next(iter(job.model.parameters())).grad[0, 0] = math.nan  # type: ignore[index]


@pytest.mark.parametrize("step", [0, 7])
@pytest.mark.parametrize("value", NOT_FINITE)
def test_a_dropped_step_leaves_weights_moments_and_counters_as_they_were(
    step: int, value: float
) -> None:
    job = Job().train_to(step)
    before = copy.deepcopy(job.model.state_dict())
    moments = copy.deepcopy(job.optimizer.state_dict()["state"])
    clip = job.guard.clip_grad_norm_

    def poisoned(max_norm: float | None) -> torch.Tensor:
        next(iter(job.model.parameters())).grad[0, 0] = value  # type: ignore[index]
        return clip(max_norm)

    job.guard.clip_grad_norm_ = poisoned  # type: ignore[method-assign]
    job.train_step()
    job.guard.clip_grad_norm_ = clip  # type: ignore[method-assign]
    assert_same(job.model.state_dict(), before)
    after = job.optimizer.state_dict()["state"]
    if step:
        assert_same(after, moments)
    else:
        assert all(float(value.abs().sum()) == 0 for s in after.values() for value in s.values())
    job.train_to(step + 3)
    assert all(torch.isfinite(p).all() for p in job.model.parameters())
    job.guard.finish()


SGD = torch.optim.SGD
AdamW = torch.optim.AdamW


class Normed(nn.Module):
    """Buffers of each way to change: BatchNorm's, one in place, one that is made anew, a table."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.layers = nn.Sequential(nn.Linear(4, 6), self.norm, nn.Linear(6, 1))
        self.seen: torch.Tensor
        self.table: torch.Tensor
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("newest", torch.zeros(()))
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.lerp_(x.detach().mean(0), 0.1)
        self.newest = x.detach().mean()
        made: torch.Tensor = self.layers(x + self.table)
        return made


@pytest.mark.parametrize(
    "kind",
    [
        lambda p: AdamW(p, lr=0.1, amsgrad=True, fused=True),
        lambda p: SGD(p, lr=0.1, momentum=0.9),
    ],
)
def test_a_batch_that_is_not_finite_leaves_buffers_as_they_were(
    kind: Callable[[Any], torch.optim.Optimizer], tmp_path: Path
) -> None:
    """Whether the optimizer drops the update or is not entered; over two micro-batches."""

    def trained(*batches: int | None) -> Any:
        torch.manual_seed(3)
        model = Normed()
        optimizer = kind(list(model.parameters()))
        guard = attach(model, optimizer, run="test", directory=tmp_path, settings=FAST)
        for number in batches:
            for part in range(2):
                made = torch.Generator().manual_seed(10 * (number or 0) + part)
                x = torch.randn(8, 4, generator=made)
                if number is None and part:
                    x[0, 0] = math.nan
                guard.loss(model(x).square().mean() / 2).backward()
            guard.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            guard.step()
        guard.finish()
        assert guard.faults == {}
        return copy.deepcopy((model.state_dict(), optimizer.state_dict()))

    assert_same(trained(1, 2, None, 3), trained(1, 2, 3))


def test_the_norm_is_taken_in_the_step_where_the_loop_does_not_clip(tmp_path: Path) -> None:
    """A NaN is dropped and reported as grad_norm_at_step by a loop that never clips."""
    with served(Wire()) as wire:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        guard = attach(
            model, optimizer, run="test", server=wire.url, directory=tmp_path, settings=FAST
        )
        for step in range(1, 6):
            model(torch.ones(2, 4)).sum().backward()
            if step == 3:
                model.weight.grad[0, 0] = math.nan  # type: ignore[index]
            before = model.weight.detach().clone()
            optimizer.step()
            optimizer.zero_grad()
            guard.step()
            assert torch.equal(before, model.weight) is (step == 3)
        guard.finish()
        norms, dropped = wire.column("grad_norm_at_step"), wire.column("update_dropped")
    assert math.isnan(norms[0, 3])
    assert math.isfinite(norms[0, 4])
    assert dropped == {(0, step): float(step == 3) for step in range(1, 6)}
    assert not wire.column("grad_norm")


def test_an_optimizer_that_makes_several_updates_a_step_is_only_reported(tmp_path: Path) -> None:
    """L-BFGS, judged at the first of them."""
    with served(Wire()) as wire:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.LBFGS(model.parameters())
        guard = attach(
            model, optimizer, run="test", directory=tmp_path, settings=FAST, server=wire.url
        )
        loss = model(torch.full((2, 4), math.nan)).mean()
        loss.backward()
        optimizer.step(lambda: loss)
        guard.step()
        guard.finish()
        last = wire.records(Samples)[-1]
    assert math.isnan(last.signals["grad_norm_at_step"][-1])  # type: ignore[arg-type]
    assert last.signals["update_dropped"][-1] == 0.0
    assert guard.faults == {}


def test_skipping_can_be_switched_off() -> None:
    job = Job(settings=Settings(drop_non_finite=False)).train_to(2)
    job.spoil = poison
    job.guard.clip_grad_norm_ = lambda _: None  # type: ignore[method-assign, assignment, return-value]
    job.train_step()
    assert not all(torch.isfinite(p).all() for p in job.model.parameters())
    job.guard.finish()


def under_a_scaler(optimizer: Any, model: nn.Module, per_device: tuple[float, ...]) -> None:
    """One step by a scaler that has found what `per_device` says; the gradients are what it says.

    A second device is made up: what the scaler does with what two of them found is its own.
    """
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(model(torch.ones(2, 4)).square().mean()).backward()
    for parameter in model.parameters() if any(per_device) else ():
        parameter.grad.fill_(math.inf)  # type: ignore[union-attr]
    scaler.unscale_(optimizer)
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    found.update({torch.device("cpu", n): torch.tensor(v) for n, v in enumerate(per_device)})
    found.pop(torch.device("cpu"))
    scaler.step(optimizer)


@pytest.mark.parametrize("per_device", [(0.0,), (1.0,), (1.0, 0.0), (1.0, 1.0), (1.0, 1.0, 1.0)])
def test_what_is_lent_to_the_optimizer_is_exactly_0_or_1(
    per_device: tuple[float, ...], tmp_path: Path
) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    guard = attach(model, optimizer, run="test", directory=tmp_path)
    lent: list[Any] = []
    optimizer.register_step_pre_hook(lambda optimizer, *_: lent.append(optimizer.found_inf.clone()))
    under_a_scaler(optimizer, model, (0.0,))
    guard.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    optimizer.zero_grad()
    under_a_scaler(optimizer, model, per_device)
    guard.step()
    guard.finish()
    bad = any(per_device)
    assert [(flag.item(), flag.shape, flag.dtype) for flag in lent] == [
        (0.0, (), torch.float32),
        (float(bad), (), torch.float32),
    ]
    assert torch.equal(before[0]["weight"], model.weight) is bad
    if bad:
        assert_same((model.state_dict(), optimizer.state_dict()["state"]), before)
    assert guard.faults == {}


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
