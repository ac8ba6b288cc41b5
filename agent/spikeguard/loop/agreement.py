"""How all ranks come to act at the same step.

One tiny asynchronous reduction a step on the agent's own gloo group carries rank 0's word (the
number of the newest order, whether to be attentive, which snapshots to pin) and every rank's loss;
where parameters are sharded also every rank's part of the slow norms, so that no wish to see more
ever decides which collectives the job's own ranks make; where they are replicated, now and then
what the bits of every rank's weights add up to (`replicas`). What stands where is `tally`'s.
At step N every rank reads the slot of step N - K, so all learn of an order at the same boundary.
Law: nobody branches on whether a slot is ready: it is waited for, with the group's timeout. After
a failed wait this rank never votes again, so no command can be carried out by some ranks alone.
Cost: lists of numbers made once and used in turn; what a step's values come to over all ranks is
worked out where they are written down, not here.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spikeguard.loop.vote import Ballot, Numbers, Tally, Word
from spikeguard.measure.readback import Row
from spikeguard.topology.rank_group import World, in_step


class Agreed:
    """What all ranks know of an earlier step."""

    __slots__ = ("apart", "compared", "replicated", "row", "snapshot_bytes", "tally", "word")

    def __init__(self, tally: Tally, apart: tuple[int, ...] | None, replicated: bool) -> None:
        self.tally, self.row, self.word = tally, tally.row, tally.word
        self.snapshot_bytes = tally.snapshot_bytes
        self.compared = apart is not None
        self.apart = apart or ()  # ranks whose weights were not those of the others
        self.replicated = replicated

    def values(self) -> dict[str, float]:
        """Of the row, put together over all ranks."""
        own = self.row.read() if self.row is not None else {}
        return self.tally.values(own, self.replicated)


@dataclass(slots=True)
class _Slot:
    """A list of numbers and, while it is in flight, the row it was filled in for."""

    tensor: Tensor
    numbers: Numbers  # in the tensor's memory: an assignment to one is no operation of torch's
    row: Row | None = None


def _slot(length: int) -> _Slot:
    """The tensor owns the memory, so that gloo's threads may let go of it at any time."""
    tensor = torch.zeros(length, dtype=torch.float64)
    memory = (ctypes.c_double * length).from_address(tensor.data_ptr())
    return _Slot(tensor, memoryview(memory).cast("B").cast("d"))


class Agreement:
    """The slots in flight; at most K."""

    def __init__(
        self,
        world: World,
        lag: int,
        sharded: bool = False,
        replicated: bool = False,
        same_as: Sequence[int] = (),
    ) -> None:
        """`replicated`: it is known which ranks' weights are equal at the start, as DDP's are.

        Where that is not known the first comparison tells: ranks that differ then are no replicas.
        """
        self._world, self._lag, self.sharded = world, lag, sharded
        self._patience = world.timeout
        self._ballot = Ballot(world.rank, world.size, sharded)
        self._free = deque(_slot(self._ballot.length) for _ in range(lag + 1))
        self._flying: deque[_Slot] = deque()  # of the exchanges that the ties know as posted
        self._replicated, self._same_as = replicated, same_as
        self.compares = not sharded or len(set(same_as)) < len(same_as)  # whether any are worth it

    def tell_size(self, snapshot_bytes: int) -> None:
        """What a snapshot takes on this rank, for the votes from now on."""
        self._ballot.snapshot_bytes = snapshot_bytes

    @property
    def broken(self) -> bool:
        """Whether this rank votes no more."""
        return self._world.ties.broken

    def exchange(self, word: Word, row: Row | None) -> Agreed | None:
        """Post this step's slot and read that of K steps ago; None while there is none."""
        with in_step(self._world):
            self._post(word, row)
            return self._settle() if len(self._flying) > self._lag else None

    def drain(self) -> list[Agreed]:
        """Wait for every slot in flight; all ranks at the same boundary."""
        with in_step(self._world):
            return [self._settle() for _ in range(len(self._flying))]

    def end(self) -> None:
        """The attempt ends: what is in flight is not waited for as long as in a step."""
        self._patience = self._world.last_patience

    def forsaken(self) -> list[Row]:
        """Rows of the slots that nobody will read any more, oldest first; once.

        The slots stay: an exchange that hangs may write to its numbers yet.
        """
        rows = [slot.row for slot in self._flying if slot.row is not None]
        for slot in self._flying:
            slot.row = None
        return rows

    def _post(self, word: Word, row: Row | None) -> None:
        slot = self._free.popleft()
        slot.row = row
        self._flying.append(slot)
        self._ballot.fill(slot.numbers, word if self._world.leads else None, row)
        assert self._world.group is not None
        self._world.ties.posted.append(self._world.group.allreduce([slot.tensor]))

    def _settle(self) -> Agreed:
        posted = self._world.ties.posted
        posted[0].wait(self._patience)
        posted.popleft()
        slot = self._flying.popleft()
        tally = Tally(slot.row, slot.numbers.tolist(), self.sharded, self._same_as)
        slot.row = None
        self._free.append(slot)
        return Agreed(tally, self._apart(tally), self._replicated)

    def _apart(self, tally: Tally) -> tuple[int, ...] | None:
        """The ranks that have parted; None where nothing was compared, or they are no replicas."""
        apart = tally.apart if self.compares and tally.compared else None
        if apart is None:
            return None
        if apart and not self._replicated:  # they were never equal
            self.compares = False
            return None
        self._replicated = True
        return apart
