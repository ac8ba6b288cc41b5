"""A rollback by restart with several ranks: all end, go back and leave out the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from spikeguard import Settings, attach
from spikeguard.errors import EXIT_ROLL_BACK, RollbackByRestart
from spikeguard.integrations.framework_loop import (
    HostedCheckpoints,
    LeavingOut,
    continue_from,
    resumable,
    step_or_end,
)
from spikeguard_protocol import (
    Ack,
    AttemptStarted,
    BatchRange,
    CommandResult,
    Order,
    ResultState,
    Rollback,
    RunId,
    SegmentReason,
    SegmentStarted,
)

from .forks import ended
from .heard import hear, parts_of
from .ranks import begin
from .wire import Wire, served

pytestmark = pytest.mark.slow

STATE, STEPS, EVERY, SKIP = "state.pt", 30, 10, BatchRange(13, 16)


class RankRows:
    """This rank's rows of every position, with its number."""

    def __init__(self, rank: int, without: range) -> None:
        self.rank = rank
        self.positions = [position for position in range(1000) if position not in without]

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        for position in self.positions:
            generator = torch.Generator().manual_seed(position)
            yield position, torch.randn(2, 4, 8, generator=generator)[self.rank]


def train(folder: Path, rank: int, _: int, *, case: str, server: str) -> None:
    """`flipped`: after step 17 rank 1 has a wrong bit, and rank 0 is told to go
    back to equal weights. `without`: the batches are nowhere in the data."""
    flipped = 17 if case == "flipped" else 0
    rows_of = RankRows(rank, range(SKIP.first, SKIP.end) if case == "without" else range(0))
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
        server=server,
        checkpoints=directory,
        directory=home,
        settings=Settings(replica_checksum_every=5),
    )
    seen: dict[str, Any] = {"from": target.step if target else 0, "read": [], "ended": "finished"}
    if target is not None:
        state = torch.load(directory.path / target.name / STATE)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        continue_from(guard, target)
    try:
        for position, rows in LeavingOut(rows_of, lambda: parts_of(guard).feed):
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
            if guard.steps == STEPS:
                break
        guard.finish()
    except RollbackByRestart as ending:
        seen["ended"] = str(ending)
        raise
    finally:
        seen |= {"steps": guard.steps, "position": guard.position, "faults": guard.faults}
        seen["weights"] = [p.detach().flatten().tolist() for p in model.parameters()]
        (folder / f"rank{rank}.json").write_text(json.dumps(seen))


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


def run(wire: Wire, home: Path, case: str, status: int = 0) -> list[Any]:
    """What two ranks saw that end with `status`."""
    ranks = begin(home, 2, {"job": partial(train, case=case, server=wire.url)})
    assert ended(ranks, 100) == [status] * 2
    return [json.loads((home / f"job/rank{rank}.json").read_text()) for rank in range(2)]


def test_all_ranks_end_and_go_on_from_the_same_checkpoint_without_the_batches(
    tmp_path: Path,
) -> None:
    """Only rank 0 hears of it. Before, a bit flipped on rank 1; the restart makes them equal, bit
    for bit those of a job that never had the batches."""
    with served(Wire()) as wire:
        first = run(wire, tmp_path, "flipped", EXIT_ROLL_BACK)
        second = run(wire, tmp_path, "")
        assert wire.column("replicas_apart")[0, 16] == 0.0
        started = wire.records(AttemptStarted)
        (segment,) = wire.records(SegmentStarted, wire.attempt)
        (result,) = wire.records(CommandResult)
    assert first[0]["ended"] == first[1]["ended"]
    assert "back to checkpoint-10" in first[0]["ended"]
    assert first[0]["steps"] == first[1]["steps"] < 25
    assert first[0]["weights"] != first[1]["weights"]
    for rank in second:
        assert (rank["from"], rank["steps"], rank["position"]) == (10, 30, 33)
        assert rank["read"] == [*range(10, 13), *range(16, 33)]
        assert rank["faults"] == {}
    assert second[0]["weights"] == second[1]["weights"]
    assert started[1].parent is not None
    assert (started[1].parent.step, started[1].world_size) == (10, 2)
    assert (segment.reason, segment.position) == (SegmentReason.RESUME, 10)
    assert (result.command, result.state) == ("test#1.1", ResultState.APPLIED)
    with served(Wire()) as wire:
        never = run(wire, tmp_path / "never", "without")
    assert second[0]["weights"] == never[0]["weights"]
