"""Jobs whose ranks hold the same weights: under DDP, averaged by hand, under Accelerate; and not.

Runs as several ranks that share every batch; writes what each rank saw.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from spikeguard import CheckpointDirectory, Settings, attach
from spikeguard.state.training_state import host_copy, tree_bytes
from spikeguard_protocol import Ack, BatchRange, Medium, Order, Rollback

from .heard import hear, leave_out
from .sharded_job import RULES, SETTINGS, ShardedJob, order_back

EXTREME_AT = 30
STEPS, BACK_AT, TARGET, SKIP = 20, 14, 10, BatchRange(12, 14)


class ReplicatedJob(ShardedJob):
    """The same job, with all weights on every rank."""

    def spread(self) -> None:
        """Over the ranks: each holds all."""
        self.network = DistributedDataParallel(self.model)

    def meet(self, now: bool) -> None:
        """What `no_sync` does around forward and backward pass."""
        self.network.require_backward_grad_sync = now


def accumulated(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """Six steps of two micro-batches, of which only the second brings the ranks together."""
    job = ReplicatedJob(folder / "accumulated", rank, size, micro=2)
    job.train_to(6)
    job.guard.finish()
    weights = {name: value.tolist() for name, value in job.weights().items()}
    return {"seen": job.seen, "weights": weights, "faults": job.guard.faults}


def extreme(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """Rank 1 reads one batch with a loss 1,000 times as high as any, and later has one whose loss
    alone stands out, which its gradients do not.
    """
    settings = Settings(drop_z=8.0, drop_z_warm_up=10, replica_checksum_every=10)
    job = ReplicatedJob(folder / "extreme", rank, size, settings=settings)
    job.train_to(EXTREME_AT - 1)
    before = job.shards()
    job.factor = 1e3 if rank == 1 else 1.0
    job.train_step()
    kept = all(map(torch.equal, before, job.shards()))
    job.factor = 1.0
    job.train_to(EXTREME_AT + 4)
    job.more = 1e3 if rank == 1 else 0.0
    job.train_step()
    job.more = 0.0
    job.train_to(40)
    job.guard.finish()
    moved = not any(map(torch.equal, before[:2], job.shards()[:2]))
    told = {"kept": kept, "moved": moved, "bits": _bits(job.shards()), "seen": job.seen}
    return {**told, "faults": job.guard.faults}


def clipped(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """A rule that has learnt, and a rollback: the bits of a job that never saw the batches."""

    def job(name: str, left_out: list[int]) -> ReplicatedJob:
        rule = RULES["hybrid"]()
        return ReplicatedJob(folder / name, rank, size, rule=rule, micro=2, left_out=left_out)

    back, never = job("clipped", []), job("never", [9, 10])
    back.train_to(11)
    order_back(back, 1, 8, Medium.MEMORY, BatchRange(9, 11))
    while back.guard.steps >= 11:
        back.train_step()
    steps = back.guard.steps
    for one in (back, never):
        one.train_to(14)
        one.guard.finish()
    same = all(map(torch.equal, back.shards(), never.shards()))
    told = {"steps": steps, "same": same, "bits": _bits(back.shards())}
    return {**told, "faults": back.guard.faults}


def _bits(tensors: list[Tensor]) -> list[float]:
    return [float(t.double().sum()) for t in tensors]


class Larger:
    """A part of the training state that may take more room on one rank."""

    def __init__(self, numbers: int) -> None:
        self.held = torch.zeros(numbers)

    def state_dict(self) -> dict[str, Any]:
        return {"held": self.held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state["held"]


def uneven(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """The ring of snapshots where rank 1 has room for 3, or from step 10 on for none."""
    told = {}
    for limit in (170_000, 40_000):
        settings = replace(SETTINGS, snapshot_bytes=limit)
        home, state = folder / f"uneven-{limit}", Larger(10_000 * rank if limit > 100_000 else 0)
        job = ReplicatedJob(home, rank, size, settings=settings, state=[state])
        job.train_to(10)
        state.held = torch.zeros(10_000 * rank)
        job.train_to(31)
        ring = job.guard._p.recovery.snapshots
        held = [target.step for target in ring.targets] if ring is not None else None
        job.guard.finish()
        size = ring.bytes if ring is not None else 0
        told[str(limit)] = {"held": held, "bytes": size, "faults": job.guard.faults}
    return told


def shared(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """One copy for both ranks: what each keeps, whether it is whole, and what a flipped bit does.

    The weights are compared wherever a snapshot is taken, and the ranks know two steps later.
    """
    settings = replace(SETTINGS, replica_checksum_every=4)
    job = ReplicatedJob(folder / "shared", rank, size, settings=settings)
    recovery = job.guard._p.recovery
    ring = recovery.snapshots
    assert ring is not None
    job.train_to(8)
    then = host_copy(recovery.live())
    job.train_to(9)
    kept = ring.load(ring.targets[-1].name)
    told: dict[str, Any] = {"bytes": ring.bytes, "whole": tree_bytes(then)}
    told["same"] = _same(then, kept)
    if rank == 1:
        with torch.no_grad():
            job.model.words.weight.view(torch.int32)[0, 0] ^= 1 << 22
    job.train_to(18)
    told["apart"] = [target.step for target in ring.targets]
    order_back(job, 1, 4, Medium.MEMORY, BatchRange(17, 18))
    while job.guard.steps >= 18:
        job.train_step()
    told["back"], told["bits"] = job.guard.steps, _bits(job.shards())
    job.train_to(13)
    told["again"] = [target.step for target in ring.targets]
    newest = ring.find(ring.targets[-1].name)
    assert newest is not None
    assert newest.staged.buffer.region is not None
    if rank == 1:
        newest.staged.buffer.region.hold("")  # its part is not there any more
    order_back(job, 2, newest.target.step, Medium.MEMORY, BatchRange(12, 13))
    job.train_to(20)
    results = job.guard.state().results
    told["results"] = {name: [r.state, r.reason] for name, r in results.items()}
    job.guard.finish()
    return {**told, "trail": job.trail[-7:], "faults": job.guard.faults}


def _same(one: Any, other: Any) -> bool:
    """To the bit."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(np.all(one == other))


