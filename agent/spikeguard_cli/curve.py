"""A curve in a terminal, in braille dots: two columns and four rows of dots a character. Pure.

Every column of dots spans the least to the most of its steps, so a spike of one step is seen in a
million. A value that is not finite is an `x` above its step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_BRAILLE = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # by column, from the top
LABEL = 9  # columns of the numbers to the left


@dataclass(frozen=True, slots=True)
class Curve:
    """One signal over steps; None where nothing was measured, NaN and infinity as such."""

    steps: Sequence[int]
    values: Sequence[float | None]


def drawn(curve: Curve, width: int, height: int, marks: Mapping[int, str]) -> list[str]:
    """The curve in `height` lines of `width` characters, then its steps, and `marks` by step.

    Empty where nothing finite was measured.
    """
    finite = [value for value in curve.values if value is not None and math.isfinite(value)]
    if not finite:
        return []
    across = 2 * max(width - LABEL, 1)
    low, high = min(finite), max(finite)
    spans = _spans(curve, across)
    cells = [[0] * (across // 2) for _ in range(height)]
    for column, (least, most) in spans.items():
        for row in range(_row(most, low, high, height), _row(least, low, high, height) + 1):
            cells[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
    labels = {0: f"{high:.4g}", height - 1: f"{low:.4g}"}
    lines = [
        f"{labels.get(place, ''):>{LABEL - 1}} "
        + "".join(chr(_BRAILLE + dots) if dots else " " for dots in cell)
        for place, cell in enumerate(cells)
    ]
    return [*_lost(curve, across), *lines, *_axis(curve, across, marks)]


def _column(step: int, curve: Curve, across: int) -> int:
    first, last = curve.steps[0], curve.steps[-1]
    return (step - first) * (across - 1) // max(last - first, 1)


def _row(value: float, low: float, high: float, height: int) -> int:
    """Of the dots, from the top; a curve that never moves lies in the middle."""
    if high == low:
        return 2 * height
    return round((high - value) / (high - low) * (4 * height - 1))


def _spans(curve: Curve, across: int) -> dict[int, tuple[float, float]]:
    """Least and most by column, each joined to the value before it."""
    spans: dict[int, tuple[float, float]] = {}
    before: float | None = None
    for step, value in zip(curve.steps, curve.values, strict=True):
        if value is None or not math.isfinite(value):
            before = None
            continue
        column = _column(step, curve, across)
        known = spans.get(column, (value, value))
        reach = value if before is None else before
        spans[column] = (min(known[0], value, reach), max(known[1], value, reach))
        before = value
    return spans


def _lost(curve: Curve, across: int) -> list[str]:
    """A line with an `x` where a value is not finite, if there is one."""
    places = {
        _column(step, curve, across) // 2
        for step, value in zip(curve.steps, curve.values, strict=True)
        if value is not None and not math.isfinite(value)
    }
    line = "".join("x" if place in places else " " for place in range(across // 2))
    return [f"{'nan, inf':>{LABEL - 1}} {line.rstrip()}"] if places else []


def _axis(curve: Curve, across: int, marks: Mapping[int, str]) -> list[str]:
    """First and last step, and below them each mark on a line of its own."""
    first, last, width = str(curve.steps[0]), str(curve.steps[-1]), across // 2
    lines = [" " * LABEL + first + last.rjust(max(width - len(first), len(last) + 1))]
    for step, words in sorted(marks.items()):
        if curve.steps[0] <= step <= curve.steps[-1]:
            place = _column(step, curve, across) // 2
            fits = place + len(words) + 2 <= width
            said = f"{'':{place}}^ {words}" if fits else f"{words} ^".rjust(place + 1)
            lines.append(" " * LABEL + said)
    return lines
