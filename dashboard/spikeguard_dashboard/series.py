"""Curves of a run as charts compute with them, made from the answer of the HTTP API.

Law: pure. None is what was not measured; NaN was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spikeguard_client.shapes import Batches, SegmentSeries, Series as Answer, Trend as TrendAnswer


@dataclass(frozen=True, slots=True)
class Trend:
    """The extrapolated baseline of the loss, straight in the logarithm of the step."""

    step: int
    level: float
    slope: float  # change a step, at `step`; fades as 1/step
    scale: float  # robust standard deviation
    band: float = 3.0  # half width of the band of usual values, in scales

    def at(self, step: float) -> float:
        """The level at `step`."""
        start = max(self.step, 0) + 1
        return self.level + self.slope * start * math.log((max(step, 0.0) + 1) / start)


@dataclass(frozen=True, slots=True)
class SeriesPart:
    """The samples of one segment; columns of equal length."""

    attempt: str
    number: int
    current: bool
    steps: Sequence[int]
    values: Mapping[str, Sequence[float | None]]
    batches: Sequence[Batches | None]


@dataclass(frozen=True, slots=True)
class Series:
    """Curves of a run, by segment."""

    signals: Sequence[str]
    segments: Sequence[SeriesPart]
    truncated: bool  # thinned: extremes and non-finite values were kept
    trend: Trend | None
    fingerprint: str = ""  # of the answer it was read from: equal ones draw the same


def series_of(answer: Answer, fingerprint: str = "") -> Series:
    """The curves of an answer; raise `ValueError` where columns differ in length."""
    stretches = [_stretch(segment) for segment in answer["segments"]]
    trend = _trend(answer["trend"])
    return Series(answer["signals"], stretches, answer["truncated"], trend, fingerprint)


def _trend(answer: TrendAnswer | None) -> Trend | None:
    return None if answer is None else Trend(**answer)


def _stretch(segment: SegmentSeries) -> SeriesPart:
    columns: list[Sequence[object]] = [*segment["values"].values(), segment["batches"]]
    if any(len(column) != len(segment["steps"]) for column in columns):
        raise ValueError("Series.segments has columns of unequal length")
    return SeriesPart(
        segment["attempt"],
        segment["number"],
        segment["current"],
        segment["steps"],
        segment["values"],
        segment["batches"],
    )
