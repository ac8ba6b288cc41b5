"""Other people's optimizers under the guard: `python -m benchmarks.optimizers [NAME ...]`.

One row for each: a NaN skipped with weights and state bit-identical (in the first step and later),
the learning rate scaled for one step and put back, a rollback from memory and a restart from disk
equal to training that was never left. Those of packages that are not installed (`pip install
pytorch-optimizer torchao transformers`) and of checkouts that are not named (`MUON`:
KellerJordan/Muon, `NANOCHAT`: karpathy/nanochat, `MODDED_NANOGPT`:
KellerJordan/modded-nanogpt) are told as such. Runs on a CPU.
Law: nothing of the optimizers is replaced; what differs is named with where it differs.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import logging
import math
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn, optim

from benchmarks import optimizers_modded
from spikeguard import AttachError, CheckpointDirectory, Guard, Settings, attach, by_position
from spikeguard_protocol import Ack, Action, Medium, Order, Rollback, ScaleLr

Parameters = list[Tensor]
Make = Callable[[Parameters, Parameters], Any]  # of matrices and of everything else
SETTINGS = Settings(snapshot_every=4, slow_signals_every=2)
MODDED = optimizers_modded.__name__
COLUMNS = ("skip", "scale_lr", "rollback", "restart")
SCALED = 3  # the step that an order after the second one reaches
CHECKOUTS = {"muon": "MUON", "nanochat.optim": "NANOCHAT", MODDED: optimizers_modded.CHECKOUT}


class Kind(NamedTuple):
    """One row."""

    name: str
    module: str  # that has to be there
    make: Make
    refused: bool = False  # at `attach()`


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
    Kind("modded-nanogpt NorMuon + fused AdamW", MODDED, optimizers_modded.nor_muon),
    Kind("modded-nanogpt DistAdam", MODDED, optimizers_modded.dist_adam, refused=True),
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
        self._spoilt, self.rates = spoilt, dict[int, list[Any]]()
        self._batches: Iterator[Tensor] = iter(self.guard.batches(by_position(_batch)))
        for each in self.optimizers:
            each.register_step_pre_hook(self._note)

    def _note(self, optimizer: Any, *_: Any) -> None:
        rates = self.rates.setdefault(self.guard.steps, [])
        rates += [float(g["lr"]) for g in optimizer.param_groups if g.get("lr") is not None]

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

    def order(self, action: Action) -> None:
        self.guard._p.inbox.hear(
            Ack(1, (Order("trial#1.1", self.guard.attempt, action, 600.0, None),))
        )

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


def skip(make: Make, folder: Path) -> str:
    training = Training(make, folder, spoilt=(1, 4))
    skipped(training)
    training.finish()
    if not all(torch.isfinite(p).all() for p in training.model.parameters()):
        raise Differs("not finite")
    return "yes"


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


def scale_lr(make: Make, folder: Path) -> str:
    training = Training(make, folder)
    training.train_to(2)
    if not training.guard._p.rates.usable:
        training.finish()
        return "said: no rate"
    training.order(ScaleLr(0.5, 1))
    training.train_to(5)
    training.finish()
    usual, scaled = training.rates[0], training.rates[SCALED]
    hold(scaled, [rate * 0.5 for rate in usual], "scaled")
    hold(training.rates[SCALED + 1], usual, "put back")
    return "yes"


def rollback(make: Make, folder: Path) -> str:
    training = Training(make, folder / "back")
    training.train_to(7)
    snapshots = training.guard._p.recovery.snapshots
    if snapshots is None:
        return "said: no snapshots"
    target = next(t for t in snapshots.targets if t.step == 4 and t.medium is Medium.MEMORY)
    training.order(Rollback(target.name, 4))
    training.step()
    hold(training.guard.steps, 4, "steps")
    return _as_never_left(training, make, folder)


def restart(make: Make, folder: Path) -> str:
    first = Training(make, folder / "again")
    first.train_to(7)
    first.finish()
    training = Training(make, folder / "again")
    hold(training.guard.resume(), 6, "steps")
    return _as_never_left(training, make, folder)


def _as_never_left(training: Training, make: Make, folder: Path) -> str:
    training.train_to(8)  # before another one seeds the random numbers that all share
    straight = Training(make, folder / "straight")
    straight.train_to(8)
    hold(training.everything(), straight.everything())
    for each in (training, straight):
        each.finish()
    return "yes"


TRIALS: dict[str, Callable[[Make, Path], str]] = dict(
    zip(COLUMNS, (skip, scale_lr, rollback, restart), strict=True)
)


def tried(kind: Kind, folder: Path) -> list[str]:
    """What becomes of each trial."""
    if why := missing(kind):
        return [why, "", "", ""]
    return [_ended(trial, kind.make, folder / name) for name, trial in TRIALS.items()]


def missing(kind: Kind) -> str:
    """What a row needs and is not here; empty where nothing is."""
    checkout = CHECKOUTS.get(kind.module)
    if checkout is not None and checkout not in os.environ:
        return f"{checkout} names no checkout"
    there = importlib.util.find_spec(kind.module.split(".")[0])
    return "" if there else f"{kind.module} is not there"


def _ended(trial: Callable[[Make, Path], str], make: Make, folder: Path) -> str:
    try:
        return trial(make, folder)
    except Differs as differs:
        return f"NO: {differs}"
    except AttachError:
        return "refused at attach"
    except Exception as error:
        return f"NO: {error!r:.80}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Other people's optimizers under the guard.")
    parser.add_argument("names", nargs="*", help="only those whose name has one of these in it")
    names = parser.parse_args().names
    torch.set_num_threads(1)
    logging.getLogger("spikeguard").setLevel(logging.ERROR)
    sys.path[:0] = [os.environ[name] for name in CHECKOUTS.values() if name in os.environ]
    print(
        f"torch {torch.__version__}\n| optimizer | {' | '.join(COLUMNS)} |\n|---|---|---|---|---|"
    )
    failed = 0
    for kind in KINDS:
        if names and not any(name in kind.name for name in names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            ends = tried(kind, Path(folder))
        failed += any(end.startswith("NO") for end in ends)
        print(f"| {kind.name} | {' | '.join(ends)} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
