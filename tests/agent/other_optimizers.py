"""Optimizers of torch and of other packages, and a small training that takes any of them.

Kinds whose package is not installed (`pip install pytorch-optimizer torchao transformers`) are
missing, with what is not there.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn, optim

from spikeguard import CheckpointDirectory, Guard, Settings, attach, by_position

Parameters = list[Tensor]
Make = Callable[[Parameters, Parameters], Any]  # of matrices and of everything else
SETTINGS = Settings(snapshot_every=4, slow_signals_every=2)
CHECKOUTS = {"muon": "MUON", "nanochat.optim": "NANOCHAT"}


class Kind(NamedTuple):
    """One row."""

    name: str
    module: str  # that has to be there
    make: Make


def plain(name: str, **given: Any) -> Make:
    return lambda matrices, rest: getattr(optim, name)([*matrices, *rest], **given)


def beside_adamw(module: str, name: str, flagged: bool = False, **given: Any) -> Make:
    """For the matrices; the rest is AdamW's. `flagged`: groups say that they are Muon's."""

    def make(matrices: Parameters, rest: Parameters) -> Any:
        kind = getattr(importlib.import_module(module), name)
        of: Any = [{"params": matrices, "use_muon": True}] if flagged else matrices
        return [kind(of, **given), optim.AdamW(rest, lr=1e-3, fused=True)]

    return make


def alone(module: str, name: str, **given: Any) -> Make:
    return lambda m, r: getattr(importlib.import_module(module), name)([*m, *r], **given)


def muon_with_adam(matrices: Parameters, rest: Parameters) -> Any:
    groups = [
        {"params": matrices, "lr": 0.02, "use_muon": True},
        {"params": rest, "lr": 3e-3, "use_muon": False},
    ]
    return importlib.import_module("muon").SingleDeviceMuonWithAuxAdam(groups)


def muon_adamw(matrices: Parameters, rest: Parameters) -> Any:
    adam = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-10, "weight_decay": 0.0}
    muon = {"lr": 0.02, "momentum": 0.95, "ns_steps": 5, "beta2": 0.95, "weight_decay": 0.1}
    groups = [{"kind": "muon", "params": [p], **muon} for p in matrices]
    kind = importlib.import_module("nanochat.optim").MuonAdamW
    return kind([{"kind": "adamw", "params": rest, **adam}, *groups])


PACKAGE = "pytorch_optimizer"
SHAMPOO = {"preconditioning_compute_steps": 2, "start_preconditioning_step": 2}
KINDS = (
    Kind("torch AdamW, fused", "torch", plain("AdamW", fused=True)),
    Kind("torch AdamW", "torch", plain("AdamW")),
    Kind("torch SGD, momentum", "torch", plain("SGD", lr=0.1, momentum=0.9)),
    Kind("torch NAdam", "torch", plain("NAdam")),
    Kind("torch Adafactor", "torch", plain("Adafactor")),
    Kind("torch Muon + fused AdamW", "torch", beside_adamw("torch.optim", "Muon", lr=0.02)),
    Kind("KellerJordan Muon + fused AdamW", "muon", beside_adamw("muon", "SingleDeviceMuon")),
    Kind("KellerJordan MuonWithAuxAdam", "muon", muon_with_adam),
    Kind("nanochat MuonAdamW", "nanochat.optim", muon_adamw),
    Kind("transformers Adafactor", "transformers", alone("transformers", "Adafactor")),
    Kind("pytorch-optimizer Muon + AdamW", PACKAGE, beside_adamw(PACKAGE, "Muon", flagged=True)),
    Kind("pytorch-optimizer NorMuon + AdamW", PACKAGE, beside_adamw(PACKAGE, "NorMuon", True)),
    Kind("pytorch-optimizer AdaMuon + AdamW", PACKAGE, beside_adamw(PACKAGE, "AdaMuon", True)),
    Kind("pytorch-optimizer SOAP", PACKAGE, alone(PACKAGE, "SOAP", lr=3e-3)),
    Kind("pytorch-optimizer Shampoo", PACKAGE, alone(PACKAGE, "Shampoo", lr=1e-3)),
    Kind(
        "pytorch-optimizer ScalableShampoo", PACKAGE, alone(PACKAGE, "ScalableShampoo", **SHAMPOO)
    ),
    Kind("pytorch-optimizer Lion", PACKAGE, alone(PACKAGE, "Lion", lr=1e-3)),
    Kind("pytorch-optimizer Kron", PACKAGE, alone(PACKAGE, "Kron")),
    Kind("pytorch-optimizer Prodigy", PACKAGE, alone(PACKAGE, "Prodigy")),
    Kind("pytorch-optimizer ScheduleFreeAdamW", PACKAGE, alone(PACKAGE, "ScheduleFreeAdamW")),
    Kind("torchao AdamW8bit", "torchao", alone("torchao.optim", "AdamW8bit", lr=1e-2)),
    Kind("torchao AdamW4bit", "torchao", alone("torchao.optim", "AdamW4bit", lr=1e-2)),
)


class Differs(Exception):
    """What ought to be the same is not; says where."""


class Training:
    """A small network whose data are a function of the position."""

    def __init__(self, make: Make, folder: Path, spoilt: Sequence[int] = ()) -> None:
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(3)
        self._spoils = nn.Linear(16, 16)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), self._spoils, nn.Linear(16, 8))
        held = list(self.model.parameters())
        given = make([p for p in held if p.ndim == 2], [p for p in held if p.ndim < 2])
        self.optimizers = list(given) if isinstance(given, list) else [given]
        self.guard: Guard = attach(
            self.model,
            given,
            run="trial",
            directory=folder / "guard",
            settings=SETTINGS,
            checkpoints=CheckpointDirectory(folder / "kept", every=6, background=False),
        )
        self._spoilt = spoilt
        self._batches: Iterator[Tensor] = iter(self.guard.batches(by_position(_batch)))

    def train_to(self, step: int) -> None:
        while self.guard.steps < step:
            self.step()

    def step(self) -> None:
        batch = next(self._batches)
        self.guard.loss((self.model(batch) - batch.roll(1, 1)).square().mean()).backward()
        if self.guard.steps + 1 in self._spoilt and self._spoils.weight.grad is not None:
            self._spoils.weight.grad[0, 0] = math.nan
        self.guard.clip_grad_norm_(1.0)
        for each in self.optimizers:
            each.step()
        for each in self.optimizers:
            each.zero_grad(set_to_none=True)
        self.guard.step()

    def everything(self) -> Any:
        states = [each.state_dict()["state"] for each in self.optimizers]
        return copy.deepcopy(self.model.state_dict()), _bits(copy.deepcopy(states))

    def finish(self) -> None:
        self.guard.finish()
        if self.guard.faults:
            raise Differs(f"faults {self.guard.faults}")


def _batch(position: int) -> Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(position))


def _bits(tree: Any) -> Any:
    """`tree` with the tensors inside those that are made of others; objects by their attributes."""
    if isinstance(tree, Tensor) and hasattr(tree, "__tensor_flatten__"):
        return {name: getattr(tree, name) for name in tree.__tensor_flatten__()[0]}
    if isinstance(tree, dict):
        return {str(key): _bits(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_bits(value) for value in tree]
    return _bits(vars(tree)) if hasattr(tree, "__dict__") and not isinstance(tree, Tensor) else tree


def hold(one: Any, other: Any, where: str = "") -> None:
    """Raise `Differs` at the first place where two trees are not the same bits."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            hold(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple) and len(one) == len(other):
        for place, (a, b) in enumerate(zip(one, other, strict=True)):
            hold(a, b, f"{where}[{place}]")
    elif not (torch.equal(one, other) if isinstance(one, Tensor) else one == other):
        raise Differs(where or "the whole")


def skipped(training: Any) -> Any:
    """Five steps, the first and the fourth of them spoilt: raises `Differs` unless these leave
    every bit; what everything was before the last one."""
    before = copy.deepcopy(training.model.state_dict())
    training.step()
    hold(training.model.state_dict(), before)
    training.train_to(3)
    kept = training.everything()
    training.step()
    hold(training.everything(), kept)
    training.step()
    return kept


def missing(kind: Kind) -> str:
    """What a row needs and is not here; empty where nothing is."""
    checkout = CHECKOUTS.get(kind.module)
    if checkout is not None and checkout not in os.environ:
        return f"{checkout} names no checkout"
    there = importlib.util.find_spec(kind.module.split(".")[0])
    return "" if there else f"{kind.module} is not there"
