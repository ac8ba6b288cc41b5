"""What can go wrong on purpose: the names, what each does, and how it is written down.

Written `NAME@STEP[:LENGTH[:STRENGTH]]`, for example `lr_bump@200:5:20`. LENGTH counts steps.
`NAME@rollback+N[...]` comes N steps after the first rollback went back, for faults of the moment.
Data faults hang on batch positions: they hit whenever one of [STEP-1, STEP-1+LENGTH) is trained
on, again after a rollback that does not skip it, and never if it is skipped. The others happen in
the steps STEP to STEP+LENGTH-1, once per run: a rollback or restart ends them for good.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class FaultName(StrEnum):
    """Every fault; a word after the dot names a variant."""

    BAD_BATCH = "bad_batch"  # rows of random bytes
    BAD_BATCH_REPEATED = "bad_batch.repeated"  # rows of one byte
    BAD_BATCH_SHUFFLED = "bad_batch.shuffled"  # rows whose targets are shuffled
    GRADIENT_ASCENT = "gradient_ascent"
    LR_BUMP = "lr_bump"
    WEIGHT_SCALE = "weight_scale"
    WEIGHT_NOISE = "weight_noise"
    MOMENT_RESET = "moment_reset"
    BIT_FLIP = "bit_flip"
    GRADIENT_JUMP = "gradient_jump"  # far larger than the second moment knows
    NAN_GRAD = "nan_grad"


@dataclass(frozen=True, slots=True)
class Range:
    """What the strength of a fault means, and which values it takes."""

    unit: str
    default: float
    least: float
    most: float
    length: int = 1  # default


RANGES: dict[FaultName, Range] = {
    FaultName.BAD_BATCH: Range("share of the batch's rows made random", 1.0, 0.0, 1.0, 3),
    FaultName.BAD_BATCH_REPEATED: Range("share of the rows made one byte", 1.0, 0.0, 1.0, 3),
    FaultName.BAD_BATCH_SHUFFLED: Range(
        "share of the rows with shuffled targets", 1.0, 0.0, 1.0, 3
    ),
    FaultName.GRADIENT_ASCENT: Range("uphill, at this times the learning rate", 30.0, 0.0, 1e3, 5),
    FaultName.LR_BUMP: Range("factor on the learning rate", 40.0, 0.0, 1e6, 10),
    FaultName.WEIGHT_SCALE: Range("factor on every matrix", 5.0, 0.0, 1e6),
    FaultName.WEIGHT_NOISE: Range(
        "standard deviation in root mean squares of a matrix", 3.0, 0.0, 1e6
    ),
    FaultName.MOMENT_RESET: Range("divisor of Adam's second moment", 1e12, 1.0, 1e30),
    FaultName.BIT_FLIP: Range("bit of one fp32 weight, 23 to 30 the exponent", 30.0, 0.0, 31.0),
    FaultName.GRADIENT_JUMP: Range("factor on every gradient, before clipping", 100.0, 0.0, 1e9),
    FaultName.NAN_GRAD: Range("number of gradient elements made NaN", 1.0, 1.0, 1e9, 3),
}
DATA_FAULTS = frozenset(
    {
        FaultName.BAD_BATCH,
        FaultName.BAD_BATCH_REPEATED,
        FaultName.BAD_BATCH_SHUFFLED,
        FaultName.GRADIENT_ASCENT,
    }
)
_WRITTEN = re.compile(
    r"(?P<name>[^@]+)@(?P<after>rollback\+)?(?P<step>\d+)(?::(?P<length>\d+)(?::(?P<strength>[^:]+))?)?"
)


class FaultError(ValueError):
    """A fault that cannot be injected; says what is taken instead."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    name: FaultName
    step: int  # the first step that it touches, from 1
    length: int  # steps
    strength: float  # in the unit of `RANGES`
    after_rollback: bool = False  # `step` counts from where the first rollback went back to

    def __post_init__(self) -> None:
        limits = RANGES[self.name]
        if self.after_rollback and self.on_data:
            raise FaultError(f"{self.name} hangs on batch positions: give a step, not rollback+N")
        if self.step < 1 or self.length < 1:
            raise FaultError(f"{self.name}: STEP and LENGTH count from 1")
        if not limits.least <= self.strength <= limits.most:
            raise FaultError(
                f"{self.name}: STRENGTH ({limits.unit}) lies in [{limits.least:g}, "
                f"{limits.most:g}], got {self.strength:g}"
            )

    def __str__(self) -> str:
        after = "rollback+" if self.after_rollback else ""
        return f"{self.name}@{after}{self.step}:{self.length}:{self.strength:g}"

    @property
    def on_data(self) -> bool:
        """Whether it hangs on batch positions and not on the moment."""
        return self.name in DATA_FAULTS

    def hits_step(self, step: int, rolled_back_to: int | None = None) -> bool:
        """Whether a fault of the moment touches `step`, the run having gone back to that one."""
        if self.on_data or (self.after_rollback and rolled_back_to is None):
            return False
        first = self.step + (rolled_back_to or 0 if self.after_rollback else 0)
        return first <= step < first + self.length

    def hits_position(self, position: int) -> bool:
        """Whether a fault of the data touches the batch at `position`."""
        return self.on_data and self.step - 1 <= position < self.step - 1 + self.length


def parse_fault(text: str) -> Fault:
    """Read `NAME@STEP[:LENGTH[:STRENGTH]]`; raise `FaultError` saying what is wrong."""
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise FaultError(f"{text!r} is not NAME@STEP[:LENGTH[:STRENGTH]], as lr_bump@200:5:20")
    if match["name"] not in list(FaultName):
        raise FaultError(f"{match['name']!r} is no fault; there are {', '.join(FaultName)}")
    name = FaultName(match["name"])
    limits = RANGES[name]
    length = int(match["length"] or limits.length)
    strength = _number(match["strength"], limits.default)
    return Fault(name, int(match["step"]), length, strength, match["after"] is not None)


def _number(text: str | None, default: float) -> float:
    try:
        return default if text is None else float(text)
    except ValueError:
        raise FaultError(f"STRENGTH is a number, got {text!r}") from None


def describe_faults() -> str:
    """A line for every fault: its defaults and the unit of its strength."""
    lines = (
        f"  {name:20} LENGTH {r.length:<3} STRENGTH {r.default:<6g} {r.unit}"
        for name, r in RANGES.items()
    )
    return "\n".join(lines)
