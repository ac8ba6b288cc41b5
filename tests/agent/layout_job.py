"""What each rank tells of every layout, beside the same model trained whole in one process."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from spikeguard import CheckpointDirectory, Forward, Settings, attach, by_position
from spikeguard_protocol import BatchRange, Medium

from . import layouts
from .layouts import Laid, Whole, norm_of
from .sharded_job import order_back

LIMIT, STEPS, SPOILT = 0.05, 5, 2  # the norm clipped to, and the step with a NaN
SETTINGS = Settings(slow_signals_every=1, snapshot_every=2)
BACK = (  # where to, at which step, and what is left out
    (Medium.MEMORY, 4, (4, 5)),
    (Medium.DISK, 3, (3, 4)),
)


def batch(step: int) -> Tensor:
    torch.manual_seed(step)
    return torch.randn(4, layouts.WIDTH)


def adam(model: nn.Module) -> torch.optim.AdamW:
    return adam_of(list(model.parameters()))


def adam_of(parameters: list[nn.Parameter]) -> torch.optim.AdamW:
    groups = [{"params": [p]} for p in parameters]  # torch mixes no kinds in one call
    return torch.optim.AdamW(groups, lr=1e-2, fused=True)


class Beside:
    """The whole model, in this process alone."""

    def __init__(self) -> None:
        self.model = Whole()
        self.optimizer = adam(self.model)

    def backward(self, step: int) -> float:
        self.optimizer.zero_grad()
        loss = self.model(batch(step)).square().mean()
        loss.backward()
        return float(loss.detach())

    def train(self) -> dict[str, float]:
        held = list(self.model.parameters())
        norm = float(torch.nn.utils.clip_grad_norm_(held, LIMIT))
        before = [p.detach().clone() for p in held]
        self.optimizer.step()
        moments = [state["exp_avg_sq"] for state in self.optimizer.state.values()]
        moved = [(p.detach() - old) / 1e-2 for p, old in zip(held, before, strict=True)]
        return {
            "grad_norm_raw": norm,
            "param_norm": norm_of([p.detach() for p in held]),
            "update_norm": norm_of(moved),
            "adam_v_norm": norm_of(moments),
        }


def own(model: nn.Module) -> list[Tensor]:
    return [
        (p.to_local() if isinstance(p, DTensor) else p).detach().clone() for p in model.parameters()
    ]


def laid_gradients(laid: Laid, whole: nn.Module) -> None:
    named = dict(whole.named_parameters())
    for name, parameter in laid.model.named_parameters():
        gradient = named[layouts.name_in_whole(laid, name)].grad
        assert gradient is not None
        part = layouts.own_part(laid, gradient, parameter, name)
        parameter.grad = layouts.like(parameter, part)


def off_by(laid: Laid, whole: nn.Module) -> float:
    """The largest difference of a weight from that of the whole model."""
    named, most = dict(whole.named_parameters()), 0.0
    for (name, parameter), here in zip(laid.model.named_parameters(), own(laid.model), strict=True):
        wanted = named[layouts.name_in_whole(laid, name)].detach()
        part = layouts.own_part(laid, wanted, parameter, name)
        most = max(most, float((part - here).abs().max()))
    return most


def trained(folder: Path, layout: layouts.Layout, rank: int, ranks: int) -> dict[str, Any]:
    """A few steps, one with a NaN in one number on the last rank; on all where they are alike."""
    laid, beside = layout(ranks), Beside()
    optimizer = adam(laid.model)
    seen: list[dict[str, float]] = []
    guard = attach(
        laid.model,
        optimizer,
        run="test",
        directory=folder,
        settings=SETTINGS,
        forward=Forward(lambda values, _: seen.append(dict(values))),
        **laid.stated,
    )
    expected: list[dict[str, float]] = []
    bits, off, meetings = [own(laid.model)], 0.0, []
    for step in range(STEPS):
        loss = beside.backward(step)
        laid_gradients(laid, beside.model)
        has_loss = laid.stated.get("has_loss", True)
        guard.loss(torch.tensor(loss if has_loss else -1.0))
        if step == SPOILT and (rank == ranks - 1 or layout is layouts.replicated):
            last = list(laid.model.parameters())[-1].grad
            assert last is not None
            (last.to_local() if isinstance(last, DTensor) else last).view(-1)[0] = float("nan")
        with CommDebugMode() as met:
            guard.clip_grad_norm_(LIMIT)
        meetings.append(met.get_total_counts())
        optimizer.step()
        guard.step()
        if step != SPOILT:
            expected.append({"loss": loss, **beside.train()})
            off = max(off, off_by(laid, beside.model))
        bits.append(own(laid.model))
    guard.finish()
    same = [all(map(torch.equal, *pair)) for pair in itertools.pairwise(bits)]
    return {
        "seen": seen,
        "expected": expected,
        "off": off,
        "same": same,
        "meetings": meetings,
        "faults": guard.faults,
    }


def flipped(folder: Path, rank: int, ranks: int) -> dict[str, Any]:
    """A weight of the last rank's that is no longer that of its replica, under HSDP."""
    laid = layouts.hsdp(ranks)
    optimizer, seen = adam(laid.model), list[dict[str, float]]()
    guard = attach(
        laid.model,
        optimizer,
        run="test",
        directory=folder,
        settings=Settings(snapshot_every=0, replica_checksum_every=2),
        forward=Forward(lambda values, _: seen.append(dict(values))),
        **laid.stated,
    )
    for step in range(4):
        if step == 2 and rank == ranks - 1:
            weight = next(laid.model.parameters())
            assert isinstance(weight, DTensor)
            weight.to_local().detach().view(-1)[0] += 1.0
        guard.step()
    guard.finish()
    apart = [values for values in seen if "train/replicas_apart" in values]
    told = [[v["train/replicas_apart"], v.get("train/replica_apart")] for v in apart]
    return {"apart": told}


