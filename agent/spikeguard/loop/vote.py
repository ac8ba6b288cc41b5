"""What stands where in the ranks' vote, and what its sums say once they are in.

Every rank fills in a list of numbers and the lists are added up: what all share first, then a place
for each rank, in which the others leave zeros. That way one sum also carries maxima, and what each
rank said.
Law: pure. A number that is not finite stays one: NaN is told as infinite where a maximum is asked.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from spikeguard.measure.losses import LOSS_SUM, LOSS_WEIGHT
from spikeguard.measure.readback import Row
from spikeguard.measure.signals.over_ranks import (
    HIGHEST,
    MEANS,
    OTHER_DATA,
    OWN_LENGTH,
    highest_of,
    over_ranks,
    own_over_ranks,
    own_parts_of,
    parts_of,
)
from spikeguard.measure.signals.own import LOST_STEP
from spikeguard.topology.replicas import (
    HIGH,
    LOW,
    REPLICA_APART,
    REPLICAS_APART,
    number_of,
    ranks_apart,
)
from spikeguard_protocol import OptionalSignal, Signal

PINS = 2
PARTS = (
    Signal.PARAM_NORM.value,
    Signal.ADAM_V_NORM.value,
    Signal.UPDATE_NORM.value,
    Signal.UPDATE_NORM_SAMPLED.value,
)
_LOSS = Signal.LOSS.value
_SUM, _WEIGHT, _SERIAL, _ATTENTIVE, _PINS = 0, 1, 2, 3, 4
_PARTS = _PINS + 2 * PINS  # square and count of each, where sharded
_MEANS = _PARTS + 2 * len(PARTS)  # sum and count of each optional signal that is a mean
_LOGGED = _MEANS + 2 * len(MEANS)  # signals of the user's own
_OWN = _LOGGED + OWN_LENGTH  # from here on what rank 0 alone says of itself, then rank 1, ...
_SIZE = 3  # of a snapshot; before it loss, bits of the weights and step
_HIGHEST = 4
_EACH = _HIGHEST + len(HIGHEST)
_OTHER = HIGHEST.index(OTHER_DATA)
_WORST = HIGHEST.index(OptionalSignal.LOSS_SEQUENCE_MAX.value)
_OPTIONAL = frozenset({*MEANS, *HIGHEST})
_UNDERWAY = frozenset({LOSS_SUM, LOSS_WEIGHT, LOW, HIGH})
EXCHANGED = frozenset({_LOSS, *_UNDERWAY, *_OPTIONAL, *PARTS})  # what a vote wants of a sample
Pin = tuple[int, int]  # step and segment of a snapshot
Numbers: TypeAlias = "memoryview[float]"  # doubles


class Word(NamedTuple):
    """What rank 0 says to all ranks at a step."""

    serial: int = 0  # orders announced so far
    attentive: bool = False
    pins: tuple[Pin, ...] = ()


class Ballot:
    """How one rank fills in its list; `sharded`: every rank holds a part of each norm."""

    def __init__(self, rank: int, ranks: int, sharded: bool) -> None:
        self._sharded = sharded
        self.snapshot_bytes = 0  # of one on this rank; 0: none was taken yet
        self._place = _OWN + _EACH * rank
        self._empty = array("d", bytes(8 * (_OWN + _EACH * ranks)))
        self._empty[self._place] = -math.inf  # a maximum over the ranks
        self._empty[self._place + 2] = -1.0  # no step
        for place in range(self._place + _HIGHEST, self._place + _EACH):
            self._empty[place] = -math.inf

    @property
    def length(self) -> int:
        """How many numbers the lists of all ranks hold."""
        return len(self._empty)

    def fill(self, numbers: Numbers, word: Word | None, row: Row | None) -> None:
        """Write over `numbers`, with rank 0's `word` and what this rank measured."""
        numbers[:] = memoryview(self._empty)
        if word is not None:
            numbers[_SERIAL], numbers[_ATTENTIVE] = word.serial, word.attentive
            for place, number in enumerate(n for pin in word.pins[:PINS] for n in pin):
                numbers[_PINS + place] = number
        own = self._place
        numbers[own + _SIZE] = self.snapshot_bytes
        if row is None:
            return
        values = row.exchanged(EXCHANGED)
        numbers[own + 2] = row.step
        if _LOSS in values:
            loss = values[_LOSS]
            numbers[own] = math.inf if math.isnan(loss) else loss
            numbers[_SUM], numbers[_WEIGHT] = values[LOSS_SUM], values[LOSS_WEIGHT]
        if LOW in values:
            numbers[own + 1] = number_of(values)
        if self._sharded:
            numbers[_PARTS:_MEANS] = memoryview(array("d", _squares(values)))
        if not _OPTIONAL.isdisjoint(values):
            numbers[_MEANS:_LOGGED] = memoryview(array("d", parts_of(values)))
            numbers[own + _HIGHEST : own + _EACH] = memoryview(array("d", highest_of(values)))
        if row.own:
            numbers[_LOGGED:_OWN] = memoryview(array("d", own_parts_of(values, row.own)))


