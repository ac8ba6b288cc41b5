"""Curves of several runs on one axis: by step, or by the tokens trained before each.

Only what still stands is compared: a stretch that a rollback undid is left out. Where there are
more points than `FEW`, a line goes through the middle of each bin, or its highest value where that
stands out of what bins usually hold, and a band from its lowest to its highest.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spikeguard_client.shapes import RunDetail, Series
from spikeguard_dashboard.history import Kept, Key

FEW, BINS = 400, 240
STANDS_OUT = 5.0  # times the usual height of a bin's highest value over its middle


@dataclass(frozen=True, slots=True)
class Bin:
    """What lies at one place of the axis: of one step, or of several."""

    at: float  # step, or tokens
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Axis:
    """Where the steps of a run lie."""

    starts: Mapping[Key, tuple[float, int, float]]  # segment -> place, its step, and of each step

    def place(self, segment: Key, step: int) -> float | None:
        """Where a step lies; None where that is not known."""
        if segment not in self.starts:
            return None
        start, first, each = self.starts[segment]
        return start + (step - first) * each


def by_tokens(run: RunDetail) -> Axis:
    """Tokens trained up to each step, as far as the attempts told how many a step takes."""
    each = {attempt["id"]: attempt["tokens_per_step"] for attempt in run["attempts"]}
    starts: dict[Key, tuple[float, int, float]] = {}
    for segment in run["segments"]:
        size, parent = each.get(segment["attempt"]), segment["parent"]
        if size is None:
            continue
        key = segment["attempt"], segment["number"]
        if parent is None:
            starts[key] = (0.0, 0, float(size))
            continue
        before = Axis(starts).place((parent["attempt"], parent["segment"]), parent["step"])
        if before is not None:
            starts[key] = (before, parent["step"], float(size))
    return Axis(starts)


def by_step(run: RunDetail) -> Axis:
    """The steps themselves."""
    keys = ((segment["attempt"], segment["number"]) for segment in run["segments"])
    return Axis(dict.fromkeys(keys, (0.0, 0, 1.0)))


def standing(series: Series, signal: str, kept: Kept, axis: Axis) -> list[tuple[float, float]]:
    """Place and value of every measured step that was not undone, in order."""
    found: list[tuple[float, float]] = []
    for part in series["segments"]:
        key = (part["attempt"], part["number"])
        limit = kept.get(key, -math.inf)
        for step, value in zip(part["steps"], part["values"].get(signal, ()), strict=False):
            place = axis.place(key, step) if value is not None and step <= limit else None
            if place is not None and value is not None:
                found.append((place, value))
    return sorted(found, key=lambda point: point[0])


def binned(points: Sequence[tuple[float, float]], ends: tuple[float, float]) -> list[Bin]:
    """The finite values between `ends`, each by itself where they are few."""
    low, high = ends
    inside = [one for one in points if low <= one[0] <= high and math.isfinite(one[1])]
    if len(inside) <= FEW:
        return [Bin(at, value, value, value) for at, value in inside]
    width = (high - low) / BINS or 1.0
    bins: dict[int, list[float]] = {}
    for at, value in inside:
        bins.setdefault(min(BINS - 1, int((at - low) / width)), []).append(value)
    found = [
        Bin(low + (number + 0.5) * width, min(held), statistics.median_low(held), max(held))
        for number, held in sorted(bins.items())
    ]
    usual = statistics.median(one.high - one.middle for one in found)
    return [
        replace(one, middle=one.high) if one.high - one.middle > STANDS_OUT * usual else one
        for one in found
    ]


def not_finite(points: Iterable[tuple[float, float]]) -> list[float]:
    """Where values are that have no place on an axis."""
    return [at for at, value in points if not math.isfinite(value)]
