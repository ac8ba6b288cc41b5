"""Two ranks under DDP that are not alike: each scene is a loop that is usual somewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from spikeguard import Settings, attach

AVERAGED_EVERY = 10  # steps, of the weights in local SGD
SPOILT_AT = 15  # step at which rank 1 alone has a gradient that is not finite
BATCHES = (20, 29)  # of each rank, where they have not equally many
PASSES = 3
TARGET = 20  # step of a snapshot
SETTINGS = {"snapshot_every": TARGET}
BUDGETED = 110  # steps
COPY_S = 0.02  # that a snapshot takes on rank 1, at least


def item(number: int, rank: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(1_000 * rank + number)
    x = torch.randn(8, 16, generator=made)
    return x, x[:, :1] * x[:, 1:2]


class Scene:
    """A model under DDP, and what its loop saw."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        server: str | None,
        settings: Mapping[str, Any] = SETTINGS,
        **said: Any,
    ) -> None:
        torch.manual_seed(0)
        self.rank = rank
        self.first = nn.Linear(16, 32)
        self.inner = nn.Sequential(self.first, nn.GELU(), nn.Linear(32, 1))
        self.model = DistributedDataParallel(self.inner)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=True)
        self.guard = attach(
            self.model,
            self.optimizer,
            run="test",
            directory=folder,
            server=server if rank == 0 else None,
            settings=Settings(send_interval_s=0.02, agreement_timeout_s=60, **settings),
            **said,
        )

    def train(self, data: Any, averaged: bool = False, spoilt: int | None = None) -> None:
        for x, y in self.guard.batches(data):
            with self.model.no_sync() if averaged else nullcontext():
                self.guard.loss(nn.functional.mse_loss(self.model(x), y)).backward()
            if self.rank == 1 and self.guard.steps + 1 == spoilt:
                assert self.first.weight.grad is not None
                self.first.weight.grad[0, 0] = float("nan")  # after the all-reduce
            self.guard.clip_grad_norm_(1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.guard.step()
            if averaged and self.guard.steps % AVERAGED_EVERY == 0:
                for p in self.inner.parameters():
                    dist.all_reduce(p.data)
                    p.data /= 2

    def told(self) -> dict[str, Any]:
        self.guard.finish()
        state = self.guard.state()
        return {
            "steps": self.guard.steps,
            "faults": self.guard.faults,
            "newest": state.newest_fault,
            "table": {row.name: str(row.answer) for row in state.abilities},
            "snapshots": [target.step for target in state.snapshots or ()],
        }


def local_sgd(folder: Path, rank: int, server: str | None) -> dict[str, Any]:
    """`no_sync()` in every step, weights averaged now and then: DDP is a mere wrapper."""
    scene = Scene(folder, rank, server)
    scene.train([item(n, rank) for n in range(2 * TARGET)], averaged=True)
    return scene.told()


def local_sgd_said(folder: Path, rank: int, server: str | None) -> dict[str, Any]:
    """The same, where the loop says so."""
    scene = Scene(folder, rank, server, replicated=False)
    scene.train([item(n, rank) for n in range(2 * TARGET)], averaged=True)
    return scene.told()


def nan_on_one(folder: Path, rank: int, server: str | None) -> dict[str, Any]:
    scene = Scene(folder, rank, server)
    scene.train([item(n, rank) for n in range(SPOILT_AT + 5)], spoilt=SPOILT_AT)
    return scene.told()


def joined(folder: Path, rank: int, server: str | None, inside: bool = False) -> dict[str, Any]:
    """`inside`: `finish()` is called before the context is left."""
    scene = Scene(folder, rank, server)
    began = time.monotonic()
    with Join([scene.model]):
        scene.train([item(n, rank) for n in range(BATCHES[rank])])
        if inside:
            scene.guard.finish()
    return {**scene.told(), "took_s": time.monotonic() - began}


def joined_inside(folder: Path, rank: int, server: str | None) -> dict[str, Any]:
    return joined(folder, rank, server, inside=True)


def in_passes(folder: Path, rank: int, server: str | None) -> dict[str, Any]:
    """Equally long ones: the ranks vote on after each, and an evaluation of one rank is none."""
    scene = Scene(folder, rank, server)
    for _ in range(PASSES):
        scene.train([item(n, rank) for n in range(7)])
        if rank == 0:
            for x, _ in scene.guard.batches([item(900, 0)]):
                with torch.no_grad():
                    scene.inner(x)
    return scene.told()


def budgeted(folder: Path, rank: int, server: str | None) -> dict[str, Any]:
    """By default: rank 1's copies take longer than the budget allows at every 20 steps."""
    scene = Scene(folder, rank, server, settings={"snapshot_budget": 0.05})
    recovery = scene.guard._p.recovery
    take = recovery.snapshot

    def slowly() -> None:
        time.sleep(COPY_S * rank)
        take()

    recovery.snapshot = slowly  # type: ignore[method-assign]
    scene.train([item(n, rank) for n in range(BUDGETED)])
    reason = next(r.reason for r in scene.guard.state().abilities if r.name == "rewind_from_memory")
    return {**scene.told(), "reason": reason}


SCENES: dict[str, Callable[[Path, int, str | None], dict[str, Any]]] = {
    scene.__name__: scene
    for scene in (
        local_sgd,
        local_sgd_said,
        nan_on_one,
        joined,
        joined_inside,
        in_passes,
        budgeted,
    )
}


def main(plan: dict[str, Any]) -> None:
    folder, rank = Path(plan["folder"]), plan["rank"]
    torch.set_num_threads(1)
    meeting = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    told = {
        name: scene(folder / name, rank, plan["servers"].get(name))
        for name, scene in SCENES.items()
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()
