"""What the ranks tell each other at every step, by name, and what it comes to over all of them.

Two lists of doubles travel. The first is added up over the ranks; of the second each number's
largest value is taken, so that `name` and `-name` give largest and smallest. Neither grows with the
number of ranks. Whether two ranks differ is seen here; which rank it is takes a gather
(`agreement`), made only then.
Pure functions and values. A number that is not finite stays one: NaN counts as infinite where the
largest is asked for.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from spikeguard.ranks.replicas import HIGH, LOW, WORD, number_of
from spikeguard_protocol import OptionalSignal, Signal

# Optional signals over the ranks: means of those that measured them (the entropy of the whole batch
# is a little higher, since ranks share most of their tokens), and those of the highest rank.
_MEANS: tuple[str, ...] = (
    OptionalSignal.TOKEN_ENTROPY.value,
    OptionalSignal.UNSEEN_TOKENS.value,
    OptionalSignal.UNCHANGED_PARAMETERS.value,
)
OTHER_DATA = "other_data"  # 1.0 where a batch was read again and was another one
_HIGHEST: tuple[str, ...] = (
    OptionalSignal.LOSS_SEQUENCE_MAX.value,
    OptionalSignal.ATTENTION_LOGIT_MAX.value,
    OptionalSignal.ACTIVATION_NORM_MAX.value,
    OptionalSignal.ACTIVATION_OUTLIER_MAX.value,
    OTHER_DATA,
)

PINNED: Final = 2  # snapshots that are kept beyond the newest while the server protects them
LOSS_SUM, LOSS_WEIGHT = "loss_sum", "loss_weight"  # on their way to a mean over all ranks
LOST_STEP = "ranks_lost_step"  # 1.0 where the ranks agree no more: the sample is rank 0's alone
PARTS: Final = (
    Signal.PARAM_NORM.value,
    Signal.ADAM_V_NORM.value,
    Signal.UPDATE_NORM.value,
    Signal.UPDATE_NORM_SAMPLED.value,
)
NORM_TOLERANCE: Final = 1e-5  # relative; ranks that add up in another order differ by less
_GRAD_NORM, _GRAD_NORM_AT_STEP = Signal.GRAD_NORM.value, Signal.GRAD_NORM_AT_STEP.value
_DROPPED, _STEP_SKIPPED = Signal.UPDATE_DROPPED.value, OptionalSignal.STEP_SKIPPED.value
_LOSS, _ADAM_V = Signal.LOSS.value, Signal.ADAM_V_NORM.value  # 0.0: no optimizer keeps any
_SEQUENCE = OptionalSignal.LOSS_SEQUENCE_MAX.value
_UNDERWAY = frozenset({LOSS_SUM, LOSS_WEIGHT, LOW, HIGH})
_NORMS = frozenset({_GRAD_NORM, _GRAD_NORM_AT_STEP, _DROPPED, _STEP_SKIPPED})
# Wanted of a sample.
EXCHANGED = frozenset({_LOSS, *_UNDERWAY, *_MEANS, *_HIGHEST, *PARTS, *_NORMS})
Pin: TypeAlias = tuple[int, int]  # step and segment of a snapshot

# Names of the numbers that are added up. 0.0 stands for a rank that has none.
BITS_RANKS, BITS_LOW, BITS_HIGH = "bits.ranks", "bits.low", "bits.high"
_RANKS_WITH = {name: f"{name}.ranks" for name in (*_MEANS, *PARTS)}  # how many have one
# Names of those whose largest is taken. -inf stands for a rank that has none.
SERIAL, ATTENTIVE = "serial", "attentive"
_PIN_NUMBERS = tuple((f"pin{n}.step", f"pin{n}.segment") for n in range(PINNED))
WORST_LOSS, WORST_SEQUENCE = "worst_loss", "worst_sequence"  # a loss and whose it is (`ranked`)
ENDED_RANK, SNAPSHOT_INTERVAL = "ended_rank", "snapshot_interval"
STEP, NORM, SKIPPED, ENDED, SIZE = "step", "norm", "skipped", "ended", "snapshot_bytes"
_BOTH = (STEP, NORM, SKIPPED, ENDED, SIZE)  # largest and smallest

SUMMED: Final = (
    *(LOSS_SUM, LOSS_WEIGHT, BITS_RANKS, BITS_LOW, BITS_HIGH),
    *(number for name in _MEANS for number in (name, _RANKS_WITH[name])),
)
SUMMED_OF_PARTS: Final = (  # squares of norms
    *SUMMED,
    *(number for name in PARTS for number in (name, _RANKS_WITH[name])),
)
LARGEST: Final = (
    SERIAL,
    ATTENTIVE,
    *(name for pin in _PIN_NUMBERS for name in pin),
    WORST_LOSS,
    WORST_SEQUENCE,
    ENDED_RANK,
    SNAPSHOT_INTERVAL,
    _DROPPED,
    *_HIGHEST,
    *(name for each in _BOTH for name in (each, f"-{each}")),
)


class Word(NamedTuple):
    """What rank 0 says to all ranks at a step."""

    serial: int = 0  # orders announced so far
    attentive: bool = False
    pins: tuple[Pin, ...] = ()


class Vote(NamedTuple):
    """One rank's numbers, and after the reductions those of all ranks."""

    summed: list[float]
    largest: list[float]


