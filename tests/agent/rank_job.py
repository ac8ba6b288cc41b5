"""A small training job over ranks: tied, frozen, half-precision parameters and two groups.

Alone, or as several ranks that share every batch: sharded by FSDP2, or replicated by DDP.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from spikeguard import CheckpointDirectory, Guard, Ranks, Settings, attach
from spikeguard.optim.clipping import Rule, ZClip
from spikeguard_protocol import BatchRange, Medium, Rollback

from .job import Counted, order, target_at
from .ranks import here

ROWS, WORDS, WIDTH = 8, 11, 10  # a batch of all ranks; sizes that no number of ranks divides
SETTINGS = Settings(slow_signals_every=1, snapshot_every=4, send_interval_s=0.02, flush_s=60.0)

RULES: dict[str, Callable[[], Rule]] = {
    "fixed": lambda: ZClip(max_threshold=0.4, warm_up=10**6),
    "zclip": lambda: ZClip(warm_up=2, max_threshold=0.5, z_threshold=1.0),
}


class Network(nn.Module):
    """Word to next word; the last layer is the first one's weight."""

    def __init__(self, coarse: torch.dtype) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 13), nn.GELU(), nn.Linear(13, WIDTH)) for _ in range(1)
        )
        self.add_module("0", nn.LayerNorm(WIDTH))  # named as optimizers number parameters
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.coarse = nn.Linear(WIDTH, WIDTH, dtype=coarse)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.frozen.requires_grad_(False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = x + block(x)
        x = self.get_submodule("0")(x)
        x = self.frozen(x) + self.coarse(x.to(self.coarse.weight.dtype)).float()
        return self.head(x)  # type: ignore[no-any-return]


class Words(Counted):
    """This rank's rows of each micro-batch, a pure function of its number."""

    def __init__(self, rank: int, size: int, micro: int, left_out: Collection[int]) -> None:
        self.rank, self.size, self.micro = rank, size, micro
        self.left_out = left_out

    def __iter__(self) -> Words:
        return self

    def __next__(self) -> Tensor:
        while self.read // self.micro in self.left_out:
            self.read += 1
        self.read += 1
        whole = np.random.default_rng(self.read - 1).integers(0, WORDS, (ROWS, 4))
        share = ROWS // self.size
        return torch.from_numpy(whole[self.rank * share : (self.rank + 1) * share])


class SpreadJob:
    """One attempt at training `Network`; `said`: what `attach()` is told of replicas."""

    def __init__(
        self,
        folder: Path,
        rank: int = 0,
        size: int = 1,
        *,
        replicated: bool = False,
        said: bool | None = None,
        rule: Rule | None = None,
        micro: int = 1,
        coarse: torch.dtype = torch.float32,
        left_out: Collection[int] = (),
        state: Sequence[Any] = (),
        checkpoints: CheckpointDirectory | None = None,
        settings: Settings = SETTINGS,
        server: str | None = None,
    ) -> None:
        torch.manual_seed(5)
        self.model, self.rule = Network(coarse), rule
        self.rank, self.size, self.micro, self.replicated = rank, size, micro, replicated
        self.network: Any = self.model
        if size > 1 and replicated:
            self.network = DistributedDataParallel(self.model)
        elif size > 1:
            self._shard()
        decayed = [p for p in self.model.parameters() if p.requires_grad and p.ndim > 1]
        rest = [p for p in self.model.parameters() if p.requires_grad and p.ndim == 1]
        groups: list[dict[str, Any]] = [
            {"params": decayed},
            {"params": rest, "weight_decay": 0.0, "lr": 3e-2},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-2, fused=True)
        self.seen: list[dict[str, float]] = []
        self.trail: list[tuple[int, int]] = []
        self.spoil: Callable[[SpreadJob], object] = id

        self.guard: Guard = attach(
            self.network,
            self.optimizer,
            run="sharded",
            state=state,
            checkpoints=checkpoints,
            directory=folder / "guard",
            micro_batches=micro,
            settings=settings,
            server=server,
            forward=self._note,
            ranks=Ranks(replicated=said),
            clip=rule,
        )
        self._batches = iter(self.guard.batches(Words(rank, size, micro, left_out)))

    def _shard(self) -> None:
        """Over the ranks: each holds a part."""
        for block in self.model.blocks:
            fully_shard(block)
        fully_shard(self.model.coarse)
        fully_shard(self.model)

    def _meet(self, now: bool) -> None:
        """Whether the next backward pass brings the ranks' gradients together."""
        if self.replicated:
            self.network.require_backward_grad_sync = now  # what `no_sync` does
        else:
            self.network.set_requires_gradient_sync(now)

    def _note(self, values: dict[str, float], step: int) -> None:
        self.seen.append({"step": step, **values})

    def train_to(self, step: int, most: int = 1000) -> Self:
        """Until `guard.steps` is `step`; at most `most` optimizer steps."""
        while self.guard.steps != step and most and self.train_step():
            most -= 1
        return self

    def train_step(self) -> bool:
        """One optimizer step; False when the data ended or the run was stopped."""
        for micro in range(self.micro):
            batch = next(self._batches, None)
            if batch is None:
                return False
            if self.size > 1:
                self._meet(micro == self.micro - 1)
            scores = self.network(batch[:, :-1])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
            (self.guard.loss(loss) / self.micro).backward()
        self.spoil(self)
        self.guard.clip_grad_norm_(0.5 if self.rule is None else None)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        before = self.guard.steps
        self.guard.step()
        self.trail.append((before + 1, self.guard.steps))
        return True

    def shards(self) -> list[Tensor]:
        """This rank's bits of weights, moments and step counters."""
        own = [p for g in self.optimizer.param_groups for p in g["params"]]
        states = [t for p in own for t in self.optimizer.state[p].values()]
        return [here(each) for each in own + states]

    def go_back(self, number: int, step: int, medium: Medium, skip: BatchRange) -> int:
        """Train until a rollback that is ordered now was carried out; the step it went to."""
        order_back(self, number, step, medium, skip)
        reached = self.guard.steps
        while self.guard.steps >= reached:
            self.train_step()
        return self.guard.steps

    def whole_state(self) -> dict[str, Tensor]:
        """All weights, moments and counters, whole, by name. Collective."""
        found: dict[str, Tensor] = {}
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                state = self.optimizer.state.get(parameter, {})
                for key, value in {"weight": parameter, **state}.items():
                    whole = value.full_tensor() if isinstance(value, DTensor) else value
                    found[f"{name}.{key}"] = whole.detach().clone()
        return found


def order_back(job: Any, number: int, step: int, medium: Medium, skip: BatchRange) -> None:
    """Rank 0 hears of a rollback, as from the server."""
    action = Rollback(target_at(job, step, medium), step, skip)
    if job.rank == 0:
        order(job, action, number)
