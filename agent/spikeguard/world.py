"""The ranks of the job and how the agent lets them talk to each other.

Owns a gloo group of its own, so that nothing here meets the job's collectives.
Law: every call below is collective: all ranks make it at the same step boundary or none does.
They block, so the loop meets them only at start and while a command is carried out. After one
failed, ranks may wait in different calls, so this rank makes no other (`Ties.broken`).
The group ends with the attempt: a thread of gloo's that still holds a tensor when the interpreter
shuts down asks for an interpreter lock that nobody gives any more, and aborts the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist


@dataclass(slots=True)
class Ties:
    """What this rank shares with the others: the group, and whether it may still vote."""

    group: dist.ProcessGroup | None = None
    broken: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """This process among its peers."""

    rank: int
    size: int
    timeout: timedelta
    ties: Ties = field(default_factory=Ties)

    @property
    def group(self) -> dist.ProcessGroup | None:
        """None in a job of one process, and once this rank has left."""
        return self.ties.group

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, the one that talks to server and journal."""
        return self.rank == 0


def join_world(timeout_s: float) -> World:
    """Form the agent's group if `torch.distributed` is initialised with more than one rank."""
    timeout = timedelta(seconds=timeout_s)
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return World(0, 1, timeout)
    group = dist.new_group(backend="gloo", timeout=timeout)
    return World(dist.get_rank(), dist.get_world_size(), timeout, Ties(group))


def leave_world(world: World) -> None:
    """End the group's threads, all its exchanges being read; meets no other rank.

    A rank whose ties broke keeps them: an exchange may hang there for the whole timeout.
    """
    if world.ties.group is None or world.ties.broken:
        return
    with suppress(ValueError):  # the job destroyed all groups before
        dist.destroy_process_group(world.ties.group)
    world.ties.group = None  # the last reference: gloo's threads are joined here


@contextmanager
def in_step(world: World) -> Iterator[None]:
    """Around whatever all ranks have to do together: one failure and this rank votes no more."""
    if world.ties.broken:
        raise RuntimeError("the ranks of this job lost step with each other earlier")
    if world.size > 1 and world.group is None:
        raise RuntimeError("this rank has left the others: its attempt ended")
    try:
        yield
    except Exception:
        world.ties.broken = True
        raise


def share_text(world: World, text: str) -> str:
    """Rank 0's `text` on every rank. Blocks."""
    if world.size == 1:
        return text
    mine = text.encode() if world.leads else b""
    with in_step(world):
        length = torch.tensor([len(mine)], dtype=torch.int64)
        dist.broadcast(length, src=0, group=world.group)
        body = torch.zeros(int(length), dtype=torch.uint8)
        if world.leads:
            body = torch.tensor(list(mine), dtype=torch.uint8)
        if len(body):
            dist.broadcast(body, src=0, group=world.group)
    return bytes(body.tolist()).decode()


def all_agree(world: World, yes: bool) -> bool:
    """Whether every rank says yes. Blocks."""
    if world.size == 1:
        return yes
    votes = torch.tensor([int(yes)], dtype=torch.int64)
    with in_step(world):
        dist.all_reduce(votes, op=dist.ReduceOp.MIN, group=world.group)
    return bool(votes.item())  # on the host already: no device waits