class Own(NamedTuple):
    """What a rank tells of one step where ranks differ: gathered to name them."""

    bits: float  # of its weights, from 1 on; 0.0 where they were not added up
    step: float
    norm: float  # inf where it is not finite
    skipped: float


class Measured(Protocol):
    """What a rank measured at one step, while its values may be on their way."""

    @property
    def step(self) -> int: ...

    def exchanged(self, names: Container[str], /) -> dict[str, float]:
        """Those of its values."""
        ...

    def read(self) -> dict[str, float]:
        """All of them; waits for the device."""
        ...


class Voter:
    """Makes one rank's votes."""

    def __init__(
        self, rank: int, ranks: int, sharded: bool = False, same_as: Sequence[int] = ()
    ) -> None:
        """`sharded`: every rank holds a part of each norm.

        `same_as`: of each rank the first that holds the very same weights; by default rank 0.
        """
        self._rank, self._sharded = rank, sharded
        self.summed = SUMMED_OF_PARTS if sharded else SUMMED
        groups = same_as or [0] * ranks
        others = groups.count(groups[rank]) - 1
        # Added up over the ranks that hold the same, these factors give 0.
        self._factor = float(others) if groups[rank] == rank else -1.0
        self.snapshot_bytes = 0  # of one on this rank; 0: none was taken yet
        self.snapshot_interval = 0  # steps between two that this rank asks for; 0: none

    def vote(
        self, word: Word | None, row: Measured | None, ended: bool = False
    ) -> tuple[Vote, Own]:
        """`word`: of rank 0 alone. `ended`: this rank makes no further step of this pass."""
        summed, largest = dict.fromkeys(self.summed, 0.0), dict.fromkeys(LARGEST, -math.inf)
        largest[ENDED], largest[SIZE] = float(ended), float(self.snapshot_bytes)
        if self.snapshot_interval:
            largest[SNAPSHOT_INTERVAL] = float(self.snapshot_interval)
        if ended:
            largest[ENDED_RANK] = float(self._rank)
        if word is not None:
            largest[SERIAL], largest[ATTENTIVE] = float(word.serial), float(word.attentive)
            for names, pin in zip(_PIN_NUMBERS, word.pins, strict=False):
                largest |= zip(names, map(float, pin), strict=True)
        values = row.exchanged(EXCHANGED) if row is not None else {}
        own = own_of(values, row.step if row is not None else -1)
        largest[STEP] = own.step
        self._add_values(summed, largest, values, own)
        for name in _BOTH:
            if largest[name] > -math.inf:
                largest[f"-{name}"] = -largest[name]
        return Vote(list(summed.values()), list(largest.values())), own

    def _add_values(
        self,
        summed: dict[str, float],
        largest: dict[str, float],
        values: Mapping[str, float],
        own: Own,
    ) -> None:
        if _LOSS in values:
            summed[LOSS_SUM], summed[LOSS_WEIGHT] = values[LOSS_SUM], values[LOSS_WEIGHT]
            largest[WORST_LOSS] = ranked(values[_LOSS], self._rank)
        if _SEQUENCE in values:
            largest[WORST_SEQUENCE] = ranked(values[_SEQUENCE], self._rank)
        if own.norm >= 0.0:
            largest[NORM], largest[SKIPPED] = own.norm, own.skipped
            largest[_DROPPED] = values.get(_DROPPED, 0.0)
        if own.bits:
            high, low = divmod(int(own.bits) - 1, 2**WORD)
            summed[BITS_RANKS] = 1.0
            summed[BITS_LOW], summed[BITS_HIGH] = self._factor * low, self._factor * high
        for name in (*_MEANS, *(PARTS if self._sharded else ())):
            if name in values:
                summed[name] = values[name] ** 2 if name in PARTS else values[name]
                summed[_RANKS_WITH[name]] = 1.0
        for name in _HIGHEST:
            if name in values:
                largest[name] = math.inf if math.isnan(values[name]) else values[name]


def own_of(values: Mapping[str, float], step: int) -> Own:
    """What tells replicas apart; a norm of -1.0 where none was measured."""
    norm = values.get(_GRAD_NORM, values.get(_GRAD_NORM_AT_STEP, -1.0))
    skipped = max(values.get(_DROPPED, 0.0), values.get(_STEP_SKIPPED, 0.0))
    return Own(number_of(values), float(step), norm if math.isfinite(norm) else math.inf, skipped)


