"""What a detector of one signal is.

Invariants: a detector is pure and causal. It is a dataclass, and its fields are its whole state:
numbers, text, lists, tuples, dicts and dataclasses of these. Settings come with every call, so that
a changed setting counts from the next row on and resets nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol, TypeAlias

from spikeguard_server.domain.events import Trend

Values: TypeAlias = Mapping[str, float]  # setting -> value; every setting of the detector is there


class Verdict(StrEnum):
    """What one more row amounts to."""

    UNKNOWN = "unknown"  # too little is known of the signal
    CALM = "calm"
    HELD = "held"  # far off, waiting for the next row
    OUTLIER = "outlier"  # the row before stood out alone
    SPIKE = "spike"


@dataclass(frozen=True, slots=True)
class Setting:
    """One number that a user may change."""

    name: str
    default: float
    least: float
    most: float
    unit: str
    meaning: str
    whole: bool = False  # takes whole numbers only


class Detector(Protocol):
    """Judges the rows of one signal, one by one and in order."""

    version: ClassVar[int]  # of the state: raise it when a field's meaning changes
    settings: ClassVar[tuple[Setting, ...]]

    def look(self, step: int, value: float, settings: Values) -> tuple[Verdict, float]:
        """Judge one row, and learn from it if it is calm. Returns verdict and z.

        z is the distance above what was expected, in deviations. A row that is not finite is a
        spike of z = inf. While an incident is open, no row comes.
        """

    def band(self, step: int, settings: Values) -> Trend | None:
        """What is expected from `step` on, and the size of a deviation; None while unknown."""

    def cut(self, step: int) -> None:
        """Forget the rows at `step` and later: the run went back."""

    def settle(self, step: int, level: float) -> None:
        """Go on at `level`, as noisy as before: an incident is over, or its level was accepted."""
