"""Norms by layer as the cells of a small picture in a page: geometry alone, drawn by a template.

Cells of one level that follow one another are one, and those at their usual norm none, so that a
map of any size is a few kilobytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Final

from spikeguard_core.diagnosis.cause.layers import LayerMap

WIDTH, NAMES, ROW = 320.0, 104.0, 11.0  # units of the picture; of it names; height of a row
LONGEST_NAME: Final = 19  # characters
LEVELS: Final = (1.5, 2.0, 4.0, 8.0, 16.0)  # times its usual norm; beyond them: not finite


@dataclass(frozen=True, slots=True)
class Cell:
    """Steps of one row that stand out alike."""

    x: float
    y: float
    width: float
    level: int  # 1 to len(LEVELS); one more: not finite


@dataclass(frozen=True, slots=True)
class LayerCells:
    """What the template draws."""

    names: Sequence[tuple[str, float, bool]]  # text, y, whether the first to move lies there
    cells: Sequence[Cell]
    ticks: Sequence[tuple[str, float, str]]  # step, x, which end of the text stands there
    onset_x: float | None
    height: float
    layers: int
    sentence: str


def cells_of(found: LayerMap) -> LayerCells:
    """`found` as it is drawn."""
    size = (WIDTH - NAMES) / len(found.steps)
    onset = next((n for n, step in enumerate(found.steps) if step >= found.onset_step), None)
    shared = _shared(found.rows)
    return LayerCells(
        names=[
            (name, n * ROW, n == found.first_row)
            for n, name in enumerate(_short([name[shared:] for name in found.rows]))
        ],
        cells=[cell for n, ratios in enumerate(found.ratios) for cell in _row(n, ratios, size)],
        ticks=_ticks(found, onset, size),
        onset_x=None if onset is None else _left(onset, size),
        height=len(found.rows) * ROW,
        layers=found.layers,
        sentence=found.sentence,
    )


def _shared(names: Sequence[str]) -> int:
    """Characters of the parts that every name begins with, which tell no layer from another."""
    parts = [name.split(".")[:-1] for name in names]
    same = takewhile(lambda alike: len(set(alike)) == 1, zip(*parts, strict=False))
    return sum(len(part[0]) + 1 for part in same) if len(names) > 1 else 0


def _row(number: int, ratios: Sequence[float | None], size: float) -> Iterator[Cell]:
    for level, some in groupby(enumerate(ratios), key=lambda place: _level(place[1])):
        places = [place for place, _ in some]
        if level:
            width = round(len(places) * size, 2)
            yield Cell(_left(places[0], size), number * ROW, width, level)


def _level(ratio: float | None) -> int:
    if ratio is None:
        return 0
    return sum(ratio >= least for least in LEVELS) + (not math.isfinite(ratio))


def _left(place: int, size: float) -> float:
    return round(NAMES + place * size, 2)


def _ticks(found: LayerMap, onset: int | None, size: float) -> list[tuple[str, float, str]]:
    """The first, the onset's and the last, as far as there is room between them."""
    steps, last = found.steps, len(found.steps) - 1
    ends = [(f"{steps[0]:,}", NAMES, "start"), (f"{steps[last]:,}", WIDTH, "end")]
    if onset is None or not 0.2 < onset / len(steps) < 0.75:
        return ends
    return [*ends, (f"{found.onset_step:,}", _left(onset, size), "middle")]


def _short(names: Sequence[str]) -> list[str]:
    """The end of a name says most: `7.attention.qkv`; what begins alike is cut alike."""
    short = [name.removesuffix(".weight") for name in names]
    while heads := {n.partition(".")[0] for n in short if len(n) > LONGEST_NAME and "." in n}:
        parts = [name.partition(".") for name in short]
        short = [rest if dot and head in heads else head + dot + rest for head, dot, rest in parts]
    return [n if len(n) <= LONGEST_NAME else f"…{n[-LONGEST_NAME + 1 :]}" for n in short]