class Tally(NamedTuple):
    """The sums over all ranks, and the row that this rank voted for."""

    row: Row | None
    sums: Sequence[float]
    sharded: bool
    same_as: Sequence[int] = ()  # of each rank the first that holds the same weights

    @property
    def word(self) -> Word:
        """Rank 0's."""
        sums, pins = self.sums, list[Pin]()
        for place in range(_PINS, _PARTS, 2):
            if sums[place]:
                pins.append((int(sums[place]), int(sums[place + 1])))
        return Word(int(sums[_SERIAL]), sums[_ATTENTIVE] > 0.0, tuple(pins))

    @property
    def snapshot_bytes(self) -> int:
        """The largest rank's snapshot; 0 while some rank has taken none."""
        sizes = self.sums[_OWN + _SIZE :: _EACH]
        return int(max(sizes)) if all(sizes) else 0

    @property
    def compared(self) -> bool:
        """Whether some rank had added up the bits of its weights."""
        return self.sums[_OWN + 1] != 0.0

    @property
    def other_data(self) -> bool:
        """Whether some rank read a batch again and got another one."""
        return max(self.sums[_OWN + _HIGHEST + _OTHER :: _EACH]) > 0.0

    @property
    def apart(self) -> tuple[int, ...] | None:
        """The ranks whose weights are not those of the most; None where nothing was compared."""
        numbers, steps = self.sums[_OWN + 1 :: _EACH], self.sums[_OWN + 2 :: _EACH]
        return ranks_apart(numbers, steps, self.same_as)

    @property
    def worst_rank(self) -> int:
        """The rank with the highest loss of a sequence or, where none is shown, of its part."""
        sequences = self.sums[_OWN + _HIGHEST + _WORST :: _EACH]
        losses = sequences if max(sequences) > -math.inf else self.sums[_OWN::_EACH]
        return losses.index(max(losses))

    def values(self, own: Mapping[str, float], replicated: bool) -> dict[str, float]:
        """`own`, what this rank measured, with what all ranks came to."""
        sums = self.sums
        values = {name: value for name, value in own.items() if name not in _UNDERWAY}
        if sums[_WEIGHT]:  # also where this rank computes none
            values[_LOSS] = sums[_SUM] / sums[_WEIGHT]
            values[Signal.LOSS_RANK_MAX.value] = max(sums[_OWN::_EACH])
        if self.sharded:
            values = _whole(values, sums[_PARTS:_MEANS], len(sums[_OWN::_EACH]))
        each = [sums[place + _HIGHEST : place + _EACH] for place in range(_OWN, len(sums), _EACH)]
        values |= over_ranks(sums[_MEANS:_LOGGED], each)
        if self.row is not None and self.row.own:
            values |= own_over_ranks(sums[_LOGGED:_OWN], self.row.own)
        apart = self.apart if replicated else None
        if apart is not None:
            values[REPLICAS_APART] = float(len(apart))
        if apart:
            values[REPLICA_APART] = float(apart[0])
        return values


def alone(own: Mapping[str, float], sharded: bool) -> dict[str, float]:
    """`own`, what one rank measured, told as that rank's; its parts of norms are nobody's norm."""
    hidden = _UNDERWAY.union(PARTS) if sharded else _UNDERWAY
    return {**{n: v for n, v in own.items() if n not in hidden}, LOST_STEP: 1.0}


def _squares(values: Mapping[str, float]) -> list[float]:
    """For each of `PARTS`: the square of this rank's part, and whether it has one."""
    parts = [values.get(signal) for signal in PARTS]
    return [n for p in parts for n in ((p * p, 1.0) if p is not None else (0.0, 0.0))]


def _whole(values: dict[str, float], sums: Sequence[float], ranks: int) -> dict[str, float]:
    """`values` with the global norms that every rank had a part of, and no other parts."""
    rest = {name: value for name, value in values.items() if name not in PARTS}
    pairs = zip(PARTS, sums[::2], sums[1::2], strict=True)
    found = {signal: math.sqrt(total) for signal, total, count in pairs if count == ranks}
    if not found.get(Signal.ADAM_V_NORM.value, 1.0):
        del found[Signal.ADAM_V_NORM.value]  # no rank's optimizer keeps any
    return rest | found
