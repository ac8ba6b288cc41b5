"""The ranks of the job and how the agent lets them talk to each other.

Owns a gloo group of its own, so that nothing here meets the job's collectives.
Every call below is collective: all ranks make it at the same step boundary or none does.
They block, so the loop meets them only at start and while a command is carried out. After one
failed, ranks may wait in different calls, so this rank makes no other (`Ties.broken`) and hangs up,
which makes the others' calls fail too.
The group ends with the attempt: a thread of gloo's that still holds a tensor when the interpreter
shuts down asks for an interpreter lock that nobody gives any more, and aborts the process.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
import torch.distributed as dist

from spikeguard.errors import AttachError

NAMED = 3  # names in a message; the others are counted
Given = ParamSpec("Given")
Refusal: TypeAlias = tuple[str, str, str]  # argument, problem and remedy


def refusal_of(
    check: Callable[Given, object], *given: Given.args, **named: Given.kwargs
) -> Refusal | None:
    """The `AttachError` that `check` raises, for the other ranks."""
    try:
        check(*given, **named)
    except AttachError as error:
        return error.argument, error.problem, error.remedy
    return None


def raise_first(refusals: Sequence[Refusal | None]) -> None:
    """Raise what the lowest rank refuses, on every rank."""
    for rank, refusal in enumerate(refusals):
        if refusal is not None:
            argument, problem, remedy = refusal
            raise AttachError(argument, f"rank {rank}: {problem}" if rank else problem, remedy)


def few(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def listed(names: Sequence[str]) -> str:
    """The same, each in quotes."""
    return few([repr(name) for name in names])


def verb(names: Sequence[str], one: str, many: str) -> str:
    """`one` for a single name, else `many`."""
    return one if len(names) == 1 else many


T = TypeVar("T")
LEAST = timedelta(minutes=2)  # that a rank is waited for, unless somebody says otherwise
NEVER_SENT = 1_000_003  # a tag
LANDING_S = 0.5  # for what this rank posted before it hangs up; a millisecond where all have
SAVING = timedelta(hours=1)  # for the rank whose disk is slowest; one that dies is seen at once


@dataclass(slots=True)
class Ties:
    """What this rank shares with the others: the group, and whether it may still vote."""

    group: dist.ProcessGroup | None = None
    broken: bool = False
    reason: str = ""  # why, where it is the loop's way and no failure
    posted: deque[Any] = field(default_factory=deque)  # exchanges that nobody waited for yet
    saving: dist.ProcessGroup | None = None  # for the thread that writes checkpoints


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
    def last_patience(self) -> timedelta:
        """For what is left when the attempt ends: hours are for a rank that is late for a step."""
        return min(self.timeout, LEAST)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, the one that talks to server and journal."""
        return self.rank == 0


def join_world(timeout_s: float = 0.0) -> World:
    """Form the agent's group if `torch.distributed` is initialised with more than one rank.

    `timeout_s`: how long a rank is waited for; 0: as long as the job's own collectives wait, so
    that a rank that may be late for those (it saves, or evaluates alone) is not given up here.
    """
    timeout = timedelta(seconds=timeout_s) if timeout_s else _patience_of_the_job()
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return World(0, 1, timeout)
    group = dist.new_group(backend="gloo", timeout=timeout)
    return World(dist.get_rank(), dist.get_world_size(), timeout, Ties(group))


def _patience_of_the_job() -> timedelta:
    """The longest timeout of the job's default group, `LEAST` where torch does not say."""
    found = [LEAST]
    with suppress(Exception):  # no public name leads to it
        job: Any = dist.group.WORLD
        found += [job._get_backend(device).options._timeout for device in job._device_types]
    return max(found)


def open_saving(world: World) -> None:
    """Form the group on which checkpoints are written beside the loop. Collective.

    Of its own, since a thread's collectives must not meet the loop's; gloo, since a job with NCCL
    alone has nothing for the host; in a job of one rank too, where DCP asks for it.
    """
    if dist.is_available() and dist.is_initialized():
        world.ties.saving = dist.new_group(backend="gloo", timeout=SAVING)


def leave_world(world: World) -> None:
    """End the group's threads, all its exchanges being read; meets no other rank.

    A rank whose ties broke keeps them: an exchange may hang there for the whole timeout.
    """
    if world.ties.broken and (world.ties.posted or not world.ties.reason):
        return
    for group in (world.ties.group, world.ties.saving):
        if group is not None:
            with suppress(ValueError, AssertionError):  # the job destroyed all groups before
                dist.destroy_process_group(group)
    world.ties.group = world.ties.saving = None  # the last references: gloo's threads end here


@contextmanager
def in_step(world: World) -> Iterator[None]:
    """Around whatever all ranks have to do together: one failure and this rank votes no more."""
    if world.ties.broken:
        why = world.ties.reason or "the ranks of this job lost step with each other earlier"
        raise RuntimeError(why)
    if world.size > 1 and world.group is None:
        raise RuntimeError("this rank has left the others: its attempt ended")
    try:
        yield
    except Exception:
        if world.size > 1:  # nobody waits elsewhere in a job of one process
            world.ties.broken = True
            _hang_up(world)
        raise


def _hang_up(world: World) -> None:
    """Have the other ranks fail now instead of waiting for one that does not come any more.

    Gloo closes all connections of a group in which something was waited for in vain. What lands
    meanwhile is let land first: of an exchange that is cut off half way another rank's gloo now and
    then hears nothing, and waits for its whole timeout.
    """
    until = time.monotonic() + LANDING_S
    for work in world.ties.posted:
        with suppress(Exception):
            work.wait(timedelta(seconds=max(0.001, until - time.monotonic())))
    with suppress(Exception):
        assert world.group is not None
        never = world.group.recv([torch.zeros(1)], (world.rank + 1) % world.size, NEVER_SENT)
        never.wait(timedelta(milliseconds=1))


def broadcast(world: World, value: T) -> T:
    """Rank 0's `value` on every rank. Blocks."""
    if world.size == 1:
        return value
    told: list[Any] = [value if world.leads else None]
    with in_step(world):
        dist.broadcast_object_list(told, src=0, group=world.group)
    first: T = told[0]
    return first


def all_gather(world: World, value: T) -> list[T]:
    """Every rank's `value` on every rank, in their order. Blocks."""
    if world.size == 1:
        return [value]
    told: list[Any] = [None] * world.size
    with in_step(world):
        dist.all_gather_object(told, value, group=world.group)
    return told


def gather_numbers(
    world: World, numbers: Sequence[float], patience: timedelta
) -> list[list[float]]:
    """Every rank's `numbers`, equally many, in their order. Blocks, at most for `patience`."""
    own = torch.tensor(numbers, dtype=torch.float64)
    found = [torch.zeros_like(own) for _ in range(world.size)]
    with in_step(world):
        work: Any = dist.all_gather(found, own, group=world.group, async_op=True)
        work.wait(patience)
    return [each.tolist() for each in found]


def all_agree(world: World, yes: bool) -> bool:
    """Whether every rank says yes. Blocks."""
    if world.size == 1:
        return yes
    votes = torch.tensor([int(yes)], dtype=torch.int64)
    with in_step(world):
        dist.all_reduce(votes, op=dist.ReduceOp.MIN, group=world.group)
    return bool(votes.item())  # on the host already: no device waits


def first_problem(world: World, problem: str | None) -> str | None:
    """What the lowest rank that has a problem says of it; None where no rank has one. Blocks."""
    return next(filter(None, all_gather(world, (problem or "")[:500])), None)