def by_hand(folder: Path, rank: int, _: int) -> dict[str, Any]:
    """No DDP. Rank 1's second step has a NaN: in its own gradients alone, or in everybody's."""
    told: dict[str, Any] = {}
    for stated in (None, True):
        torch.manual_seed(1)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        home = folder / f"by-hand-{stated}"
        guard = attach(model, optimizer, run="test", directory=home, replicated=stated)
        moved = []
        for step in range(3):
            before = model.weight.detach().clone()
            guard.loss(model(torch.ones(2, 4)).square().mean()).backward()
            if step == 1 and rank == 1:
                assert model.weight.grad is not None
                model.weight.grad[0, 0] = float("nan")
            for p in model.parameters() if stated else ():
                dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
            guard.clip_grad_norm_(None)
            optimizer.step()
            optimizer.zero_grad()
            guard.step()
            moved.append(not torch.equal(before, model.weight))
        guard.finish()
        update_skipper = guard.state().facts["update_skipper"]
        told[str(stated)] = {
            "update_skipper": update_skipper,
            "moved": moved,
            "faults": guard.faults,
        }
    network = DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, fused=True)
    guard = attach(network.module, optimizer, run="test", directory=folder / "inner")
    told["inner"] = {"update_skipper": guard.state().facts["update_skipper"]}
    guard.finish()
    return told


def accelerated(folder: Path, rank: int, _: int) -> dict[str, Any]:
    """`STEPS` steps under Accelerate, back from `BACK_AT` to `TARGET` without `SKIP`; and the same
    of a job that never had those batches."""
    return {name: _accelerated(folder / name, rank, name == "back") for name in ("back", "never")}


def _accelerated(folder: Path, rank: int, ordered: bool) -> dict[str, Any]:
    from accelerate import Accelerator

    from spikeguard.integrations.accelerate import attach as attach_accelerated

    torch.manual_seed(2)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model: Any = nn.Sequential(nn.Linear(8, 512), nn.GELU(), nn.Linear(512, 8))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    rows = torch.randn(600, 8, generator=torch.Generator().manual_seed(4))
    loader: Any = DataLoader(rows, batch_size=4)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    kept = CheckpointDirectory(folder / "checkpoints", every=TARGET, background=False)
    guard = attach_accelerated(accelerator, model, optimizer, run="test", checkpoints=kept)
    told: dict[str, Any] = {"trail": [], "kind": str(accelerator.distributed_type)}
    if not ordered:
        leave_out(guard, SKIP)
    for batch in guard.batches(loader):
        with accelerator.accumulate(model):
            loss = guard.loss((model(batch) - batch.roll(1, 1)).square().mean())
            accelerator.backward(loss)
            guard.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            before = guard.steps
            guard.step()
        if guard.steps < before:
            told["trail"].append([before, guard.steps])
        if ordered and rank == 0 and guard.steps == BACK_AT and not guard.state().results:
            name = next(target.name for target in kept.targets())
            order = Order("test#1.1", guard.attempt, Rollback(name, TARGET, SKIP), 60.0, None)
            hear(guard, Ack(1, (order,)))
        if guard.steps == STEPS:
            break
    guard.finish()
    told |= {"faults": guard.faults, "position": guard.position, **_stored(kept, rank)}
    told["weights"] = [p.detach().flatten().tolist() for p in model.parameters()]
    told["state_bytes"] = 3 * sum(p.nbytes for p in model.parameters())  # with two moments
    return told


def _stored(kept: CheckpointDirectory, rank: int) -> dict[str, Any]:
    """What lies in the oldest checkpoint under names that all ranks share, and what is a rank's."""
    held = FileSystemReader(kept.folder(kept.targets()[0].name)).read_metadata()
    names = [n for n in held.state_dict_metadata if not n.startswith("rank-")]
    own: Any = held.state_dict_metadata[f"rank-{rank:05d}"]
    return {"shared": sorted(names), "own_bytes": own.size[0]}


def main(plan: dict[str, Any]) -> None:
    """What one rank of a test does."""
    rank, size, folder = plan["rank"], plan["size"], Path(plan["folder"])
    torch.set_num_threads(1)
    launched = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update({name: str(value) for name, value in launched.items()})  # for Accelerate
    meeting = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    told = {name: globals()[name](folder, rank, size) for name in plan["scenes"]}
    (folder / f"rank{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()