def unable(folder: Path, rank: int, ranks: int) -> dict[str, Any]:
    """A NaN on the first stage, once the last stage's optimizer takes no flag any more."""
    laid, whole = layouts.pp(ranks), Whole()
    optimizer = adam(laid.model)
    guard = attach(
        laid.model, optimizer, run="test", directory=folder, settings=SETTINGS, **laid.stated
    )
    spoilt = []
    for step in range(4):
        for parameter in whole.parameters():
            parameter.grad = torch.ones_like(parameter)
        laid_gradients(laid, whole)
        first = next(laid.model.parameters()).grad
        assert first is not None
        if step >= 2 and rank == 0:
            first.view(-1)[0] = float("nan")
        for group in optimizer.param_groups if step == 3 and rank else ():
            group["fused"] = False
        before = own(laid.model)
        guard.clip_grad_norm_(LIMIT)
        optimizer.step()
        guard.step()
        spoilt.append(all(map(torch.equal, before, own(laid.model))))
    guard.finish()
    return {"same": spoilt}


def mixed(folder: Path, layout: layouts.Layout, rank: int, ranks: int) -> dict[str, Any]:
    """Muon for the matrices beside AdamW; of three steps one has a NaN on the last rank alone."""
    laid, whole = layout(ranks), Whole()
    held = list(laid.model.parameters())
    matrices, others = ([p for p in held if (p.ndim == 2) == flat] for flat in (True, False))
    given = [torch.optim.Muon(matrices, lr=1e-2), adam_of(others)]
    guard = attach(
        laid.model, given, run="test", directory=folder, settings=SETTINGS, **laid.stated
    )
    same = []
    for step in range(3):
        for parameter in whole.parameters():
            parameter.grad = torch.full_like(parameter, 1.0 + step)
        laid_gradients(laid, whole)
        last = held[-1].grad
        if step == 1 and rank == ranks - 1 and last is not None:
            (last.to_local() if isinstance(last, DTensor) else last).view(-1)[0] = float("nan")
        before = bits_of(laid.model, given)
        guard.clip_grad_norm_(LIMIT)
        for each in given:
            each.step()
        guard.step()
        after = bits_of(laid.model, given)
        same.append(len(before) == len(after) and all(map(torch.equal, before, after)))
    guard.finish()
    return {"same": same, "faults": guard.faults}


