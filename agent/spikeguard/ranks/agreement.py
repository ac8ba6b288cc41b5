"""How all ranks come to act at the same step.

At each step every rank posts two small asynchronous reductions on the agent's own gloo group: a sum
and a maximum of named numbers (`vote`), whose size does not depend on the number of ranks. They
carry rank 0's word (the number of the newest order, whether to be attentive, which snapshots to
keep), every rank's loss, and whether the ranks are alike (`replica_check`); where parameters are
sharded also each rank's part of the slow norms, so that no wish to see more ever decides which
collectives the job's own ranks make. At step N every rank reads the vote of step N - K, so all
learn of an order at the same boundary.
Nobody branches on whether a vote is complete: it is waited for, with the group's timeout. After a
failed wait this rank never votes again, so no command can be carried out by some ranks alone.
A rank that makes no further step says so in K + 1 more votes, which it does not wait for: no rank
waits for one that has left.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from spikeguard.ranks.rank_group import World, in_step
from spikeguard.ranks.replica_check import Finding, ReplicaCheck
from spikeguard.ranks.replicas import REPLICA_APART, REPLICAS_APART
from spikeguard.ranks.vote import Measured, Own, Reduced, Vote, Voter, Word

Row = TypeVar("Row", bound=Measured)
LAG: Final = 2  # steps between a vote and its reading
LEAVING: Final = timedelta(seconds=10)  # for ranks that may go on with data of their own
UNEVEN: Final = (
    "the data of rank {rank} ended before that of the other ranks: they go on without orders, "
    "snapshots and checkpoints. Give all ranks equally many batches (drop_last=True)"
)


class Agreed(Generic[Row]):
    """What all ranks know of an earlier step; `row`: what this rank voted for."""

    __slots__ = ("finding", "reduced", "row", "word")

    def __init__(self, row: Row | None, reduced: Reduced, finding: Finding) -> None:
        self.row, self.reduced, self.word, self.finding = row, reduced, reduced.word, finding

    def values(self) -> dict[str, float]:
        """Of the row, put together over all ranks."""
        row = self.row
        values = self.reduced.values({} if row is None else row.read(), row.own if row else ())
        equal, ranks, _ = self.finding
        if equal is not None or ranks:
            values[REPLICAS_APART] = float(len(ranks))
        if ranks:
            values[REPLICA_APART] = float(ranks[0])
        return values


@dataclass(frozen=True, slots=True)
class _Slot(Generic[Row]):
    """One step's reductions while they are in flight."""

    summed: Tensor
    largest: Tensor
    row: Row | None
    own: Own


@dataclass(frozen=True, slots=True)
class _Layers(Generic[Row]):
    """Norms by layer on their way to be added up over the ranks."""

    row: Row
    squares: Tensor
    work: Any


