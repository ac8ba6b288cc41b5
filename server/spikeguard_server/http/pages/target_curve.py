"""The loss with what the run can go back to, as an SVG whose marks are links.

Invariants: pure; no scripts, no styles of its own: colours are the style sheet's. Bounded by the
points and marks that it is given. What is not finite is a gap, what leaves the band of usual values
is cut at the frame, so that a spike hides nothing of the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

WIDTH, HEIGHT = 480.0, 230.0
LEFT, RIGHT, TOP, BOTTOM = 8.0, 472.0, 26.0, 196.0  # of the frame
HALF_HIT: Final = 11.0  # of the stretch that is a link, each side of a mark
Row = tuple[int, float]  # step, loss
USUAL: Final = 0.97  # share of the values that the frame shows whole


@dataclass(frozen=True, slots=True)
class TargetMark:
    """One target as it is drawn."""

    name: str
    step: int
    health: str
    url: str
    chosen: bool = False
    proposed: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """One segment's loss: `d` of an SVG path."""

    path: str
    kept: bool  # False: given up by a rollback


@dataclass(frozen=True, slots=True)
class PlacedTarget:
    """A target in the picture."""

    target: TargetMark
    x: float
    y: float
    hit_x: float
    hit_width: float


@dataclass(frozen=True, slots=True)
class Point:
    """What was done, or where the spike began: a tick with words."""

    x: float
    words: str


@dataclass(frozen=True, slots=True)
class TargetCurve:
    """Everything that the template draws."""

    lines: tuple[Line, ...]
    marks: tuple[PlacedTarget, ...]
    onset: Point | None
    done: tuple[Point, ...]
    lost_from: float | None  # left edge of what choosing gives up
    first: int  # step at the left edge
    last: int
    low: float  # loss at the lower edge
    high: float


@dataclass(frozen=True, slots=True)
class _Frame:
    first: int
    last: int
    low: float
    high: float

    def x(self, step: float) -> float:
        share = (step - self.first) / max(1, self.last - self.first)
        return round(LEFT + (RIGHT - LEFT) * min(1.0, max(0.0, share)), 1)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(BOTTOM - (BOTTOM - TOP) * min(1.0, max(0.0, share)), 1)


def target_curve(
    segments: Sequence[Mapping[str, Any]],
    targets: Sequence[TargetMark],
    *,
    step: int,
    onset: int | None = None,
    done: Sequence[tuple[int, str]] = (),
) -> TargetCurve | None:
    """The picture of a run that stands at `step`; None where no loss is known. `segments`: as the
    API's series; `done`: steps at which something was done, with words."""
    stretches = _stretches(segments)
    known = [row for _, found in stretches for row in found]
    values = sorted(value for _, value in known if math.isfinite(value))
    if not values:
        return None
    frame = _frame(known, values, step)
    kept = dict(sorted(row for on_line, found in stretches if on_line for row in found))
    chosen = next((target for target in targets if target.chosen), None)
    within = [(at, words) for at, words in done if frame.first <= at <= frame.last]
    return TargetCurve(
        tuple(line for on_line, found in stretches for line in _lines(found, on_line, frame)),
        tuple(_mark(target, kept, frame) for target in targets),
        None if onset is None else Point(frame.x(onset), f"onset, step {onset:,}"),
        tuple(Point(frame.x(at), words) for at, words in within),
        None if chosen is None else frame.x(chosen.step),
        frame.first, frame.last, frame.low, frame.high,
    )  # fmt: skip


def _stretches(segments: Sequence[Mapping[str, Any]]) -> list[tuple[bool, list[Row]]]:
    """The rows that the present weights descend from, and those that were given up. A segment of
    the line ends where the next one of it goes on, whatever it trained behind that."""
    found, goes_on = list[tuple[bool, list[Row]]](), math.inf
    for segment in reversed(segments):  # the line's own come first, the oldest before the newer
        rows = _rows(segment)
        if not segment["current"]:
            found.append((False, rows))
        elif rows:
            found.append((True, [row for row in rows if row[0] < goes_on]))
            found.append((False, [row for row in rows if row[0] >= goes_on]))
            goes_on = min(goes_on, rows[0][0])
    return found


def _rows(segment: Mapping[str, Any]) -> list[Row]:
    pairs = zip(segment["steps"], segment["values"]["loss"], strict=True)
    return [(step, float(value)) for step, value in pairs if value is not None]


def _frame(rows: Sequence[Row], values: Sequence[float], step: int) -> _Frame:
    low, high = values[0], values[-1]
    usual = values[int(USUAL * (len(values) - 1))]
    high = min(high, low + 2.0 * (usual - low)) if usual > low else high
    room = (high - low) * 0.06 or 1.0
    steps = [at for at, _ in rows]
    return _Frame(min(steps), max(*steps, step), low - room, high + room)


def _lines(rows: Sequence[Row], on_line: bool, frame: _Frame) -> list[Line]:
    """An unbroken line for each stretch of finite values."""
    found = []
    for finite, run in groupby(rows, lambda row: math.isfinite(row[1])):
        if finite:
            points = " ".join(f"{frame.x(at)},{frame.y(value)}" for at, value in run)
            found.append(Line(f"M{points}", on_line))
    return found


def _mark(target: TargetMark, kept: Mapping[int, float], frame: _Frame) -> PlacedTarget:
    x = frame.x(target.step)
    near = min(kept, key=lambda at: abs(at - target.step), default=None)
    value = math.nan if near is None else kept[near]
    y = frame.y(value) if math.isfinite(value) else BOTTOM
    return PlacedTarget(target, x, y, round(x - HALF_HIT, 1), 2 * HALF_HIT)