def bits_of(model: nn.Module, optimizers: list[Any]) -> list[Tensor]:
    """Of weights, moments, momenta and counters."""
    kept = [state for each in optimizers for state in each.state.values()]
    held = [*model.parameters(), *(value for state in kept for value in state.values())]
    return [(t.to_local() if isinstance(t, DTensor) else t).detach().clone() for t in held]


class LaidJob:
    """One attempt at training a layout; the gradients are a function of the position alone."""

    def __init__(
        self, folder: Path, layout: layouts.Layout, ranks: int, left_out: Collection[int] = ()
    ) -> None:
        self.kept = CheckpointDirectory(folder / "kept", every=3, background=False)
        self.laid, self.whole, self.left_out = layout(ranks), Whole(), left_out
        self.optimizer: Any = adam(self.laid.model)
        self.average = layout(ranks).model  # of the weights, laid as they are
        self.guard = attach(
            self.laid.model,
            self.optimizer,
            run="test",
            directory=folder / "guard",
            settings=SETTINGS,
            checkpoints=self.kept,
            state=[self.average],
            **self.laid.stated,
        )
        self.positions = iter(self.guard.batches(by_position(lambda position: position)))

    def train_to(self, step: int) -> None:
        while self.guard.steps != step:
            self.train_step()

    def train_step(self) -> None:
        position = next(self.positions)
        while position in self.left_out:
            position = next(self.positions)
        torch.manual_seed(position)
        for parameter in self.whole.parameters():
            parameter.grad = torch.randn_like(parameter)
        laid_gradients(self.laid, self.whole)
        self.guard.clip_grad_norm_(LIMIT)
        self.optimizer.step()
        pairs = zip(self.average.parameters(), self.laid.model.parameters(), strict=True)
        with torch.no_grad():
            for kept, parameter in pairs:
                kept.lerp_(parameter, 0.5)
        self.guard.step()

    def bits(self) -> list[Tensor]:
        """Of weights, their average, moments and counters."""
        return [*bits_of(self.laid.model, [self.optimizer]), *own(self.average)]


def gone_back(folder: Path, layout: layouts.Layout, ranks: int) -> dict[str, Any]:
    """To memory, to disk and by a restart; beside one that never saw what is left out."""
    job: Any = LaidJob(folder, layout, ranks)
    job.train_to(5)
    told: dict[str, Any] = {"steps": [], "positions": [], "same": []}
    for number, (medium, step, skip) in enumerate(BACK, 1):
        order_back(job, number, step, medium, BatchRange(*skip))
        reached = job.guard.steps
        while job.guard.steps >= reached:
            job.train_step()
        told["steps"].append(job.guard.steps)
        told["positions"].append(job.guard.position)
        job.train_to(6)
    job.guard.finish()
    wanted = LaidJob(folder / "without", layout, ranks, left_out=[3, 4])
    wanted.train_to(6)
    wanted.guard.finish()
    told["same"].append(all(map(torch.equal, job.bits(), wanted.bits())))
    again = LaidJob(folder, layout, ranks)
    told["resumed"] = again.guard.resume()
    told["same"].append(all(map(torch.equal, again.bits(), wanted.bits())))
    again.guard.finish()
    told["faults"] = [job.guard.faults, again.guard.faults]
    return told


def main(plan: dict[str, Any]) -> None:
    """What one rank of a test does."""
    torch.set_num_threads(1)
    rank, size, folder = plan["rank"], plan["size"], Path(plan["folder"])
    meeting = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    which = [getattr(layouts, name) for name in plan["layouts"]]
    said = {
        layout.__name__: trained(folder / layout.__name__, layout, rank, size) for layout in which
    }
    said["mixed"] = {
        layout.__name__: mixed(folder / "mixed" / layout.__name__, layout, rank, size)
        for layout in layouts.MIXED[size]
    }
    if size == 2:
        said["unable"] = unable(folder / "unable", rank, size)
    if size == 4:
        said["flipped"] = flipped(folder / "flipped", rank, size)
        said["gone_back"] = gone_back(folder / "back", layouts.pp_fsdp_named_alike, size)
    (folder / f"rank{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()