class Agreement(Generic[Row]):
    """The votes in flight; at most K once a step's are read."""

    def __init__(
        self,
        world: World,
        sharded: bool = False,
        known: bool = False,
        same_as: Sequence[int] = (),
        compares: bool = True,
    ) -> None:
        """`known`, `same_as`, `compares`: see `ReplicaCheck`."""
        self._world, self.sharded = world, sharded
        self._patience = world.timeout
        self.voter = Voter(world.rank, world.size, sharded, same_as)
        self.replicas = ReplicaCheck(world, known, same_as, compares)
        self._maximum = _maximum()
        self._flying: deque[_Slot[Row]] = deque()
        self._layers: deque[_Layers[Row]] = deque()
        self.layered: list[tuple[Row, dict[str, float]]] = []  # norms by layer, over all ranks
        self.left = False  # this rank has said that it makes no further step

    @property
    def broken(self) -> bool:
        """Whether this rank votes no more."""
        return self._world.ties.broken

    def exchange(self, word: Word, row: Row | None) -> list[Agreed[Row]]:
        """Post this step's vote and read those of K steps ago and before."""
        settled: list[Agreed[Row]] = []
        with in_step(self._world):
            self._put_layers_together()
            if self.left:  # a pass ended; this is the first step of the next one
                settled = self._settled(0)
                self.left = False
            if not self._world.ties.broken:
                self._post(word, row)
                settled += self._settled(LAG)
        return settled

    def leave(self, word: Word, rows: Sequence[Row | None] = ()) -> None:
        """This rank makes no further step, or none before another pass. Waits for nobody.

        `rows`: of the last steps, as many as are not posted yet, at most K.
        """
        with in_step(self._world):
            for number in range(LAG + 1):
                self._post(word, rows[number] if number < len(rows) else None, ended=True)
            self.left = True

    def drain(self) -> list[Agreed[Row]]:
        """Wait for every vote in flight; all ranks at the same boundary."""
        with in_step(self._world):
            return self._settled(0)

    def end(self) -> None:
        """The attempt ends: nobody is waited for as long as in a step."""
        self._patience = min(self._world.last_patience, LEAVING if self.left else timedelta.max)

    def part(self) -> list[Agreed[Row]]:
        """After `leave`, when the attempt ends: what has come of the votes in flight, in time."""
        settled: list[Agreed[Row]] = []
        until = time.monotonic() + self._patience.total_seconds()
        with in_step(self._world):
            while self._flying and self._arrived(until):
                settled += self._settled(len(self._flying) - 1)
            if not self._flying:  # the others have read the same votes, or are about to
                self._put_layers_together()
        if self._flying and not self._world.ties.broken:
            self._world.ties.broken = True
            self._world.ties.reason = "this rank has ended, and other ranks go on"
        return settled

    def take_unread(self) -> list[Row]:
        """Rows of the votes that nobody will read any more, oldest first; once.

        Their works stay in `ties.posted`: an exchange that hangs may write to its numbers yet.
        """
        rows = [slot.row for slot in self._flying if slot.row is not None]
        self._flying.clear()
        return rows

    def _arrived(self, until: float) -> bool:
        """Whether the oldest vote in flight is complete, waiting for it until that time."""
        sums, largest = list(self._world.ties.posted)[:2]
        while not (sums.is_completed() and largest.is_completed()):
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        return True

    def _post(self, word: Word, row: Row | None, ended: bool = False) -> None:
        vote, own = self.voter.vote(word if self._world.leads else None, row, ended)
        slot = _Slot(_doubles(vote.summed), _doubles(vote.largest), row, own)
        self._flying.append(slot)
        group, posted = self._world.group, self._world.ties.posted
        assert group is not None
        posted.append(group.allreduce([slot.summed]))
        posted.append(group.allreduce([slot.largest], self._maximum))

    def _settled(self, most: int) -> list[Agreed[Row]]:
        """Read votes, oldest first, until no more than `most` are in flight.

        Where a rank has left while others go on, all that it voted is read, and this rank votes no
        more.
        """
        settled: list[Agreed[Row]] = []
        while len(self._flying) > most:
            settled.append(self._settle())
            rank = settled[-1].reduced.ended_rank
            if rank is not None and not self._world.ties.broken:
                settled += [self._settle() for _ in range(min(LAG, len(self._flying)))]
                self._world.ties.broken = True
                self._world.ties.reason = UNEVEN.format(rank=rank)
                break
        return settled

    def _settle(self) -> Agreed[Row]:
        posted = self._world.ties.posted
        for _ in range(2):
            posted[0].wait(self._patience)
            posted.popleft()
        slot = self._flying.popleft()
        vote = Vote(slot.summed.tolist(), slot.largest.tolist())
        reduced = Reduced(vote, self._world.size, self.sharded)
        if reduced.has_layers and slot.row is not None:
            self._post_layers(slot.row)
        return Agreed(slot.row, reduced, self.replicas.judge(reduced, slot.own))

    def _post_layers(self, row: Row) -> None:
        """All ranks know that all have a part. Read at the next boundary."""
        assert self._world.group is not None
        squares = _doubles(row.parts.take()).square_()
        self._layers.append(_Layers(row, squares, self._world.group.allreduce([squares])))

    def _put_layers_together(self) -> None:
        while self._layers:
            layers = self._layers.popleft()
            layers.work.wait(self._patience)
            if self._world.leads:
                row, norms = layers.row, layers.squares.sqrt_().tolist()
                pairs = zip(row.parts.names, norms, strict=True)
                told = {name: norm for name, norm in pairs if norm}  # 0.0: no rank has a gradient
                self.layered.append((row, told))


def _maximum() -> Any:
    options: Any = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    return options


def _doubles(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)
