"""How all ranks come to act at the same step.

At each step every rank posts two small asynchronous reductions on the agent's own gloo group: a sum
and a maximum of named numbers (`vote`), whose size does not depend on the number of ranks. They
carry rank 0's word (the number of the newest order, whether to be attentive, which snapshots to
keep), every rank's loss, and whether the ranks are alike (`ReplicaCheck`); where parameters are
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
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Generic, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from spikeguard.ranks.layout import Topology
from spikeguard.ranks.rank_group import World, gather_numbers, in_step
from spikeguard.ranks.replicas import REPLICA_APART, REPLICAS_APART, ranks_apart
from spikeguard.ranks.vote import Measured, Own, Reduced, Vote, Voter, Word

STREAK: Final = 3  # steps in a row with different gradient norms: these ranks are no replicas
QUIET: Final = 10  # steps between two gathers because of an update that some ranks left out
NAMED: Final = 16  # ranks in a sentence
NOT_ALIKE: Final = (
    "the gradients of the ranks differ in each step although the model is in a "
    "DistributedDataParallel or Ranks(replicated=True) was given: these ranks are no replicas "
    "(no_sync() in each step, local SGD, a hook). Say ranks=Ranks(replicated=False), so that each "
    "rank keeps and gets back its own state. Until then no rollback is carried out, and a "
    "checkpoint holds one copy of what differs"
)


class Finding(NamedTuple):
    """What one step's vote says of the replicas."""

    equal: bool | None = None  # the bits of the weights; None where they were not compared
    ranks: tuple[int, ...] = ()  # that are not like the most
    said: str = ""  # what differs, for the log


class ReplicaCheck:
    """The same on every rank."""

    def __init__(self, world: World, topology: Topology, compares: bool) -> None:
        """`compares`: whether anything is to be compared.

        Where it is not known what ranks hold the first comparison of weights tells: ranks that
        differ then are no replicas.
        """
        self._world, self._same_as = world, topology.same_as
        self.compares = compares and topology.replicas  # weights
        self._replicated, self._norms = topology.known, topology.known and compares
        self.unlike = False  # known replicas turned out to be none
        self._streak = 0
        self._skips_at: float | None = None  # the newest step of which skips were gathered

    def judge(self, reduced: Reduced, own: Own) -> Finding:
        """At the same boundary on all ranks; `own`: what this rank voted."""
        equal = self._compared(reduced)
        if equal is False:
            ranks = ranks_apart([each.bits for each in self._gathered(own)], self._same_as)
            said = f"at step {own.step:.0f} the weights of {_named(ranks)} were not those of the "
            return Finding(False, ranks, f"{said}other ranks")
        if not self._norms:
            return Finding(equal)
        if reduced.skips_differ:
            return self._skips(own)._replace(equal=equal)
        if not reduced.norms_differ:
            self._streak = 0
            return Finding(equal)
        return self._differing_norms(own)._replace(equal=equal)

    def _compared(self, reduced: Reduced) -> bool | None:
        if not (self.compares and reduced.compared):
            return None
        if reduced.bits_differ and not self._replicated:  # they were never equal
            self.compares = False
            return None
        self._replicated = True
        return not reduced.bits_differ

    def _gathered(self, own: Own) -> list[Own]:
        return [Own(*each) for each in gather_numbers(self._world, own, self._world.last_patience)]

    def _skips(self, own: Own) -> Finding:
        since = self._skips_at
        if since is not None and 0 <= own.step - since < QUIET:
            return Finding()
        self._skips_at = own.step
        out = [each.skipped > 0.0 or each.norm == float("inf") for each in self._gathered(own)]
        skipped = tuple(rank for rank, left_out in enumerate(out) if left_out)
        others = tuple(rank for rank, left_out in enumerate(out) if not left_out)
        apart = others if len(others) < len(skipped) else skipped
        said = f"at step {own.step:.0f} the update was left out or not finite on {_named(skipped)} "
        return Finding(None, apart, f"{said}and made on {_named(others)}: they hold other weights")

    def _differing_norms(self, own: Own) -> Finding:
        self._streak += 1
        if self._streak == STREAK:
            self.unlike, self._norms, self.compares = True, False, False
            return Finding(None, (), NOT_ALIKE)
        if self._streak > 1:
            return Finding()
        norms = [each.norm for each in self._gathered(own)]
        usual, _ = Counter(norms).most_common(1)[0]  # the lowest rank's among as many
        apart = tuple(rank for rank, norm in enumerate(norms) if norm != usual)
        said = f"at step {own.step:.0f} the gradient norm of {_named(apart)} was not that of the "
        return Finding(None, apart, f"{said}other ranks: their updates differ")


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:NAMED])) + (", ..." if len(ranks) > NAMED else "")
    return f"rank {shown}"


# ---- how all ranks come to act at the same step -----------------------------------------------


Row = TypeVar("Row", bound=Measured)
LAG: Final = 2  # steps between a vote and its reading
LEAVING: Final = timedelta(seconds=10)  # for ranks that may go on with data of their own
UNEVEN: Final = (
    "the data of rank {rank} ended before that of the other ranks: they go on without orders, "
    "snapshots and checkpoints. Give all ranks equally many batches (drop_last=True)"
)


@dataclass(frozen=True, slots=True)
class Agreed(Generic[Row]):
    """What all ranks know of an earlier step; `row`: what this rank voted for."""

    row: Row | None
    reduced: Reduced
    finding: Finding

    def values(self) -> dict[str, float]:
        """Of the row, put together over all ranks."""
        row = self.row
        values = self.reduced.values({} if row is None else row.read())
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


class Agreement(Generic[Row]):
    """The votes in flight; at most K once a step's are read."""

    def __init__(self, world: World, topology: Topology, compares: bool) -> None:
        """`compares`: whether replicas are to be compared."""
        self._world, self.sharded = world, topology.parted
        self._patience = world.timeout
        self.voter = Voter(world.rank, world.size, topology.parted, topology.same_as)
        self.replicas = ReplicaCheck(world, topology, compares)
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self._maximum = options
        self._flying: deque[_Slot[Row]] = deque()
        self.left = False  # this rank has said that it makes no further step

    @property
    def broken(self) -> bool:
        """Whether this rank votes no more."""
        return self._world.ties.broken

    def exchange(self, word: Word, row: Row | None) -> list[Agreed[Row]]:
        """Post this step's vote and read those of K steps ago and before."""
        settled: list[Agreed[Row]] = []
        with in_step(self._world):
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

    def part(self) -> list[Agreed[Row]]:
        """After `leave`, when the attempt ends: what has come of the votes in flight, in time.

        Nobody is waited for as long as in a step.
        """
        settled: list[Agreed[Row]] = []
        self._patience = min(self._world.last_patience, LEAVING if self.left else timedelta.max)
        until = time.monotonic() + self._patience.total_seconds()
        with in_step(self._world):
            while self._flying and self._arrived(until):
                settled += self._settled(len(self._flying) - 1)
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
        summed = torch.tensor(vote.summed, dtype=torch.float64)
        largest = torch.tensor(vote.largest, dtype=torch.float64)
        self._flying.append(_Slot(summed, largest, row, own))
        group, posted = self._world.group, self._world.ties.posted
        assert group is not None
        posted.append(group.allreduce([summed]))
        posted.append(group.allreduce([largest], self._maximum))

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
        return Agreed(slot.row, reduced, self.replicas.judge(reduced, slot.own))
