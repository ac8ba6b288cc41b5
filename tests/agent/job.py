"""A small real training job, deterministic to the bit, that the tests watch and disturb."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from spikeguard import CheckpointDirectory, Guard, Settings, attach
from spikeguard_protocol import Ack, Action, CommandResult, Medium, Order

from .heard import hear

FAST = Settings(  # of time-outs that no busy machine reaches
    send_interval_s=0.02,
    timeout_s=30.0,
    flush_s=60.0,
    backoff_s=0.2,
    snapshot_every=10,
    watch_alone=False,
)
BRIEF = replace(FAST, timeout_s=2.0, flush_s=0.2)  # where all is waited for in vain
FAR = 500  # steps


class Counted:
    """A loader whose state is how many items were read of it."""

    read = 0

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


class Loader(Counted):
    """Micro-batches as a pure function of the position; has a state."""

    def __init__(self, micro_batches: int = 1) -> None:
        self.micro_batches = micro_batches
        self.seen: list[int] = []

    def __iter__(self) -> Iterator[Tensor]:
        return self

    def __next__(self) -> Tensor:
        self.seen.append(self.read)
        self.read += 1
        return batch_at(self.read - 1)


def batch_at(number: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(number).standard_normal((4, 8))).float()


class Ema:
    """An average of the weights that has to go back too."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.average = [p.detach().clone() for p in model.parameters()]

    def update(self) -> None:
        for kept, p in zip(self.average, self.model.parameters(), strict=True):
            kept.lerp_(p.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average = list(state["average"])


class Job:
    """Model with dropout, fused AdamW, cosine schedule, EMA; everything that must go back."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        micro_batches: int = 1,
        fused: bool = True,
        loader: Any = None,
        checkpoints: CheckpointDirectory | None = None,
        settings: Settings = FAST,
        **attaching: Any,
    ) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(7)
        layers = [nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.Linear(32, 8)]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-2, weight_decay=0.1, fused=fused
        )
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 400)
        self.ema = Ema(self.model)
        self.micro_batches = micro_batches
        self.loader = Loader(micro_batches) if loader is None else loader
        self.spoil: Callable[[Job], object] = id  # called before the optimizer's step
        if checkpoints is None and folder is not None:
            checkpoints = CheckpointDirectory(
                folder / "checkpoints", every=25, keep=3, background=False
            )
        self.guard: Guard = attach(
            self.model,
            self.optimizer,
            run="test",
            scheduler=self.scheduler,
            state=[self.ema],
            checkpoints=checkpoints,
            directory=folder / "guard" if folder else None,
            micro_batches=micro_batches,
            tokens_per_step=32 * micro_batches,
            settings=settings,
            **attaching,
        )
        self._batches: Iterator[Tensor] | None = None

    def train_to(self, step: int) -> Self:
        """Until `guard.steps` is `step`; a rollback on the way is trained over again."""
        while self.guard.steps != step and self.train_step():
            assert self.guard.steps < step + FAR, "it is beyond, and nothing takes it back"
        return self

    def train_step(self) -> bool:
        """One optimizer step; False when the data ended."""
        self._batches = self._batches or iter(self.guard.batches(self.loader))
        for _ in range(self.micro_batches):
            batch = next(self._batches, None)
            if batch is None:
                return False
            loss = self.guard.loss((self.model(batch) - batch.roll(1, 1)).square().mean())
            (loss / self.micro_batches).backward()
        self.guard.clip_grad_norm_(1.0)
        self.spoil(self)
        self.optimizer.step()
        self.scheduler.step()
        self.ema.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.guard.step()
        return True

    def everything(self) -> dict[str, Any]:
        """Weights, moments, schedule, average and random numbers, copied."""
        return copy.deepcopy(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "ema": self.ema.state_dict(),
                "torch": torch.get_rng_state(),
            }
        )


def assert_same(one: Any, other: Any, path: str = "") -> None:
    """Bit-identical trees."""
    if isinstance(one, Tensor):
        assert torch.equal(one, other), path
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_same(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{path}[{number}]")
    else:
        assert one == other, path


def guard_in(job: Any) -> Guard:
    """That of a job, or itself."""
    found: Guard = getattr(job, "guard", job)
    return found


def order(job: Any, action: Action, number: int = 1, **changes: Any) -> str:
    """Put an order into the inbox of a job, or of a guard, as the sender would; its command."""
    guard = guard_in(job)
    details: dict[str, Any] = {"attempt": guard.attempt, "expires_in_s": 60.0}
    details["expires_at_step"] = None
    command: str = changes.pop("command", f"test#1.{number}")
    details.update(changes)
    known = guard.state().orders
    hear(guard, Ack(1, (*known, Order(command, action=action, **details))))
    return command


def result(job: Any, command: str) -> CommandResult:
    """What the journal says became of `command`."""
    found: CommandResult = guard_in(job).state().results[command]
    return found


def target_at(job: Any, step: int, medium: Medium) -> str:
    """The name of the newest target of that step."""
    state = guard_in(job).state()
    held = state.checkpoints if medium is Medium.DISK else state.snapshots or ()
    names: Iterator[str] = (target.name for target in held if target.step == step)
    return next(names)
