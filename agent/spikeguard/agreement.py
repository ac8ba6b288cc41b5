"""How all ranks come to act at the same step.

One tiny asynchronous reduction a step on the agent's own gloo group carries rank 0's word (the
number of the newest order, whether to be attentive, which snapshots to pin) and every rank's loss;
where parameters are sharded also every rank's part of the slow norms, so that no wish to see more
ever decides which collectives the job's own ranks make; where they are replicated, now and then
what the bits of every rank's weights add up to (`replicas`).
At step N every rank reads the slot of step N - K, so all learn of an order at the same boundary.
Law: nobody branches on whether a slot is ready: it is waited for, with the group's timeout. After
a failed wait this rank never votes again, so no command can be carried out by some ranks alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from spikeguard.collector import LOSS_SUM, LOSS_WEIGHT, Row
from spikeguard.replicas import (
    HIGH,
    LOW,
    REPLICA_APART,
    REPLICAS_APART,
    number_of,
    ranks_apart,
)
from spikeguard.signals.over_ranks import HIGHEST, MEANS, highest_of, over_ranks, parts_of
from spikeguard.world import World, in_step
from spikeguard_protocol import Signal

PINS = 2
_SUM, _WEIGHT, _SERIAL, _ATTENTIVE, _PINS = 0, 1, 2, 3, 4
PARTS = (
    Signal.PARAM_NORM,
    Signal.ADAM_V_NORM,
    Signal.UPDATE_NORM,
    Signal.UPDATE_NORM_SAMPLED,
)
_PARTS = _PINS + 2 * PINS  # square and count of each, where sharded
_MEANS = _PARTS + 2 * len(PARTS)  # sum and count of each optional signal that is a mean
_OWN = _MEANS + 2 * len(MEANS)  # loss, bits of the weights, step and `HIGHEST` of rank 0, 1, ...
_HIGHEST = 3
_EACH = _HIGHEST + len(HIGHEST)
_UNDERWAY = frozenset({LOSS_SUM, LOSS_WEIGHT, LOW, HIGH})
Pin = tuple[int, int]  # step and segment of a snapshot


@dataclass(frozen=True, slots=True)
class Word:
    """What rank 0 says to all ranks at a step."""

    serial: int = 0  # orders announced so far
    attentive: bool = False
    pins: tuple[Pin, ...] = ()


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks know of an earlier step."""

    word: Word
    row: Row | None
    values: dict[str, float]  # of the row, loss reduced over all ranks
    apart: tuple[int, ...] = ()  # ranks whose weights were not those of the others


@dataclass(slots=True)
class _Slot:
    sums: Tensor
    work: Any
    row: Row | None
    values: dict[str, float]


class Agreement:
    """The slots in flight; at most K."""

    def __init__(
        self, world: World, lag: int, sharded: bool = False, replicated: bool = False
    ) -> None:
        """`replicated`: the ranks' weights are known to be equal at the start, as DDP's are.

        Where that is not known the first comparison tells: ranks that differ then are no replicas.
        """
        self._world, self._lag, self._sharded = world, lag, sharded
        self._slots: deque[_Slot] = deque()
        self._replicated = replicated
        self.compares = not sharded  # whether the ranks' weights are worth comparing

    @property
    def broken(self) -> bool:
        """Whether this rank votes no more."""
        return self._world.ties.broken

    def exchange(self, word: Word, row: Row | None) -> Agreed | None:
        """Post this step's slot and read that of K steps ago; None while there is none."""
        with in_step(self._world):
            self._slots.append(self._post(word, row))
        return self._settle() if len(self._slots) > self._lag else None

    def drain(self) -> list[Agreed]:
        """Wait for every slot in flight; all ranks at the same boundary."""
        return [self._settle() for _ in range(len(self._slots))]

    def _post(self, word: Word, row: Row | None) -> _Slot:
        values = row.read() if row is not None else {}
        sums = torch.zeros(_OWN + _EACH * self._world.size, dtype=torch.float64)
        shared = [values.get(LOSS_SUM, 0.0), values.get(LOSS_WEIGHT, 0.0)]
        if self._world.leads:
            shared += [word.serial, word.attentive, *(n for pin in word.pins[:PINS] for n in pin)]
        sums[: len(shared)] = torch.tensor(shared, dtype=torch.float64)
        if self._sharded:
            sums[_PARTS:_MEANS] = torch.tensor(_squares(values), dtype=torch.float64)
        sums[_MEANS:_OWN] = torch.tensor(parts_of(values), dtype=torch.float64)
        own = values.get(Signal.LOSS, -math.inf)
        loss = math.inf if math.isnan(own) else own
        mine = [loss, number_of(values), float(row.step if row is not None else -1)]
        mine += highest_of(values)
        place = _OWN + _EACH * self._world.rank
        sums[place : place + _EACH] = torch.tensor(mine, dtype=torch.float64)
        work = dist.all_reduce(sums, group=self._world.group, async_op=True)
        return _Slot(sums, work, row, values)

    def _settle(self) -> Agreed:
        slot = self._slots.popleft()
        with in_step(self._world):
            slot.work.wait(self._world.timeout)
        sums: list[float] = slot.sums.tolist()
        pairs = [(int(sums[_PINS + 2 * n]), int(sums[_PINS + 2 * n + 1])) for n in range(PINS)]
        word = Word(int(sums[_SERIAL]), sums[_ATTENTIVE] > 0, tuple(p for p in pairs if p[0]))
        values = _reduced(slot.values, sums, max(sums[_OWN::_EACH]))
        if self._sharded:
            values = _whole(values, sums[_PARTS:_MEANS], self._world.size)
        own = [sums[place : place + _EACH] for place in range(_OWN, len(sums), _EACH)]
        values |= over_ranks(sums[_MEANS:_OWN], [each[_HIGHEST:] for each in own])
        apart = self._compared(sums[_OWN + 1 :: _EACH], sums[_OWN + 2 :: _EACH])
        if apart is not None:
            values[REPLICAS_APART] = float(len(apart))
            if apart:
                values[REPLICA_APART] = float(apart[0])
        return Agreed(word, slot.row, values, apart or ())

    def _compared(self, numbers: Sequence[float], steps: Sequence[float]) -> tuple[int, ...] | None:
        """The ranks that have parted; None where nothing was compared, or nothing is to be."""
        apart = ranks_apart(numbers, steps) if self.compares else None
        if apart and not self._replicated:
            self.compares = False
            return None
        self._replicated |= apart is not None
        return apart


def _squares(values: dict[str, float]) -> list[float]:
    """For each of `PARTS`: the square of this rank's part, and whether it has one."""
    parts = [values.get(signal) for signal in PARTS]
    return [n for p in parts for n in ((p * p, 1.0) if p is not None else (0.0, 0.0))]


def _whole(values: dict[str, float], sums: list[float], ranks: int) -> dict[str, float]:
    """`values` with the global norms that every rank had a part of, and no other parts."""
    rest = {name: value for name, value in values.items() if name not in PARTS}
    pairs = zip(PARTS, sums[::2], sums[1::2], strict=True)
    return rest | {signal: math.sqrt(total) for signal, total, count in pairs if count == ranks}


def _reduced(values: dict[str, float], sums: list[float], worst: float) -> dict[str, float]:
    rest = {name: value for name, value in values.items() if name not in _UNDERWAY}
    if Signal.LOSS in rest and sums[_WEIGHT]:
        rest[Signal.LOSS] = sums[_SUM] / sums[_WEIGHT]
        rest[Signal.LOSS_RANK_MAX] = worst
    return rest
