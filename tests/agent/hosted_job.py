"""What each rank of a framework's loop runs, which owns iterator and checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from spikeguard import Settings, attach
from spikeguard.errors import RollbackByRestart
from spikeguard.integrations.framework_loop import (
    FrameworkFeed,
    HostedCheckpoints,
    LeavingOut,
    continue_from,
    hosted_feed,
    resumable,
    step_or_end,
)
from spikeguard_protocol import Ack, BatchRange, Order, Rollback, RunId
from tests.agent.heard import hear

STATE, EVERY, SKIP = "state.pt", 10, BatchRange(13, 16)


class RankRows:
    """This rank's rows of every position, with its number."""

    def __init__(self, rank: int, without: range) -> None:
        self.rank = rank
        self.positions = [position for position in range(1000) if position not in without]

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        for position in self.positions:
            generator = torch.Generator().manual_seed(position)
            yield position, torch.randn(2, 4, 8, generator=generator)[self.rank]


def main(folder: Path, steps: int, case: str) -> None:
    """Train to `steps`. `flipped`: after step 17 rank 1 has a wrong bit, and rank 0 is told to go
    back to equal weights. `without`: the batches are nowhere in the data."""
    rank, flipped = dist.get_rank(), 17 if case == "flipped" else 0
    rows_of = RankRows(rank, range(SKIP.first, SKIP.end) if case == "without" else range(0))
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    network = DistributedDataParallel(model)
    directory, home = HostedCheckpoints(folder / "checkpoints", every=0), folder / "guard"
    target = resumable(directory, home, RunId("default", "test"))
    guard = attach(
        network,
        optimizer,
        run="test",
        checkpoints=directory,
        directory=home,
        feed=FrameworkFeed,
        settings=Settings(replica_checksum_every=5),
    )
    seen: dict[str, Any] = {"from": target.step if target else 0, "read": [], "ended": "finished"}
    if target is not None:
        state = torch.load(directory.path / target.name / STATE)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        continue_from(guard, target)
    try:
        for position, rows in LeavingOut(rows_of, lambda: hosted_feed(guard)):
            seen["read"].append(position)
            guard.loss((network(rows) - rows.roll(1, 1)).square().mean()).backward()
            guard.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step_or_end(guard)
            if guard.steps == flipped and rank == 1:
                next(model.parameters()).detach().view(torch.int32)[3, 3] ^= 1 << 12
            if guard.steps == flipped and rank == 0:
                _order(guard, directory)
            if guard.steps % EVERY == 0:
                _save(guard, directory, model, optimizer)
            if guard.steps == steps:
                break
        guard.finish()
    except RollbackByRestart as ending:
        seen["ended"] = str(ending)
        raise
    finally:
        seen |= {"steps": guard.steps, "position": guard.position, "faults": guard.faults}
        seen["weights"] = [p.detach().flatten().tolist() for p in model.parameters()]
        (folder / f"rank{rank}.json").write_text(json.dumps(seen))
        dist.destroy_process_group()


def _order(guard: Any, directory: HostedCheckpoints) -> None:
    """As the sender does it: back to step 10, on rank 0 alone."""
    name = next(target.name for target in directory.targets() if target.step == EVERY)
    order = Order("test#1.1", guard.attempt, Rollback(name, EVERY, SKIP), 60.0, None)
    hear(guard, Ack(1, (order,)))


def _save(guard: Any, directory: HostedCheckpoints, model: Any, optimizer: Any) -> None:
    """As a framework does it: rank 0 writes, all wait."""
    name = f"checkpoint-{guard.steps}"
    if dist.get_rank() == 0:
        (directory.path / name).mkdir(parents=True, exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, directory.path / name / STATE)
    directory.adopt(name, guard)
    dist.barrier()


if plan := globals().get("PLAN"):  # one of two processes of the test's own
    os.environ.update(plan["environment"])
    meeting = f"file://{plan['meeting']}"
    dist.init_process_group("gloo", init_method=meeting, rank=plan["rank"], world_size=2)
    main(Path(plan["folder"]), plan["steps"], plan["case"])
