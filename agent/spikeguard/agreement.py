"""How all ranks come to act at the same step.

One tiny asynchronous reduction a step on the agent's own gloo group carries rank 0's word (the
number of the newest order, whether to be attentive, which snapshots to pin) and every rank's loss;
where parameters are sharded also every rank's part of the slow norms, so that no wish to see more
ever decides which collectives the job's own ranks make.
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
from spikeguard.world import World, in_step
from spikeguard_protocol import Signal

PINS = 2
_SERIAL, _ATTENTIVE, _SUM, _WEIGHT, _PINS = 0, 1, 2, 3, 4
PARTS = (
    Signal.PARAM_NORM,
    Signal.ADAM_V_NORM,
    Signal.UPDATE_NORM,
    Signal.UPDATE_NORM_SAMPLED,
)
_PARTS = _PINS + 2 * PINS  # square and count of each, where sharded
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


@dataclass(slots=True)
class _Slot:
    sums: Tensor
    worst: Tensor
    works: Sequence[Any]
    row: Row | None
    values: dict[str, float]


class Agreement:
    """The slots in flight; at most K."""

    def __init__(self, world: World, lag: int, sharded: bool = False) -> None:
        self._world, self._lag, self._sharded = world, lag, sharded
        self._slots: deque[_Slot] = deque()

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
        sums = torch.zeros(_PARTS + 2 * len(PARTS), dtype=torch.float64)
        if self._world.leads:
            sums[_SERIAL], sums[_ATTENTIVE] = word.serial, float(word.attentive)
            for place, (step, segment) in enumerate(word.pins[:PINS]):
                sums[_PINS + 2 * place], sums[_PINS + 2 * place + 1] = step, segment
        sums[_SUM], sums[_WEIGHT] = values.get(LOSS_SUM, 0.0), values.get(LOSS_WEIGHT, 0.0)
        if self._sharded:
            sums[_PARTS:] = torch.tensor(_squares(values), dtype=torch.float64)
        own = values.get(Signal.LOSS, -math.inf)
        worst = torch.tensor([math.inf if math.isnan(own) else own], dtype=torch.float64)
        works = [
            dist.all_reduce(sums, group=self._world.group, async_op=True),
            dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=self._world.group, async_op=True),
        ]
        return _Slot(sums, worst, works, row, values)

    def _settle(self) -> Agreed:
        slot = self._slots.popleft()
        with in_step(self._world):
            for work in slot.works:
                work.wait(self._world.timeout)
        sums = slot.sums.tolist()
        pairs = [(int(sums[_PINS + 2 * n]), int(sums[_PINS + 2 * n + 1])) for n in range(PINS)]
        word = Word(int(sums[_SERIAL]), sums[_ATTENTIVE] > 0, tuple(p for p in pairs if p[0]))
        values = _reduced(slot.values, sums, float(slot.worst[0]))
        if self._sharded:
            values = _whole(values, sums[_PARTS:], self._world.size)
        return Agreed(word, slot.row, values)


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
    rest = {k: v for k, v in values.items() if k not in (LOSS_SUM, LOSS_WEIGHT)}
    if Signal.LOSS in rest and sums[_WEIGHT]:
        rest[Signal.LOSS] = sums[_SUM] / sums[_WEIGHT]
        rest[Signal.LOSS_RANK_MAX] = worst
    return rest
