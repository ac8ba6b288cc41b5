"""Median and spread of repeated measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """What a handful of measurements showed."""

    count: int
    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """The spread of `values`; None where there are none."""
        if not values:
            return None
        return cls(len(values), median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.least:.3g} to {self.most:.3g}, n={self.count})"


def quantile(values: Sequence[float], share: float) -> float:
    """The least of `values` that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]