class Reduced:
    """What all ranks come to."""

    __slots__ = ("_largest", "_ranks", "_sharded", "_summed")

    def __init__(self, vote: Vote, ranks: int, sharded: bool = False) -> None:
        """`vote`: after its two reductions."""
        self._ranks, self._sharded = ranks, sharded
        names = SUMMED_OF_PARTS if sharded else SUMMED
        self._summed = dict(zip(names, vote.summed, strict=True))
        self._largest = dict(zip(LARGEST, vote.largest, strict=True))

    @property
    def word(self) -> Word:
        """Rank 0's."""
        most = self._largest
        pins = tuple(
            (int(most[step]), int(most[segment]))
            for step, segment in _PIN_NUMBERS
            if most[step] > -math.inf
        )
        return Word(int(max(0.0, most[SERIAL])), most[ATTENTIVE] > 0.0, pins)

    @property
    def snapshot_bytes(self) -> int:
        """The largest rank's snapshot; 0 while some rank has taken none."""
        return int(self._largest[SIZE]) if self._least(SIZE) else 0

    @property
    def snapshot_interval(self) -> int:
        """The most steps between two snapshots that a rank asks for; 0 where none does."""
        return int(max(0.0, self._largest[SNAPSHOT_INTERVAL]))

    @property
    def ended_rank(self) -> int | None:
        """A rank that makes no further step although another does; None where there is none."""
        uneven = self._largest[ENDED] > self._least(ENDED)
        return int(self._largest[ENDED_RANK]) if uneven else None

    @property
    def same_step(self) -> bool:
        """Whether all ranks voted for the same step."""
        return self._largest[STEP] == self._least(STEP) >= 0.0

    @property
    def compared(self) -> bool:
        """Whether every rank had added up the bits of its weights of the same step."""
        return self._summed[BITS_RANKS] == self._ranks and self.same_step

    @property
    def other_data(self) -> bool:
        """Whether some rank read a batch again and got another one."""
        return self._largest[OTHER_DATA] > 0.0

    @property
    def bits_differ(self) -> bool:
        """Whether ranks that hold the same weights have different ones."""
        return self.compared and (self._summed[BITS_LOW] != 0.0 or self._summed[BITS_HIGH] != 0.0)

    @property
    def skips_differ(self) -> bool:
        """Whether some ranks left an update out, or have a norm that is not finite, and not all."""
        most, least = self._largest, self._least
        infinite = most[NORM] == math.inf > least(NORM)
        return self.same_step and (most[SKIPPED] > least(SKIPPED) or infinite)

    @property
    def norms_differ(self) -> bool:
        """Whether the gradients' norm is not that of every rank, where all are finite."""
        most, least = self._largest[NORM], self._least(NORM)
        return self.same_step and math.inf > most > least * (1.0 + NORM_TOLERANCE)

    @property
    def worst_rank(self) -> int:
        """The rank with the highest loss of a sequence or, where none is shown, of its part."""
        most = self._largest
        sequence = most[WORST_SEQUENCE]
        return rank_of(sequence if sequence > -math.inf else most[WORST_LOSS])

    def _least(self, name: str) -> float:
        return -self._largest[f"-{name}"]

    def values(self, own: Mapping[str, float]) -> dict[str, float]:
        """`own`, what this rank measured, with what all ranks came to."""
        summed, most = self._summed, self._largest
        values = {name: value for name, value in own.items() if name not in _UNDERWAY}
        if summed[LOSS_WEIGHT]:  # also where this rank computes none
            values[_LOSS] = summed[LOSS_SUM] / summed[LOSS_WEIGHT]
            values[Signal.LOSS_RANK_MAX.value] = value_of(most[WORST_LOSS])
        if most[_DROPPED] > values.get(_DROPPED, 0.0):
            values[_DROPPED] = most[_DROPPED]  # by another rank
        for name in PARTS if self._sharded else ():
            values.pop(name, None)  # this rank's part
            norm = math.sqrt(summed[name])
            if summed[_RANKS_WITH[name]] == self._ranks and (norm or name != _ADAM_V):
                values[name] = norm
        means = {n: summed[n] / summed[_RANKS_WITH[n]] for n in _MEANS if summed[_RANKS_WITH[n]]}
        return values | means | {n: most[n] for n in _HIGHEST if most[n] > -math.inf}


def alone(read: Callable[[], Mapping[str, float]], sharded: bool) -> dict[str, float]:
    """What `read` says that one rank measured, as that rank's alone; its parts of norms are
    nobody's norm."""
    hidden = _UNDERWAY.union(PARTS) if sharded else _UNDERWAY
    return {**{n: v for n, v in read().items() if n not in hidden}, LOST_STEP: 1.0}


# ---- a value and its rank in one double, whose order is that of the values ----------------------

_RANKS = 2**20  # 32 bits of a float32 and 20 of a rank are exact in a double


def ranked(value: float, rank: int) -> float:
    """`value`, a float32, with the rank whose it is; among equal values the lowest rank's is
    the largest. NaN counts as infinite."""
    (bits,) = struct.unpack("<I", struct.pack("<f", math.inf if math.isnan(value) else value))
    order = bits + 2**31 if bits < 2**31 else 2**32 - 1 - bits
    return float(order * _RANKS + (_RANKS - 1 - rank))


def value_of(number: float) -> float:
    """The value in what `ranked` made."""
    order = int(number) // _RANKS
    bits = order - 2**31 if order >= 2**31 else 2**32 - 1 - order
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    return float(value)


def rank_of(number: float) -> int:
    """The rank in what `ranked` made; 0 where no rank had a value."""
    return _RANKS - 1 - int(number) % _RANKS if number > -math.inf else 0
